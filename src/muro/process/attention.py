"""What the two I/O threads tell each other of the clients: whom not to read from, and who has gone.

What a client that does not read its outputs goes on asking for would only make answers that nobody takes. It stays on
the client's own side instead, is read when the client has read on, and nothing of it is lost. The sender thread says
whom to ignore, the receiver thread asks after `news` was set.

The receiver thread sees who has gone, and the sender thread lets nothing linger for them at its end.
"""

from __future__ import annotations

from muro.ids import ClientIndex
from muro.transport.wakeup import Wakeup


class Attention:
    """Two marks for each of so many clients."""

    def __init__(self, clients: int) -> None:
        self._ignored = [False] * clients
        self._gone = [False] * clients
        self.news = Wakeup()

    def ignore(self, client: ClientIndex, ignored: bool) -> None:
        """Stop reading from a client, or go on."""
        self._ignored[client] = ignored
        self.news.set()

    def ignores(self, client: ClientIndex) -> bool:
        """Whether nothing is to be read from a client now."""
        return self._ignored[client]

    def mark_gone(self, client: ClientIndex, gone: bool) -> None:
        """The connection to a client has ended, or stands again."""
        self._gone[client] = gone

    def has_gone(self, client: ClientIndex) -> bool:
        """Whether nobody is there to hear what a client would be told."""
        return self._gone[client]
