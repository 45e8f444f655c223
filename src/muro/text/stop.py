"""Stop strings across token borders: which text may go out, and where the output ends.

The rule, which does not depend on how the text is cut into pieces: the first stop string to be *complete* ends the
output; of several that end at the same character the longest wins. Whether stop strings count yet (`min_tokens`) is
the caller's: text that it does not feed is not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

from muro.errors import InvalidRequestError


class StopChecker:
    """Looks for stop strings in one request's text.

    Args:
        stop: the stop strings; none is fine.
        include: whether the stop string itself belongs to the output.

    Raises:
        InvalidRequestError: a stop string is empty.
    """

    def __init__(self, stop: Sequence[str], include: bool = False) -> None:
        if "" in stop:
            raise InvalidRequestError("a stop string must not be empty", param="stop")
        # Longest first, so that of several with the same end the longest is found first.
        self._stop = sorted(dict.fromkeys(stop), key=len, reverse=True)
        self._include = include
        self._may_go_on = frozenset("".join(s[:-1] for s in self._stop))  # after any other character all is decided
        self._open = ""  # the longest end of the text fed that begins a stop string
        self._hit: str | None = None

    @property
    def hit(self) -> str | None:
        """The stop string that ended the output."""
        return self._hit

    def feed(self, text: str) -> tuple[str, str | None]:
        """Take the next piece; return the text that may go out, and the stop string once one is complete.

        Without `include` the longest end of the text that may begin a stop string is held back. After a hit all
        further text is swallowed.
        """
        if self._hit is not None:
            return "", self._hit
        if not self._stop:
            return text, None
        sent = len(self._open) if self._include else 0
        buffer = self._open + text
        end, self._hit = self._first(buffer)
        if self._hit is not None:
            self._open = ""
            return buffer[sent : end if self._include else end - len(self._hit)], self._hit
        held = self._unfinished(buffer)
        self._open = buffer[len(buffer) - held :]
        return buffer[sent : len(buffer) - (0 if self._include else held)], None

    def flush(self) -> str:
        """The text held back, when the output has ended without a stop string."""
        text, self._open = self._open, ""
        return "" if self._include else text

    def _first(self, buffer: str) -> tuple[int, str | None]:
        """End and stop string of the first match to be complete."""
        best, hit = len(buffer) + 1, None
        for stop in self._stop:
            at = buffer.find(stop, 0, best)
            if at >= 0 and at + len(stop) < best:
                best, hit = at + len(stop), stop
        return best, hit

    def _unfinished(self, buffer: str) -> int:
        """Length of the longest end of `buffer` that begins a stop string."""
        if buffer[-1:] not in self._may_go_on:
            return 0
        longest = 0
        for stop in self._stop:
            for size in range(min(len(stop) - 1, len(buffer)), longest, -1):
                if buffer.endswith(stop[:size]):
                    longest = size
                    break
        return longest
