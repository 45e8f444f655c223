"""Giving back what a client of an asyncio loop has: its watched sockets, then its link.

Sockets are watched by a loop and must be forgotten in its thread before they are closed. These functions find
out where they run: in the loop's thread, in another one, or when the loop is no more. They hold no client.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from muro.clients.link import Link
from muro.transport.aio import AsyncReader

_LOOP_PATIENCE = 2.0
"""Seconds that a busy loop gets to let go of the sockets."""


def release_in_loop(loop: asyncio.AbstractEventLoop, reader: AsyncReader, link: Link, *, patience: float) -> None:
    """Forget and close the sockets; from another thread wait at most `patience` seconds for the loop to do it."""

    def release() -> None:
        reader.close()
        link.release()
        done.set()

    done = threading.Event()
    if loop.is_closed() or not loop.is_running() or runs_in(loop):
        release()
        return
    try:
        loop.call_soon_threadsafe(release)
    except RuntimeError:  # closed just now
        release()
    else:
        done.wait(patience)


def close_in_loop(loop: asyncio.AbstractEventLoop, reader: AsyncReader, link: Link, timeout: float | None) -> None:
    """Stop the engines (blocks), then let go of the sockets."""
    link.stop(timeout)
    release_in_loop(loop, reader, link, patience=_LOOP_PATIENCE)


def finalize_in_loop(loop: asyncio.AbstractEventLoop, reader: AsyncReader, link: Link) -> None:
    """As `close_in_loop` for a client that nobody closed: collected, or the interpreter ends."""
    link.abandon()
    release_in_loop(loop, reader, link, patience=0.0)


async def in_thread(work: Callable[[], None], on_cancel: Callable[[], None] | None = None) -> None:
    """Run `work` in a thread that lives no longer than it; wait for its end, cancelled or not.

    A cancelled caller gets its CancelledError after the work has ended; `on_cancel` may hasten that.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    failure: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failure.append(error)
        finally:
            loop.call_soon_threadsafe(_finish, ended)

    thread = threading.Thread(target=run, name="muro-wait", daemon=True)
    thread.start()
    cancelled: asyncio.CancelledError | None = None
    while not ended.done():
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError as error:
            cancelled = error
            if on_cancel is not None:
                on_cancel()
    thread.join()
    if cancelled is not None:
        raise cancelled
    if failure:
        raise failure[0]


def _finish(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


def runs_in(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the caller runs in `loop`."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
