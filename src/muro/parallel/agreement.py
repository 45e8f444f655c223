"""Agreement among lockstep ranks: who has voted what in which round, and who is missing. Pure.

Rounds count from 0 and are the same for all ranks: nobody votes in a round before the one before it is decided, and
it is decided when all have voted. So votes of others are for this round or for the next one, and anything else is
no vote of this group.
"""

from __future__ import annotations

from muro.errors import LocalProtocolError, RemoteProtocolError


class Agreement:
    """What one rank knows of the votes of all.

    Args:
        rank: its own.
        size: ranks in the group, 0 ... size - 1.
    """

    def __init__(self, rank: int, size: int) -> None:
        if not 0 <= rank < size:
            raise LocalProtocolError(f"rank {rank} cannot be one of {size} lockstep ranks")
        self.rank = rank
        self.size = size
        self.round = 0
        """The round that is not decided yet."""
        self._before: dict[int, bool] = {}
        self._now: dict[int, bool] = {}
        self._next: dict[int, bool] = {}

    def vote(self, mine: bool) -> int:
        """Vote in this round; gives its number, for the message to the others."""
        if self.rank in self._now:
            raise LocalProtocolError(f"rank {self.rank} has voted in round {self.round} already")
        self._now[self.rank] = mine
        return self.round

    def hear(self, rank: int, number: int, value: bool) -> bool:
        """A vote of another rank, perhaps not for the first time; whether it is news.

        Raises RemoteProtocolError for a vote that nobody of this group can have cast.
        """
        if not 0 <= rank < self.size or rank == self.rank:
            raise RemoteProtocolError(f"vote of rank {rank}, which is none of the others of {self.size} ranks")
        if number < self.round:
            return False  # repeated, after a connection was made anew
        if number > self.round + 1:
            raise RemoteProtocolError(f"vote of rank {rank} in round {number}, while round {self.round} is undecided")
        votes = self._now if number == self.round else self._next
        if votes.setdefault(rank, value) != value:
            raise RemoteProtocolError(f"rank {rank} has voted twice in round {number}, and differently")
        return True

    @property
    def is_awaited(self) -> bool:
        """Whether another rank has voted in this round, and this one has not."""
        return bool(self._now) and self.rank not in self._now

    def missing(self) -> list[int]:
        """The ranks that have not voted in this round."""
        return [rank for rank in range(self.size) if rank not in self._now]

    def decide(self) -> bool | None:
        """Whether it is true on any rank, once all have voted; then the next round begins."""
        if len(self._now) < self.size:
            return None
        outcome = any(self._now.values())
        self.round += 1
        self._before, self._now, self._next = self._now, self._next, {}
        return outcome

    def votes(self) -> list[tuple[int, int, bool]]:
        """What one who is late may have missed: (rank, round, value) of the last round, this one and the next."""
        rounds = ((self.round - 1, self._before), (self.round, self._now), (self.round + 1, self._next))
        return [(rank, number, value) for number, votes in rounds for rank, value in votes.items()]
