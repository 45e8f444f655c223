"""A `torch.distributed` group as `Collective`, for lockstep engines that have one anyway.

    def collective(self) -> Collective:
        return TorchCollective(self.cpu_group)

torch is not a dependency: it is imported when the first agreement is made, by an engine that has it loaded already.
"""

from __future__ import annotations

import importlib
from datetime import timedelta
from typing import Any

from muro.errors import EngineDeadError


class TorchCollective:
    """Agrees over a process group.

    Args:
        group: a group whose ranks have the CPU as device (backend gloo); None: the default one.
    """

    def __init__(self, group: Any = None) -> None:
        self._group = group

    def any_rank(self, mine: bool, timeout: float) -> bool:
        """See `Collective`. The barrier before the reduction is what finds out who is missing."""
        torch = importlib.import_module("torch")
        distributed = importlib.import_module("torch.distributed")
        limit = timedelta(seconds=timeout)
        try:
            distributed.monitored_barrier(self._group, limit, wait_all_ranks=True)
            flag = torch.tensor([int(mine)], dtype=torch.int32)
            distributed.all_reduce(flag, op=distributed.ReduceOp.MAX, group=self._group, async_op=True).wait(limit)
        except RuntimeError as error:
            rank = distributed.get_rank(self._group)
            raise EngineDeadError(
                f"lockstep rank {rank} waited {timeout:g} s for the others (setting: lockstep.timeout): {error}",
                rank=rank,
            ) from error
        return bool(flag.item())
