"""A place in a cluster that is no cluster: what becomes of calls is as a test says. No process, no network."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from muro.cluster.place import AwayError
from muro.errors import EngineDeadError

Answer = bytes | BaseException | None


class ScriptedPlace:
    """A `cluster.place.Place`.

    Args:
        answers: called with a method's name, says what becomes of the call: an answer, an error, or None for silence.
        given: whether there is room.
    """

    def __init__(self, answers: Callable[[str], Answer], *, given: bool = True) -> None:
        self.words, self.where = "a place with CPU 1", "10.0.0.2"
        self.room = threading.Event()
        if given:
            self.room.set()
        self.called: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.left = threading.Event()
        self.answers = answers
        self._never = threading.Event()

    def ask(self) -> None:
        pass

    def is_given(self, timeout: float) -> bool:
        return self.room.wait(0.001)

    def occupy(self) -> None:
        self.called.put("occupy")

    def call(self, method: str, *arguments: bytes) -> str:
        if method != "report":
            self.called.put(method)
            self.answers(method)
        return method

    def answer(self, call: str, timeout: float) -> bytes | None:
        self._never.wait(0.001)  # lest reports follow each other without a pause
        found = self.answers(call)
        if isinstance(found, BaseException):
            raise found
        return found

    def leave(self) -> None:
        self.left.set()

    def calls(self) -> list[str]:
        """What was called since the last time, without reports."""
        found = []
        while not self.called.empty():
            found.append(self.called.get())
        return found


def away() -> AwayError:
    return AwayError("socket closed")


def dead() -> EngineDeadError:
    return EngineDeadError("its node has died")
