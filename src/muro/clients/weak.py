"""Callbacks that do not keep alive what they call: a client must be collectable although its sockets are watched."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


def weakly(method: Callable[..., Any], *args: Any) -> Callable[..., None]:
    """Call a bound method with `args` in front; nothing happens once its object is gone."""
    weak = weakref.WeakMethod(method)

    def call(*more: Any) -> None:
        strong = weak()
        if strong is not None:
            strong(*args, *more)

    return call
