"""Take children down: ask all of them, wait under one deadline, kill what is left, reap, close.

Never raises: it runs in finalisers and at interpreter exit, where nobody could catch it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from muro.launch.handle import ChildHandle


def stop(
    children: Iterable[ChildHandle],
    timeout: float,
    *,
    force: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> list[int | None]:
    """End all children.

    Args:
        children: closed afterwards.
        timeout: seconds that all of them together get after SIGTERM before SIGKILL.
        force: do not ask, kill.

    Returns:
        Their exit statuses, in order; None for one that even SIGKILL did not end within a few seconds (it is
        stuck in the kernel).
    """
    stopping = list(children)
    if not force:
        for child in stopping:
            child.terminate()
        deadline = clock() + timeout
        for child in stopping:
            child.wait(max(0.0, deadline - clock()))
    for child in stopping:
        child.kill()  # all at once, so that waiting for one does not give the others more time
    for child in stopping:
        child.close()
    return [child.poll() for child in stopping]
