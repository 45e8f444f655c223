"""Which engine gets a request: the one with the least to do, as far as a front-end knows. Pure; time is an argument.

A front-end knows exactly what it has in flight itself. What *others* have in flight it learns from the coordinator's
reports, which are late, and may not come at all. A report says how much a rank had some time ago, and of that between
so much and so much was our own. So:

- A report never replaces our own count. It tells about the others, and only what is certain is acted upon.
- Between two reports each other front-end is taken to send what we send.
- When reports stop, our own count is all that counts. That fills the shortest queue, and is as good as taking turns.
- A rank that is slow keeps its requests longer, and so gets fewer. Ties go round.

With a `PrefixIndex`, a prompt goes to the rank that has computed the most of its beginning, unless that rank has
clearly more to do than the others, or has lately got clearly more than its share.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Final

import msgspec

from muro.errors import InternalError, InvalidRequestError, OverloadedError
from muro.ids import EngineRank
from muro.parallel.prefix import PrefixIndex

STALE_AFTER: Final = 6.0
"""Seconds after which a report says nothing any more; one comes every 5 s even if nothing changes."""
OVERLOAD: Final = 1.25
"""A rank above so many times the mean is not chosen for what it has computed."""
SLACK: Final = 2
"""Requests above the mean that are no overload, however small the mean."""
RECENT_PER_RANK: Final = 32
"""How many of the latest requests, per rank, are looked at for its share."""


class _Rank(msgspec.Struct):
    own: int = 0
    """Requests of ours in flight."""
    peak: int = 0
    """The most of these since the last report."""
    trough: int = 0
    """The fewest."""
    added: int = 0
    """Sent since the last report."""
    others_least: int = 0
    """Requests of other front-ends, by the last report: at least."""
    others_most: int = 0
    leaving: bool = False


class Balancer:
    """Chooses among the ranks of one front-end.

    Args:
        ranks: which there are.
        clients: front-ends that share the ranks.
        client_index: which of them this is; each begins at another rank.
        prefix: gives prompts where their beginning was computed; None: by load alone.
    """

    def __init__(
        self,
        ranks: Iterable[EngineRank],
        *,
        clients: int = 1,
        client_index: int = 0,
        prefix: PrefixIndex | None = None,
    ) -> None:
        self._ranks = {rank: _Rank() for rank in sorted(ranks)}
        self._open = list(self._ranks)
        """Those that may get requests."""
        self._clients = clients
        self._prefix = prefix
        self._reported_at = -STALE_AFTER
        self._turn = len(self._ranks) * client_index // max(1, clients)
        self._recent: deque[EngineRank] = deque()
        self._shares: dict[EngineRank, int] = {}

    @property
    def ranks(self) -> list[EngineRank]:
        """The ranks that may get requests; not to be changed."""
        return self._open

    def in_flight(self, rank: EngineRank) -> int:
        """Requests of this front-end that a rank has; one that is not there has none."""
        state = self._ranks.get(rank)
        return 0 if state is None else state.own

    def choose(
        self,
        now: float,
        *,
        rank: int | None = None,
        prompt_token_ids: Sequence[int] = (),
        salt: Hashable = None,
    ) -> EngineRank:
        """The rank for a request, which counts as in flight from now on.

        Args:
            now: seconds, of the clock that `report` is given.
            rank: what the caller asks for.
            prompt_token_ids: the prompt, for its beginning.
            salt: what else the prefix cache depends on.

        Raises:
            InvalidRequestError: there is no such rank.
            OverloadedError: at the moment there is none at all.
        """
        chain = self._prefix.chain(prompt_token_ids, salt) if self._prefix is not None else []
        if rank is not None:
            chosen = self._asked_for(rank)
        elif not self._open:
            raise OverloadedError("no engine is there to take the request")
        elif len(self._open) == 1:
            chosen = self._open[0]
        else:
            scores = self._scores(now)
            known = self._by_prefix(chain, scores)
            chosen = self._by_load(scores) if known is None else known
        self._count(chosen)
        if self._prefix is not None:
            self._prefix.computes(chosen, chain)
        return chosen

    def finished(self, rank: EngineRank) -> None:
        """A request that a rank had has ended, however."""
        state = self._ranks.get(rank)
        if state is None:
            return  # it has gone, and its requests with it
        if state.own <= 0:
            raise InternalError(f"more requests have ended on rank {rank} than were sent there")
        state.own -= 1
        state.trough = min(state.trough, state.own)
        if state.leaving and not state.own:
            self._drop(rank)

    def report(self, counts: Sequence[Sequence[int | float]], now: float) -> None:
        """The coordinator's counts of all ranks: waiting, running, and perhaps more. Ranks not in it keep theirs."""
        self._reported_at = now
        for rank, state in self._ranks.items():
            if rank < len(counts) and len(counts[rank]) >= 2:
                total = int(counts[rank][0]) + int(counts[rank][1])
                # How many were ours when it was written is not known, but between which numbers.
                state.others_least = max(0, total - state.peak)
                state.others_most = max(0, total - state.trough)
            state.peak, state.trough, state.added = state.own, state.own, 0

    def join(self, rank: EngineRank) -> None:
        """A rank takes requests from now on."""
        if (state := self._ranks.get(rank)) is not None:
            state.leaving = False
        else:
            self._ranks = dict(sorted([*self._ranks.items(), (rank, _Rank())]))
        self._list_open()

    def leave(self, rank: EngineRank) -> None:
        """A rank gets no more requests; it is forgotten when those that it has have ended."""
        if (state := self._ranks.get(rank)) is not None:
            state.leaving = True
            self._list_open()
            if not state.own:
                self._drop(rank)

    def lost(self, rank: EngineRank) -> None:
        """A rank has died: what it had is gone, and what it had computed."""
        self._drop(rank)

    def _drop(self, rank: EngineRank) -> None:
        self._ranks.pop(rank, None)
        self._list_open()
        if self._prefix is not None:
            self._prefix.forget(rank)

    def _list_open(self) -> None:
        self._open = [rank for rank, state in self._ranks.items() if not state.leaving]

    def _asked_for(self, rank: int) -> EngineRank:
        state = self._ranks.get(EngineRank(rank))
        if state is None or state.leaving:
            known = self._open
            span = "none" if not known else f"0 ... {known[-1]}" if known == list(range(len(known))) else f"{known}"
            raise InvalidRequestError(f"data_parallel_rank is {rank}; the ranks are {span}", param="data_parallel_rank")
        return EngineRank(rank)

    def _scores(self, now: float) -> dict[EngineRank, int]:
        """What each rank has to do, in requests, beside what all have."""
        if self._clients == 1 or not 0 <= now - self._reported_at < STALE_AFTER:  # a clock may be set back, too
            return {rank: self._ranks[rank].own for rank in self._open}
        also = self._clients - 1
        states = {rank: self._ranks[rank] for rank in self._open}
        # Another front-end is uneven by one request at any time; if all made up for that, none would be even.
        usual = min(state.others_most for state in states.values()) + also
        return {
            rank: state.own + max(0, state.others_least - usual) + also * state.added for rank, state in states.items()
        }

    def _by_load(self, scores: dict[EngineRank, int]) -> EngineRank:
        least = min(scores.values())
        order = list(scores)
        place = next((i for i, rank in enumerate(order) if rank >= self._turn), 0)
        chosen = next(rank for rank in order[place:] + order[:place] if scores[rank] == least)
        self._turn = chosen + 1
        return chosen

    def _by_prefix(self, chain: Sequence[int], scores: dict[EngineRank, int]) -> EngineRank | None:
        if self._prefix is None or not chain:
            return None
        depths = {rank: self._prefix.depth(rank, chain) for rank in scores}
        deepest = max(depths.values())
        if not deepest:
            return None
        chosen = min((rank for rank in scores if depths[rank] == deepest), key=lambda rank: scores[rank])
        return None if self._is_overloaded(chosen, scores) else chosen

    def _is_overloaded(self, rank: EngineRank, scores: dict[EngineRank, int]) -> bool:
        mean = (sum(scores.values()) + 1) / len(scores)
        share = (len(self._recent) + 1) / len(scores)
        return (
            scores[rank] + 1 > OVERLOAD * mean + SLACK
            or self._shares.get(rank, 0) + 1 > OVERLOAD * share + SLACK
        )  # fmt: skip

    def _count(self, rank: EngineRank) -> None:
        state = self._ranks[rank]
        state.own += 1
        state.added += 1
        state.peak = max(state.peak, state.own)
        if self._prefix is None:
            return
        self._recent.append(rank)
        self._shares[rank] = self._shares.get(rank, 0) + 1
        while len(self._recent) > RECENT_PER_RANK * max(1, len(self._ranks)):
            gone = self._recent.popleft()
            self._shares[gone] -= 1
