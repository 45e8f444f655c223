"""muro: an inference engine in a process of its own, and clients for everybody else.

The public surface. Importing it costs nothing: each name is loaded from its room when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muro.clients.aio import AsyncMPClient
    from muro.clients.connect import connect, connect_async
    from muro.clients.inproc import InprocClient
    from muro.clients.interface import EngineStatus, OutputBatch
    from muro.clients.sync import SyncMPClient
    from muro.config import ConnectConfig, EngineConfig, RestartPolicy
    from muro.engine.interface import Engine, EngineCore, EngineInfo, StepResult, operation
    from muro.errors import (
        CallError,
        ClientClosedError,
        ConfigError,
        CrashLoopError,
        EngineDeadError,
        InvalidRequestError,
        MuroError,
        RequestError,
        StartupError,
    )
    from muro.llm.aio import AsyncLLM
    from muro.llm.offline import LLM
    from muro.llm.outputs import CompletionOutput, EmbeddingRequestOutput, RequestOutput
    from muro.wire.output import EngineCoreOutput, FinishReason
    from muro.wire.request import (
        EngineCoreRequest,
        PoolingParams,
        RepetitionDetection,
        SamplingParams,
        StructuredOutputsParams,
    )

__all__ = [
    "LLM",
    "AsyncLLM",
    "AsyncMPClient",
    "CallError",
    "ClientClosedError",
    "CompletionOutput",
    "ConfigError",
    "ConnectConfig",
    "CrashLoopError",
    "EmbeddingRequestOutput",
    "Engine",
    "EngineConfig",
    "EngineCore",
    "EngineCoreOutput",
    "EngineCoreRequest",
    "EngineDeadError",
    "EngineInfo",
    "EngineStatus",
    "FinishReason",
    "InprocClient",
    "InvalidRequestError",
    "MuroError",
    "OutputBatch",
    "PoolingParams",
    "RepetitionDetection",
    "RequestError",
    "RequestOutput",
    "RestartPolicy",
    "SamplingParams",
    "StartupError",
    "StepResult",
    "StructuredOutputsParams",
    "SyncMPClient",
    "connect",
    "connect_async",
    "operation",
]

_HOME = {
    "muro.clients.aio": "AsyncMPClient",
    "muro.clients.connect": "connect connect_async",
    "muro.clients.inproc": "InprocClient",
    "muro.clients.interface": "EngineStatus OutputBatch",
    "muro.clients.sync": "SyncMPClient",
    "muro.config": "ConnectConfig EngineConfig RestartPolicy",
    "muro.engine.interface": "Engine EngineCore EngineInfo StepResult operation",
    "muro.errors": (
        "CallError ClientClosedError ConfigError CrashLoopError EngineDeadError InvalidRequestError MuroError "
        "RequestError StartupError"
    ),
    "muro.llm.aio": "AsyncLLM",
    "muro.llm.offline": "LLM",
    "muro.llm.outputs": "CompletionOutput EmbeddingRequestOutput RequestOutput",
    "muro.wire.output": "EngineCoreOutput FinishReason",
    "muro.wire.request": "EngineCoreRequest PoolingParams RepetitionDetection SamplingParams StructuredOutputsParams",
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("muro.version").VERSION
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'muro' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
