"""`create_engine`: from a model directory to vLLM's `EngineCore` as an engine of `muro.engine.interface`.

vLLM schedules, computes and samples; processes, sockets, queues, pauses and the ends of things are ours. So of its
sleep modes only level 0, which is a pause of ours, is offered, and its data-parallel ranks do not run in lockstep.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from muro.config import home, keep_quiet
from muro.engine.interface import EngineCore, Report
from muro.engine.loader import EXTRAS, check_installed
from muro.errors import ConfigError, MissingExtraError
from muro.models.pull import pulled


def create_engine(model: str | None, options: dict[str, Any], report: Report) -> EngineCore:
    """Load a model into vLLM's engine.

    Args:
        model: a model directory, or the name of a model that `muro pull` has fetched.
        options: vLLM's arguments, named with underscores.
        report: told how far loading is.

    Raises:
        ConfigError: no model was named, or vLLM refuses it or an option; the message is vLLM's.
        MissingExtraError: vLLM is not installed.
    """
    if model is None:
        raise ConfigError("the vllm engine needs a model directory; the demo model: muro pull demo --with-weights")
    check_installed("vllm")  # before a model is fetched for it
    directory = pulled(model, home()) or Path(model)
    if any(directory.glob("*.gguf")) and not any(directory.glob("*.safetensors")):
        raise ConfigError(
            f"{directory} holds a GGUF file alone, which vLLM does not read: muro pull NAME --with-weights"
        )
    keep_quiet()
    report("importing vLLM", 2)
    try:
        from muro.engines.vllm.host import load
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "vllm":
            raise
        raise MissingExtraError(EXTRAS["vllm"], "vllm") from None
    return load(str(directory), options, report)
