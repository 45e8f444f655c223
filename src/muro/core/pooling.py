"""Pooling: the hidden states of a prompt become one vector (the task "embed", protocol section 9.1).

What is offered: the mean of all tokens or the state of the last one, whichever the model was made for, brought to
length 1 unless `use_activation` is false. All else is refused by name.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from muro.errors import InvalidRequestError, UnsupportedOptionError
from muro.wire.arrays import Tensor
from muro.wire.request import QUEUE_TIMEOUT, OutputKind, PoolingParams

TASK = "embed"

_REFUSED = ("step_tag_id", "returned_token_ids", "late_interaction_params", "late_chunking_params")


PoolingType = Literal["mean", "last"]
"""How many hidden states become one."""


class Pooling:
    """Collects the hidden states of one prompt, as its chunks are computed.

    A position counts once, also if it is computed again after a preemption. So the state depends on nothing but how
    many positions were seen.
    """

    __slots__ = ("_kind", "_normalize", "_sum", "num_pooled")

    def __init__(self, kind: PoolingType, *, normalize: bool) -> None:
        self._kind = kind
        self._normalize = normalize
        self._sum: NDArray[np.float64] | None = None
        self.num_pooled = 0
        """How many positions from the first on were seen."""

    @property
    def needs_all(self) -> bool:
        """Whether every token must be computed, so that none may be taken from the cache."""
        return self._kind == "mean"

    def hidden_wanted(self, start: int, end: int, length: int) -> int:
        """For how many of the last of the tokens `start` ... `end` of a prompt hidden states are wanted."""
        if self._kind == "last":
            return 1 if end == length else 0
        return max(0, end - max(start, self.num_pooled))

    def add(self, end: int, rows: NDArray[np.float32]) -> None:
        """Take the hidden states [n, hidden_size] of the positions that end before `end`."""
        if self._kind == "last":
            self._sum = rows[-1].astype(np.float64)
            self.num_pooled = end
            return
        new = rows[max(0, len(rows) - (end - self.num_pooled)) :]
        if len(new):
            total = new.sum(axis=0, dtype=np.float64)
            self._sum = total if self._sum is None else self._sum + total
            self.num_pooled = end

    def vector(self) -> Tensor | None:
        """The vector, float32; None if the model gave no usable numbers."""
        if self._sum is None:
            return None
        vector = self._sum / (self.num_pooled if self._kind == "mean" else 1)
        if self._normalize:
            vector = vector / max(float(np.linalg.norm(vector)), 1e-12)
        if not np.isfinite(vector).all():
            return None
        return Tensor("float32", [len(vector)], vector.astype("<f4").tobytes())


def checked_pooling(params: PoolingParams, kind: PoolingType | None, hidden_size: int) -> Pooling:
    """What a request asks for.

    Raises:
        UnsupportedOptionError: it is not offered, by this model or at all.
        InvalidRequestError: a value is wrong.
    """
    if kind is None:
        raise UnsupportedOptionError(
            "pooling_params: this model gives no embeddings (see the option pooling)", param="pooling_params"
        )
    if params.task not in (None, TASK):
        raise UnsupportedOptionError(
            f"the pooling task {params.task!r} is not supported by this engine; {TASK!r} is", param="task"
        )
    if params.dimensions not in (None, hidden_size):
        raise UnsupportedOptionError(
            f"dimensions is {params.dimensions}; this model's embeddings have {hidden_size}", param="dimensions"
        )
    for name in (
        "step_tag_id",
        "returned_token_ids",
        "late_interaction_params",
        "late_chunking_params",
        "extra_kwargs",
    ):
        if getattr(params, name):
            raise UnsupportedOptionError(f"{name} is not supported by this engine", param=name)
    for name, value in (params.extra_kwargs or {}).items():
        if name != QUEUE_TIMEOUT and value is not None:
            raise UnsupportedOptionError(
                f"extra_kwargs[{name!r}] is not supported by this engine", param="extra_kwargs"
            )
    if params.output_kind is not OutputKind.FINAL_ONLY:
        raise InvalidRequestError("output_kind of a pooling request must be FINAL_ONLY", param="output_kind")
    return Pooling(kind, normalize=params.use_activation is not False)
