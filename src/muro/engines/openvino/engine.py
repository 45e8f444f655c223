"""`create_engine`: from a model directory to an engine of `muro.engine.interface`."""

from __future__ import annotations

from typing import Any

from muro.config import home
from muro.core.stepper import StepperEngine
from muro.engine.interface import Report
from muro.engine.loader import EXTRAS
from muro.engines.grammars import workshop
from muro.engines.openvino.options import OpenVINOOptions
from muro.errors import ConfigError, MissingExtraError
from muro.models.config import open_model
from muro.models.pooling import read_pooling
from muro.models.pull import pulled


def create_engine(model: str | None, options: OpenVINOOptions, report: Report) -> StepperEngine:
    """Load a model.

    Args:
        model: a model directory, or the name of a model that `muro pull` has fetched.
        options: number formats, memory, bounds of a step.
        report: told how far loading is.

    Raises:
        ConfigError: no model was named, or it cannot be run; see `open_model` and `compile_model`.
        MissingExtraError: `openvino`, or a library that reads the weights, is not installed.
    """
    if model is None:
        raise ConfigError("the openvino engine needs a model directory; the demo model: muro pull demo")
    scheduler = options.scheduler()
    root = home()
    directory = open_model(pulled(model, root) or model)
    try:
        from muro.engines.openvino.compiled import compile_model
        from muro.engines.openvino.executor import create_executor
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "openvino":
            raise
        raise MissingExtraError(EXTRAS["openvino"], "openvino") from None

    def reload() -> Any:
        return compile_model(directory, options, root, lambda phase, percent: None)

    compiled = compile_model(directory, options, root, report)
    report("allocating the cache", 95)
    executor = create_executor(compiled, directory.config, options, read_pooling(directory.path), reload)
    grammars = workshop(directory.path, executor.info().vocab_size)
    return StepperEngine(executor, scheduler, grammars=grammars)
