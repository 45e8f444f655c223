"""A place in a cluster for the host of one rank: what a `RankHandle` needs of whoever gives places. Only a Protocol."""

from __future__ import annotations

from typing import Protocol, TypeVar

Call = TypeVar("Call")


class AwayError(Exception):
    """The host does not answer at present; it may again."""


class Place(Protocol[Call]):
    """Given, used and given back in one thread, but for `call` and `answer`, which any thread may use.

    Whatever says that the place, its machine or the cluster has gone for good raises EngineDeadError.
    """

    @property
    def words(self) -> str:
        """What was asked for: "a place with CPU 1 (the cluster has CPU 4)"."""
        ...

    @property
    def where(self) -> str:
        """Address of the machine; empty as long as that is not known."""
        ...

    def ask(self) -> None:
        """Begin to wait for it."""
        ...

    def is_given(self, timeout: float) -> bool:
        """Whether it is there, after at most `timeout` seconds."""
        ...

    def occupy(self) -> None:
        """Begin to start a `RankHost` there."""
        ...

    def call(self, method: str, *arguments: bytes) -> Call:
        """Let the host do something; does not wait."""
        ...

    def answer(self, call: Call, timeout: float) -> bytes | None:
        """What became of a call (nothing: b""); None after `timeout` seconds. Raises AwayError."""
        ...

    def leave(self) -> None:
        """Give it back; whatever still runs there ends. Never raises."""
        ...
