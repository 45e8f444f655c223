"""Whether the front-ends of an engine are there. Pure: time is an argument.

    joining --up--> here --down--> lost
       `-----patience over---------^

A connection that ends is a loss even if the front-end lives: what was on its way is gone, and neither side knows what
the other one has heard. A lost front-end elsewhere does not come back under its old address; its successor greets anew.
One of several beside us does (`comes_back`): then `up` leads from lost to here, and nobody is too late.
"""

from __future__ import annotations

import enum
import math

CONNECT_PATIENCE = 10.0
"""Seconds that connections to a front-end that has just sent INIT may take."""


class Presence(enum.Enum):
    """Where one front-end process is."""

    JOINING = "joining"
    HERE = "here"
    LOST = "lost"


TRANSITIONS = {
    (Presence.JOINING, "up"): Presence.HERE,
    (Presence.JOINING, "late"): Presence.LOST,
    (Presence.HERE, "down"): Presence.LOST,
}
"""Whatever is not in the table changes nothing: an attempt to connect that fails is followed by the next one."""
COMING_BACK = {
    (Presence.JOINING, "up"): Presence.HERE,
    (Presence.HERE, "down"): Presence.LOST,
    (Presence.LOST, "up"): Presence.HERE,
}
"""The same where a lost front-end is followed by another one at the same addresses, whenever that may be."""


class Contact:
    """The presence of so many front-end processes, by client index; `now` in seconds."""

    def __init__(
        self, clients: int, now: float, patience: float = CONNECT_PATIENCE, *, comes_back: bool = False
    ) -> None:
        self._transitions = COMING_BACK if comes_back else TRANSITIONS
        self._presences = [Presence.JOINING] * clients
        self._until = math.inf if comes_back else now + patience

    def up(self, client: int) -> None:
        """A connection stands."""
        self._move(client, "up")

    def down(self, client: int) -> bool:
        """A connection has ended; whether the front-end is lost by that."""
        return self._move(client, "down")

    def late(self, now: float) -> list[int]:
        """Those that are lost because they could not be reached in time."""
        if now < self._until:
            return []
        return [client for client in range(len(self._presences)) if self._move(client, "late")]

    def due(self, now: float) -> float | None:
        """Seconds until `late` has to be asked; None if it need not be."""
        if self._until == math.inf or Presence.JOINING not in self._presences:
            return None
        return max(0.0, self._until - now)

    @property
    def all_lost(self) -> bool:
        """Whether nobody is left to work for."""
        return all(presence is Presence.LOST for presence in self._presences)

    def _move(self, client: int, event: str) -> bool:
        """Take a transition; whether there is one."""
        after = self._transitions.get((self._presences[client], event))
        if after is None:
            return False
        self._presences[client] = after
        return True
