"""What can be done with an executor beside steps: free its memory, try it out, call what it lists.

Knows nothing of requests: whoever calls sees to it that no step is under way.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from muro.core.blocks import BlockPool
from muro.core.executor import Executor, Releasing
from muro.core.plan import SchedulerOutput, SequencePlan
from muro.engine.interface import Memory
from muro.engine.operations import declared_operations
from muro.errors import CallFailedError, InternalError


class ExecutorControl:
    """Control operations over one executor.

    Args:
        executor: what they are done with.
        blocks: its cache.
    """

    def __init__(self, executor: Executor, blocks: BlockPool) -> None:
        self._executor = executor
        self._blocks = blocks
        self._listed = declared_operations(executor)
        self._gone: set[Memory] = set()

    @property
    def releasable(self) -> tuple[Memory, ...]:
        """What the executor can be without for a while."""
        return self._executor.releasable if isinstance(self._executor, Releasing) else ()

    def release(self, kind: Memory) -> None:
        """Give memory back. Nothing in the cache may be in use."""
        self._releasing(kind).release_memory(kind)
        self._gone.add(kind)

    def restore(self, kind: Memory) -> None:
        """Get it again. Raises what the executor raises; then it is still gone."""
        self._releasing(kind).restore_memory(kind)
        self._gone.discard(kind)

    def forward(self) -> None:
        """Compute one token, in a block that nobody holds and that nobody finds afterwards.

        Raises:
            CallFailedError: memory is missing, or there is no such block.
        """
        if self._gone:
            raise CallFailedError(f"the engine sleeps, without its {' and '.join(sorted(self._gone))}")
        table: list[int] = []
        if not self._blocks.reserve(table, 1):
            raise CallFailedError("every block of the cache is in use")
        try:
            result = self._executor.execute(SchedulerOutput([SequencePlan("dummy", [0], 0, table, 1)], 1))
            if isinstance(result, Future):
                result.result()
        finally:
            self._blocks.release(table)

    def call(self, method: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call a method that the executor has marked with `@operation`.

        Raises:
            CallFailedError: there is none of that name.
            InvalidRequestError: the arguments do not fit.
        """
        found = self._listed.get(method)
        if found is None:
            offered = ", ".join(sorted(self._listed)) or "none"
            raise CallFailedError(f"there is no worker method {method[:64]!r}; this engine offers: {offered}")
        return found.run(args, kwargs)

    def _releasing(self, kind: Memory) -> Releasing:
        if isinstance(self._executor, Releasing) and kind in self._executor.releasable:
            return self._executor
        raise InternalError(f"{type(self._executor).__name__} was asked to do without its {kind}")
