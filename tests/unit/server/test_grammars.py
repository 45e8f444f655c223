"""Grammars before engines of another make."""

import asyncio
import logging

import pytest

from muro.clients.interface import EngineStatus
from muro.errors import InvalidRequestError
from muro.ids import EngineRank
from muro.server.grammars import GrammarCheck
from muro.wire.handshake import Features, ReadyResponse
from muro.wire.request import StructuredOutputsParams

CHECKER = "muro.engines.grammars:checker"
WRONG = StructuredOutputsParams(regex="(unclosed")
RIGHT = StructuredOutputsParams(regex="a+")


def engines(*makes: Features | None) -> list[EngineStatus]:
    """Engines that have said so of themselves."""
    ready = ReadyResponse(
        max_model_len=8, num_gpu_blocks=0, block_size=16, dp_stats_address=None, dtype="float32",
        vllm_version="0.25.1", world_size=1, data_parallel_size=1,
    )  # fmt: skip
    found = []
    for rank, make in enumerate(makes):
        ready = ReadyResponse(**{name: getattr(ready, name) for name in ready.__struct_fields__} | {"muro": make})
        found.append(EngineStatus(rank=EngineRank(rank), state="serving", ready=ready))
    return found


OURS = Features(version="0.1.0", features=[])


def check(wanted: StructuredOutputsParams | None, *makes: Features | None, maker: str | None = CHECKER) -> None:
    grammars = GrammarCheck(maker)
    try:
        asyncio.run(grammars.check(wanted, lambda: engines(*makes)))
    finally:
        grammars.close()


def test_what_does_not_compile_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="structured_outputs"):
        check(WRONG, None)
    with pytest.raises(InvalidRequestError, match="structured_outputs"):
        check(WRONG, OURS, None)


def test_what_compiles_passes() -> None:
    check(RIGHT, None)


def test_what_needs_no_check_is_not_checked() -> None:
    check(None, None, maker="no.such:module")
    check(WRONG, OURS, OURS, maker="no.such:module")
    check(WRONG, None, maker=None)


def nothing() -> None:
    """The checker where its library is missing."""


def test_without_the_library_it_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    grammars = GrammarCheck(f"{__name__}:nothing")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            asyncio.run(grammars.check(WRONG, lambda: engines(None)))
    assert [record.message.count("muro[structured]") for record in caplog.records] == [1]
    grammars.close()
