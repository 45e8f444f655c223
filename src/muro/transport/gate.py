"""Who may dial: the allow-list of CURVE keys behind bound sockets.

libzmq asks for each new connection (ZAP); `zmq.auth` answers, in a thread of its own that all gates of the process
share and that runs only while there is one. Each gate has a domain, so that clients in one process do not let each
other's peers in. Whom a gate refuses is counted, and logged at a limited rate.

The list is read again when a file of it comes, goes or changes: a new machine, or a new key, needs no restart.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

import msgspec

from muro.errors import ConfigError
from muro.transport.context import context
from muro.transport.keys import PEERS, new_pair, own_pair, peer_files, peer_keys
from muro.transport.sockets import Guard

if TYPE_CHECKING:
    from zmq.auth.thread import ThreadAuthenticator

log = logging.getLogger(__name__)


class _Porter(msgspec.Struct):
    """The thread of this process that answers libzmq, and for how many gates."""

    thread: ThreadAuthenticator
    pid: int
    gates: int = 0


_lock = threading.Lock()
_porter: _Porter | None = None


class Gate:
    """Lets in who is on the list of a key directory (see `transport.keys`), and whom it is told to `admit`.

    Args:
        directory: the keys; None: nobody is on a list, and the own pair is made anew.
        secret_fd: where the own pair comes from, if not from the directory.
    """

    def __init__(self, directory: str | None, secret_fd: int | None = None) -> None:
        self._directory = directory
        self._secret_fd = secret_fd
        self._domain = f"muro-{os.urandom(6).hex()}"
        self._more: set[str] = set()
        self._peers: dict[str, str] = {}
        self._read: object = None
        """What the files of the list looked like when it was read."""
        self._unreadable = ""
        self._open = False
        self.public_key = ""
        self.refused = 0
        """Connections with a key that is not on the list."""
        self.guard: Guard | None = None
        """For sockets to be bound; None before `open`."""

    def open(self) -> Gate:
        """Read the keys and begin to answer. Raises ConfigError."""
        if self._directory is None:
            self.public_key, secret = new_pair()
        else:
            self.public_key, secret = own_pair(self._directory, self._secret_fd)
        self._look()
        self.guard = Guard(secret, self._domain)
        _register(self._domain, self)
        self._open = True
        return self

    def admit(self, public_key: str) -> None:
        """Let in one more key, for as long as this gate is open."""
        self._more.add(public_key)

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a key may come in; called by `zmq.auth` in its thread."""
        text = key.decode("ascii", "replace")
        try:
            self._look()
        except ConfigError as error:
            if self._unreadable != str(error):  # whoever dials brings us here
                self._unreadable = str(error)
                log.warning("the keys of peers are as before: %s", error)
        if text in self._more or text in self._peers:
            return True
        self.refused += 1
        if self.refused & (self.refused - 1) == 0:  # 1, 2, 4, 8 ...: a flood stays readable
            where = "our own engines" if self._directory is None else f"in {self._directory}/{PEERS}"
            log.warning("refused %d peers that are not %s; the last one's key: %s", self.refused, where, text)
        return False

    def close(self) -> None:
        """Answer no more; may be called twice. Close the sockets first."""
        if self._open:
            self._open = False
            _unregister(self._domain)

    def _look(self) -> None:
        """Read the list again if it has changed. Raises ConfigError; then it is as before."""
        if self._directory is None:
            return
        files = peer_files(self._directory)
        if files != self._read:
            self._peers = peer_keys(self._directory)
            self._read = files
            self._unreadable = ""


def _register(domain: str, gate: Gate) -> None:
    from zmq.auth.thread import ThreadAuthenticator

    global _porter  # noqa: PLW0603 - libzmq asks at one address per context, so there is one per process
    with _lock:
        if _porter is None or _porter.pid != os.getpid():
            thread = ThreadAuthenticator(context(), log=logging.getLogger(f"{__name__}.zap"))
            thread.start()
            _porter = _Porter(thread, os.getpid())
        _porter.gates += 1
        _porter.thread.configure_curve_callback(domain, gate)


def _unregister(domain: str) -> None:
    global _porter  # noqa: PLW0603
    with _lock:
        if _porter is None or _porter.pid != os.getpid():
            return
        _porter.thread.credentials_providers.pop(domain, None)
        _porter.gates -= 1
        if not _porter.gates:
            _porter.thread.stop()
            _porter = None
