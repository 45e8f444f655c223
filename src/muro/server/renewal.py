"""What lets callers in may be replaced while a server runs: API keys, certificates.

One task looks at the files now and then and has those read again that have changed. What cannot be used leaves things
as they are and is told once; so is a file that is being written just now, and the next look finds it whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from muro.errors import ConfigError
from muro.server.gate import ApiKeys, read_api_keys
from muro.server.listening import tls_context

log = logging.getLogger(__name__)

LOOK_EVERY = 2.0
"""Seconds."""

_State = tuple[tuple[int, int, int] | None, ...]


class Source(msgspec.Struct):
    """Some files, and how to take over what they hold; `read` raises ConfigError if that cannot be used."""

    files: tuple[str, ...]
    read: Callable[[], None]
    state: _State = ()
    complaint: str = ""

    def look(self) -> None:
        """Read the files if they have changed since they were read; raises nothing."""
        state = tuple(map(_look_of, self.files))
        if state == self.state:
            return
        try:
            self.read()
        except ConfigError as error:
            if error.message != self.complaint:
                self.complaint = error.message
                log.warning("what was read before goes on to hold: %s", error.message)
            return
        self.state, self.complaint = state, ""
        log.warning("%s: read again, for it has changed", " and ".join(self.files))


def key_source(path: str, keys: ApiKeys) -> Source:
    """API keys that were read from a file."""
    return Source((path,), lambda: keys.replace(read_api_keys(path)), (_look_of(path),))


def tls_source(certfile: str, keyfile: str | None, context: ssl.SSLContext) -> Source:
    """A certificate that was loaded from files; whoever connects from then on is shown the new one."""
    files = (certfile,) if keyfile is None else (certfile, keyfile)

    def read() -> None:
        tls_context(certfile, keyfile)  # one that does not go with its key would spoil the context that is in use
        context.load_cert_chain(certfile, keyfile)

    return Source(files, read, tuple(map(_look_of, files)))


@asynccontextmanager
async def renewing(sources: Sequence[Source], every: float = LOOK_EVERY) -> AsyncIterator[None]:
    """Look at these meanwhile, every so many seconds."""
    task = asyncio.ensure_future(_look_at(sources, every)) if sources else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _look_at(sources: Sequence[Source], every: float) -> None:
    while True:
        await asyncio.sleep(every)
        for source in sources:
            source.look()


def _look_of(path: str) -> tuple[int, int, int] | None:
    """What tells a file from the one that was there before."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
