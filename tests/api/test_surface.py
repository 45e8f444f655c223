"""The public names, pinned: adding or removing one is a decision, made here and in changes/."""

import importlib
import importlib.util

import pytest

SURFACE = {
    "muro.engine": {"Engine", "EngineCore", "EngineInfo", "StepResult", "operation"},
}


@pytest.mark.parametrize("module", SURFACE)
def test_public_names(module: str) -> None:
    loaded = importlib.import_module(module)
    assert set(loaded.__all__) == SURFACE[module]
    assert all(getattr(loaded, name) is not None for name in loaded.__all__)
    assert SURFACE[module] <= set(dir(loaded))
