"""Both sides of the handshake against a model: honest engines, words out of turn, strangers and noise in any order.

What the front-end refuses changes nothing; whoever is honest joins whatever the others do.
"""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from muro.errors import LocalProtocolError, RemoteProtocolError
from muro.ids import EngineRank
from muro.wire.frames import identity_of
from muro.wire.handshake import (
    Addresses,
    EngineHandshake,
    Expected,
    FrontendHandshake,
    Init,
    ReadyResponse,
    Stage,
)
from tests.support.counts import count

INIT = Init(Addresses(["ipc:///a"], ["ipc:///b"]))
RANKS = st.integers(0, 2)
RESPONSE = ReadyResponse(
    max_model_len=128, num_gpu_blocks=7, block_size=16, dp_stats_address=None, dtype="float32",
    vllm_version="0.33.0", world_size=1, data_parallel_size=1,
)  # fmt: skip


class HandshakeMachine(RuleBasedStateMachine):
    """Three ranks; all must run with one parallel configuration, if they name one."""

    def __init__(self) -> None:
        super().__init__()
        self.front = FrontendHandshake({EngineRank(r): Expected(local=True) for r in range(3)}, INIT)
        self.engines = {rank: EngineHandshake(local=True, headless=False) for rank in range(3)}
        self.stage = dict.fromkeys(range(3), Stage.EXPECTED)
        self.inbox: dict[int, list[bytes]] = {rank: [] for rank in range(3)}
        self.responded: set[int] = set()
        self.hash: str | None = None

    @rule(rank=RANKS)
    def engine_says_hello(self, rank: int) -> None:
        """An engine says it once; one that is started anew under the same rank says it again."""
        engine = self.engines[rank]
        if engine.state is not Stage.EXPECTED:
            with_error(LocalProtocolError, engine.hello)
            engine = self.engines[rank] = EngineHandshake(local=True, headless=False)
        self.say(rank, engine.hello(), "HELLO")

    @rule(rank=RANKS)
    def engine_reads_init(self, rank: int) -> None:
        engine = self.engines[rank]
        if not self.inbox[rank]:
            return
        payload = self.inbox[rank].pop()
        if engine.state is Stage.GREETED:
            assert engine.receive(payload) == INIT
        else:
            with_error(RemoteProtocolError, engine.receive, payload)

    @rule(rank=RANKS, config=st.none() | st.sampled_from(["x", "y"]))
    def engine_says_ready(self, rank: int, config: str | None) -> None:
        engine = self.engines[rank]
        if engine.state is not Stage.LOADING:
            with_error(LocalProtocolError, engine.ready)
            return
        self.say(rank, engine.ready(config), "READY", config)

    @rule(rank=RANKS, status=st.sampled_from(["HELLO", "READY", "INIT", "", "hello"]), local=st.booleans())
    def somebody_says_anything(self, rank: int, status: str, local: bool) -> None:
        word = msgspec.msgpack.encode({"status": status, "local": local, "headless": False})
        self.say(rank, word, status if local else "a lie")

    @rule(rank=st.integers(0, 5), noise=st.binary(max_size=20), parts=st.integers(0, 3))
    def noise_comes(self, rank: int, noise: bytes, parts: int) -> None:
        frames = [identity_of(rank), noise, noise][:parts]
        with_error(RemoteProtocolError, self.front.receive, frames)
        with_error(RemoteProtocolError, self.front.ready_response, frames)

    @rule(rank=st.integers(0, 4))
    def engine_responds(self, rank: int) -> None:
        frames = [identity_of(rank), RESPONSE.encode()]
        if rank in self.responded or self.stage.get(rank, Stage.EXPECTED) is Stage.EXPECTED:
            with_error(RemoteProtocolError, self.front.ready_response, frames)
            return
        assert self.front.ready_response(frames) == rank
        self.responded.add(rank)

    def say(self, rank: int, payload: bytes, status: str, config: str | None = None) -> None:
        frames = [identity_of(rank), payload]
        stage = self.stage[rank]
        agrees = config is None or self.hash in (None, config)
        if status == "HELLO" and stage is Stage.EXPECTED:
            [(identity, answer)] = self.front.receive(frames)
            assert identity == identity_of(rank)
            self.stage[rank] = Stage.LOADING
            self.inbox[rank].append(answer)
        elif status == "READY" and stage is Stage.LOADING and agrees:
            assert self.front.receive(frames) == []
            self.stage[rank] = Stage.READY
            self.hash = self.hash or config
        else:
            with_error(RemoteProtocolError, self.front.receive, frames)

    @invariant()
    def the_front_end_is_where_the_model_is(self) -> None:
        assert {rank: self.front.stage(EngineRank(rank)) for rank in range(3)} == self.stage
        there = {r for r in range(3) if self.stage[r] is Stage.READY and r in self.responded}
        assert set(self.front.missing()) == {0, 1, 2} - there
        assert self.front.done == (len(there) == 3)
        assert set(self.front.responses) == self.responded


def with_error(kind: type[Exception], function: object, *args: object) -> None:
    try:
        function(*args)  # type: ignore[operator]
    except kind:
        return
    raise AssertionError(f"{function} took {args}")


HandshakeMachine.TestCase.settings = settings(max_examples=count(60, 2000), stateful_step_count=40, deadline=None)
TestHandshakeMachine = HandshakeMachine.TestCase
