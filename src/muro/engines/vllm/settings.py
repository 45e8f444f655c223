"""vLLM's configuration of a model directory and engine options.

The options are vLLM's own arguments, by their names with underscores, and vLLM's own parser reads them: what it refuses
is refused in its words.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import msgspec
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

from muro.errors import ConfigError

OURS = {
    "data_parallel_size": "each engine of ours is one rank: muro serve --data-parallel-size",
    "data_parallel_rank": "each engine of ours is one rank: muro serve --data-parallel-size",
    "model": "the model is the argument of muro serve",
}
"""Arguments that say what our side says, and where it does."""


def engine_config(model: str, options: dict[str, Any]) -> VllmConfig:
    """The configuration. Raises ConfigError in vLLM's words."""
    for name in options:
        if name in OURS:
            raise ConfigError(f"engine 'vllm' takes no option {name}: {OURS[name]}")
    with _its_words():
        parsed = EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(list(arguments(model, options)))
        return EngineArgs.from_cli_args(parsed).create_engine_config()


def arguments(model: str, options: dict[str, Any]) -> Iterator[str]:
    """The options as a command line of vLLM's."""
    yield f"--model={model}"
    for name, value in options.items():
        flag = name.replace("_", "-")
        if str(value).lower() in ("true", "false"):
            yield f"--{flag}" if str(value).lower() == "true" else f"--no-{flag}"
        elif isinstance(value, dict):
            yield f"--{flag}={msgspec.json.encode(value).decode()}"
        elif isinstance(value, list):
            yield from (f"--{flag}", *map(str, value))
        else:
            yield f"--{flag}={value}"


@contextlib.contextmanager
def _its_words() -> Iterator[None]:
    """What the parser prints before it exits becomes the message of a ConfigError, as does a ValueError."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            yield
    except SystemExit:
        words = said.getvalue().strip().rpartition("error: ")[2]
        raise ConfigError(f"engine 'vllm': {words or 'its parser gave up without a word'}") from None
    except ValueError as error:
        raise ConfigError(f"engine 'vllm': {error}") from error
