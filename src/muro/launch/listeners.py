"""Who is told of events. Any thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from muro.launch.events import Event

log = logging.getLogger(__name__)

Listener = Callable[[Event], None]


class Listeners:
    """Those who have asked, in order. One that fails costs the others nothing."""

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()
        self._lock = threading.RLock()

    def add(self, listener: Listener) -> Callable[[], None]:
        """Tell it every event from now on; returns what ends that."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

        def remove() -> None:
            with self._lock:
                self._listeners = tuple(kept for kept in self._listeners if kept is not listener)

        return remove

    def tell(self, event: Event) -> None:
        """Call all of them."""
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                log.exception("a listener for events of engines failed")
