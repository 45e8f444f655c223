"""The public names, pinned: adding or removing one is a decision, made here and in changes/."""

import importlib
import importlib.metadata
import importlib.util
import subprocess
import sys

import pytest

import muro

SURFACE = {
    "muro": {
        *("AsyncMPClient", "InprocClient", "SyncMPClient", "connect", "connect_async"),
        *("LLM", "AsyncLLM", "RequestOutput", "CompletionOutput", "EmbeddingRequestOutput"),
        *("ConnectConfig", "EngineConfig", "EngineStatus", "OutputBatch", "RestartPolicy"),
        *("EngineCoreOutput", "EngineCoreRequest", "FinishReason", "PoolingParams", "SamplingParams"),
        *("RepetitionDetection", "StructuredOutputsParams"),
        *("Engine", "EngineCore", "EngineInfo", "StepResult", "operation"),
        *("CallError", "ClientClosedError", "ConfigError", "CrashLoopError", "EngineDeadError"),
        *("InvalidRequestError", "MuroError", "RequestError", "StartupError"),
    },
    "muro.engine": {"Engine", "EngineCore", "EngineInfo", "StepResult", "operation"},
}


@pytest.mark.parametrize("module", SURFACE)
def test_public_names(module: str) -> None:
    loaded = importlib.import_module(module)
    assert set(loaded.__all__) == SURFACE[module]
    assert all(getattr(loaded, name) is not None for name in loaded.__all__)
    assert SURFACE[module] <= set(dir(loaded))


def test_importing_the_package_loads_no_room() -> None:
    code = "import sys, muro; print([name for name in sys.modules if name.startswith('muro.')])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_the_package_tells_its_version() -> None:
    assert muro.__version__ == importlib.metadata.version("muro")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        importlib.import_module("muro").nothing
