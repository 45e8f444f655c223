"""Grammars for engines of another make are compiled here first: one of vLLM's ends with one that does not compile.

Engines of ours try each one themselves. What compiles is no business of a server, so it is given by its name and loaded
when the first such grammar comes. The library is the one that these engines are told to use, so what it takes here, it
takes there.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from muro.clients.interface import EngineStatus
from muro.server.offers import is_ours
from muro.wire.request import StructuredOutputsParams

log = logging.getLogger(__name__)

_LOOK_EVERY = 0.005
"""Seconds; most grammars compile in a few milliseconds."""


class Compilation(Protocol):
    """A grammar on its way."""

    def over(self) -> bool:
        """Whether it compiles. Raises RequestError if it does not, or takes too long."""
        ...


class Compiles(Protocol):
    """What compiles grammars, in threads and processes of its own."""

    def order(self, wanted: StructuredOutputsParams) -> Compilation:
        """Begin. Raises InvalidRequestError for what is no grammar."""
        ...

    def close(self) -> None: ...


class GrammarCheck:
    """See the module.

    Args:
        maker: "module:function" that gives a `Compiles`, or None if its library is missing; None: nothing is checked.
    """

    def __init__(self, maker: str | None) -> None:
        self._maker = maker
        self._compiles: Compiles | None = None

    async def check(
        self, wanted: StructuredOutputsParams | None, engines: Callable[[], Iterable[EngineStatus]]
    ) -> None:
        """Return once an engine may be asked for this. Raises RequestError."""
        if wanted is None or self._maker is None or all(map(is_ours, engines())):
            return
        if (compiles := self._compiles or self._load(self._maker)) is None:
            return
        compilation = compiles.order(wanted)
        while not compilation.over():  # noqa: ASYNC110 - nobody tells when it is: it is looked at, as by an engine
            await asyncio.sleep(_LOOK_EVERY)

    def close(self) -> None:
        """Compile nothing more."""
        if self._compiles is not None:
            self._compiles.close()

    def _load(self, maker: str) -> Compiles | None:
        module, _, function = maker.partition(":")
        compiles: Compiles | None = getattr(importlib.import_module(module), function)()
        if compiles is None:
            self._maker = None
            log.warning(
                "grammars reach engines of another make unchecked, and one of vLLM's ends with a grammar that does not "
                "compile; to have them checked: pip install 'muro[structured]'"
            )
        self._compiles = compiles
        return compiles
