"""From which clients the engine reads: not from one that does not read what it is sent.

What such a client goes on asking for would only make answers that nobody takes. It stays on the client's own side
instead, is read when the client has read on, and nothing of it is lost.

The sender thread says whom to ignore, the receiver thread asks after `news` was set.
"""

from __future__ import annotations

from muro.ids import ClientIndex
from muro.transport.wakeup import Wakeup


class Attention:
    """A mark for each of so many clients."""

    def __init__(self, clients: int) -> None:
        self._ignored = [False] * clients
        self.news = Wakeup()

    def ignore(self, client: ClientIndex, ignored: bool) -> None:
        """Stop reading from a client, or go on."""
        self._ignored[client] = ignored
        self.news.set()

    def ignores(self, client: ClientIndex) -> bool:
        """Whether nothing is to be read from a client now."""
        return self._ignored[client]
