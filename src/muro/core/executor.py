"""What the scheduler needs of a model: compute the planned tokens, give the logits that were asked for.

Implementations live with their engine (`engines/openvino/executor.py`) or in `muro.testing`.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Literal, Protocol, runtime_checkable

import msgspec

from muro.core.plan import ModelRunnerOutput, SchedulerOutput
from muro.engine.interface import FailureCallback, Memory


class ExecutorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a loaded model can hold. `dtype` is "float16", "bfloat16" or "float32", as in `EngineInfo`."""

    max_model_len: int
    """The most tokens of one sequence, prompt and output together."""
    num_blocks: int
    """Blocks of the key/value cache; block tables hold numbers 0 ... num_blocks - 1, all of them usable."""
    block_size: int
    """Tokens per block."""
    vocab_size: int
    """Width of the logits; token ids lie in 0 ... vocab_size - 1."""
    dtype: str = "float32"
    hidden_size: int = 0
    """Width of the hidden states that can be asked for; 0: none can."""
    pooling: Literal["mean", "last"] | None = None
    """How the hidden states of a prompt become an embedding; None: the model gives none."""


class Executor(Protocol):
    """A loaded model with its key/value cache. Called from the loop thread only.

    Methods beside these that are marked with `muro.engine.interface.operation` can be called from clients, by
    `collective_rpc`; they answer at once, with what msgpack carries.
    """

    def info(self) -> ExecutorInfo: ...

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput | Future[ModelRunnerOutput]:
        """Compute one step; `plan.sequences` is never empty, and no two of them share a block that is written.

        An executor that computes elsewhere may return a future at once: then the rest of the engine works meanwhile.
        Nothing in the plan changes until the future is done, but that block tables may become longer. The next step
        comes when the logits of this one were read.

        Raising a `RequestError` with a `request_id` of the plan ends that request only: the rest of the step is
        planned and computed again, so computing a position twice must do no harm. Any other error ends the engine.
        """
        ...

    def on_failure(self, callback: FailureCallback) -> None:
        """Call back, from any thread, when the model can no longer work."""
        ...

    def shutdown(self) -> None:
        """Free what the model holds; called once, also after a failure, and even if a future is not done yet."""
        ...


@runtime_checkable
class Releasing(Protocol):
    """An optional part of an executor: it can do without memory while nothing runs."""

    @property
    def releasable(self) -> tuple[Memory, ...]:
        """What it can give back."""
        ...

    def release_memory(self, kind: Memory) -> None:
        """Give it back to the system. `execute` is not called until everything is restored."""
        ...

    def restore_memory(self, kind: Memory) -> None:
        """Get it again; of the cache only the room, not what was in it. May be tried again if it raises."""
        ...
