"""What server and parent say to each other, there and back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muro.crew.interface import ServerStatus
from muro.crew.words import (
    Begin,
    Count,
    CountAll,
    Counted,
    EngineWord,
    FromServer,
    Joining,
    Serving,
    Standing,
    ToServer,
    Total,
    decode_from_server,
    decode_to_server,
    encode,
)
from muro.errors import CrashLoopError, EngineDeadError, RemoteProtocolError
from muro.ids import EngineRank, Generation
from muro.launch.events import EngineDied, EngineGivenUp, EngineReplaced, EngineStarted
from muro.launch.rank import RankStatus
from muro.launch.restart import RankState
from muro.observe.metrics import Numbers
from muro.wire.handshake import Features, ReadyResponse
from muro.wire.progress import Progress

RANK, GENERATION = EngineRank(3), Generation(2)
READY = ReadyResponse(
    max_model_len=100,
    num_gpu_blocks=10,
    block_size=16,
    dp_stats_address=None,
    dtype="float32",
    vllm_version="muro-1",
    world_size=1,
    data_parallel_size=1,
    muro=Features("1", ["a"]),
)
DEAD = EngineDeadError(
    "it has died", rank=3, generation=2, phase="serving", pid=7, exit_status=-9, log_tail="last", restarting=True,
    retry_after=1.5, stuck=True,
)  # fmt: skip
STATUS = RankStatus(
    state=RankState.STARTING, generation=GENERATION, pid=None, progress=Progress(phase="loading"), uptime=None
)


@pytest.mark.parametrize("word", [Joining(1, 2), Serving(["m"], True), CountAll(4), Counted(Numbers(gauges={"a": 1}))])
def test_to_the_parent(word: FromServer) -> None:
    assert decode_from_server(encode(word)) == word


@pytest.mark.parametrize(
    "word",
    [
        Begin([EngineWord(RANK, GENERATION, READY), EngineWord(EngineRank(0), Generation(0), None, None, GENERATION)]),
        Standing({RANK: STATUS}, [ServerStatus(index=0, state="serving", pid=3, since=1.0)], 12.0),
        Count(),
        Total(3, Numbers()),
        EngineStarted(RANK, GENERATION, 1, 5, "it fell"),
        EngineReplaced(RANK, GENERATION, READY, 99, 0.5),
    ],
)
def test_to_a_server(word: ToServer) -> None:
    assert decode_to_server(encode(word)) == word


@pytest.mark.parametrize("kind", [EngineDeadError, CrashLoopError])
def test_a_death_keeps_all_that_is_known_of_it(kind: type[EngineDeadError]) -> None:
    error = kind("it has died", **{name: getattr(DEAD, name) for name in _KNOWN})
    for word in (EngineDied(RANK, GENERATION, error, True), EngineGivenUp(RANK, error), EngineGivenUp(None, error)):
        heard: Any = decode_to_server(encode(word))
        assert type(heard) is type(word) and heard.rank == word.rank and type(heard.error) is kind
        assert heard.error.message == "it has died" == str(heard.error)
        assert [getattr(heard.error, name) for name in _KNOWN] == [getattr(error, name) for name in _KNOWN]


_KNOWN = (
    "rank", "generation", "phase", "pid", "exit_status", "log_tail", "restarting", "retry_after", "stuck",
)  # fmt: skip


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"junk" * 100,
        msgspec.msgpack.encode({"type": "Nonsense"}),
        msgspec.msgpack.encode({"type": "Begin", "engines": [1]}),
        msgspec.msgpack.encode({"type": "EngineDied", "rank": 0, "generation": 0, "error": {"message": "x"}}),
        msgspec.msgpack.encode({"type": "EngineDied", "rank": 0, "generation": 0, "error": 7}),
        b"\x81" * 5000,
    ],
)
def test_what_is_no_word_is_refused(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="cannot be read"):
        decode_to_server(frame)
    with pytest.raises(RemoteProtocolError, match="cannot be read"):
        decode_from_server(frame)
