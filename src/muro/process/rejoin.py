"""What an engine does when its front-end has gone. Pure.

    serving --lost--> leave                 it was not told to stay
       ^  `---lost--> back-off
       `--served----------'

With `--rejoin` it keeps its weights and dials again. Where front-ends fail one after the other the pauses grow; one
that has served for a while starts them anew.
"""

from __future__ import annotations

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 10.0
STEADY = 30.0
"""Seconds that a front-end must have been served for the next pause to be the first one again."""


class Rejoin:
    """The pauses of one engine, in seconds.

    Args:
        wanted: whether to stay.
    """

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self._pause = FIRST_PAUSE

    def lost(self, served: float) -> float | None:
        """The front-end has gone after `served` seconds; the pause before dialling again, or None: leave."""
        if not self.wanted:
            return None
        if served >= STEADY:
            self._pause = FIRST_PAUSE
        pause = self._pause
        self._pause = min(2 * pause, LONGEST_PAUSE)
        return pause
