"""Log-probabilities of the model: of tokens that were chosen, and of those of a prompt."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from muro.core.sampling.select import highest
from muro.core.sampling.settings import Ids, Row
from muro.wire.arrays import Tensor
from muro.wire.output import Logprobs


class Columns:
    """Rows of log-probabilities under construction, all of the same width."""

    def __init__(self, vocab_size: int) -> None:
        self._work = np.empty(vocab_size, np.float32)

    def row(
        self, row: Row, token_id: int, top: int, others: Ids | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.float32], int]:
        """One position: ids, their log-probabilities, and the rank of `token_id`, from 1.

        Columns: `token_id`, the `top` most probable ids (-1: all) in descending order, `others` in their own.
        """
        size = len(row)
        count = size if top == -1 else min(top, size)
        ids = np.empty(1 + count + (0 if others is None else len(others)), np.int32)
        ids[0] = token_id
        rivals = row
        if count:
            best = np.arange(size) if count == size else highest(row, None, count)
            ids[1 : count + 1] = best[np.argsort(-row[best], kind="stable")][:count]
            if row[token_id] >= row[ids[count]]:
                rivals = row[best]  # whatever scores more than one of the best is among them
        if others is not None:
            ids[count + 1 :] = others
        peak = float(row[ids[1]]) if count else float(row.max())
        work = np.subtract(row, np.float32(peak), out=self._work[:size])
        np.exp(work, out=work)
        normaliser = peak + math.log(float(work.sum()))
        values = (row[ids].astype(np.float64) - normaliser).astype(np.float32)
        return ids, values, int(np.count_nonzero(rivals > row[token_id])) + 1


def sample_logprobs(columns: Columns, row: Row, token_id: int, top: int, others: Ids | None = None) -> Logprobs:
    """Log-probabilities of one chosen token.

    `ids` int32 and `values` float32 have shape [1, 1 + top + others], `ranks` int64 has shape [1].
    """
    ids, values, rank = columns.row(row, token_id, top, others)
    return Logprobs(
        Tensor("<i4", [1, len(ids)], ids.tobytes()),
        Tensor("<f4", [1, len(ids)], values.tobytes()),
        Tensor("<i8", [1], np.array([rank], np.int64).tobytes()),
    )


class PromptLogprobs:
    """Collects the log-probabilities of a prompt, from its second token on, in whatever chunks it is computed.

    Args:
        top: how many of the most probable ids to report beside each token; -1 for all.
        vocab_size: how many there are.
    """

    def __init__(self, top: int, vocab_size: int) -> None:
        self._top = vocab_size if top == -1 else min(top, vocab_size)
        self._ids: list[NDArray[np.int32]] = []
        self._values: list[NDArray[np.float32]] = []
        self._ranks: list[int] = []

    def __len__(self) -> int:
        """Positions that are known: those of the tokens 1 ... len."""
        return len(self._ranks)

    def add(self, columns: Columns, row: Row, token_id: int) -> None:
        """Take the logits from which the next token of the prompt, `token_id`, follows; NaN if they are unusable."""
        usable = math.isfinite(float(row.max()))
        ids, values, rank = columns.row(row if usable else np.zeros_like(row), token_id, self._top)
        if not usable:
            values[:] = np.nan
        self._ids.append(ids)
        self._values.append(values)
        self._ranks.append(rank)

    def result(self) -> Logprobs:
        """`ids` int32 and `values` float32 of shape [positions, top + 1], `ranks` int32 of shape [positions]."""
        shape = [len(self._ranks), 1 + self._top]
        return Logprobs(
            Tensor("int32", shape, b"".join(ids.tobytes() for ids in self._ids)),
            Tensor("float32", shape, b"".join(values.tobytes() for values in self._values)),
            Tensor("int32", shape[:1], np.array(self._ranks, np.int32).tobytes()),
        )
