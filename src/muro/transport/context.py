"""The context of this process, which all its sockets are made in and which says their last words."""

from __future__ import annotations

import os
import threading

import zmq

# By process id: a fork must neither use nor finalise its parent's context, so it is never dropped.
_contexts: dict[int, zmq.Context[zmq.Socket[bytes]]] = {}
_contexts_lock = threading.Lock()


def context() -> zmq.Context[zmq.Socket[bytes]]:
    """The context of this process, with one I/O thread; a forked child gets one of its own."""
    pid = os.getpid()
    found = _contexts.get(pid)
    if found is None or found.closed:
        with _contexts_lock:
            found = _contexts.get(pid)
            if found is None or found.closed:
                found = _contexts[pid] = zmq.Context()
    return found


def flush(timeout: float) -> bool:
    """Wait until what closed sockets had to say has left or their linger has ended; the last act of a process.

    Without it the interpreter's exit cuts off what still lingers. Close all sockets first: one that is still
    open keeps the answer False. Blocks at most `timeout` seconds; afterwards a new context is made on demand.
    """
    with _contexts_lock:
        found = _contexts.pop(os.getpid(), None)
    if found is None or found.closed:
        return True
    # `term` cannot be given a time limit, so a thread that may be left behind does the waiting.
    waiter = threading.Thread(target=found.term, name="muro-flush", daemon=True)
    waiter.start()
    waiter.join(timeout)
    if waiter.is_alive():
        _contexts[-os.getpid()] = found  # kept referenced: its finaliser would block
        return False
    return True
