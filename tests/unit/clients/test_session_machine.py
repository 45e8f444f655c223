"""The session against a model, under random orders of everything that callers, engines and deaths may do.

The model knows each attempt ever made: whether it is live, on which rank and generation, and how it ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from muro.clients.attempt import Attempt
from muro.clients.calls import PendingCall
from muro.clients.engine import KnownEngine
from muro.clients.session import Message, Session
from muro.errors import ClientClosedError, EngineDeadError, InvalidRequestError, MuroError, RequestFailedError
from muro.ids import EngineRank, Generation
from muro.wire.codec import RequestDecoder
from muro.wire.control import AbortRequest, UtilityRequest
from muro.wire.ops import IS_SLEEPING
from muro.wire.output import EngineCoreOutput, EngineCoreOutputs, FinishReason, UtilityOutput
from tests.support.asking import ask, output, outputs
from tests.support.counts import count

RANKS = st.integers(0, 1)
IDS = st.sampled_from(["a", "b", "a-1"])
FINISH = st.sampled_from([None, None, FinishReason.STOP, FinishReason.LENGTH, FinishReason.ERROR])


class Sink:
    """What one reader was given."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.endings: list[FinishReason | MuroError] = []

    def put(self, item: EngineCoreOutput) -> None:
        assert not self.endings, "news after the end"
        self.tokens += item.new_token_ids
        if item.finish_reason is not None:
            self.endings.append(item.finish_reason)

    def fail(self, error: MuroError) -> None:
        self.endings.append(error)


@dataclass
class Life:
    """One attempt: `end` is the reason of its last output or the class of its error, None while it is live."""

    caller: str
    wire: str
    rank: int
    generation: int
    attempt: Attempt
    sink: Sink | None
    tokens: list[int] = field(default_factory=list)
    end: FinishReason | type[MuroError] | str | None = None


@dataclass
class Asked:
    call: PendingCall
    waiting: dict[int, int]
    """Call id to rank."""
    over: bool = False
    failed: bool = False


class SessionMachine(RuleBasedStateMachine):
    """Two ranks, each dying and coming back; callers that add, abort, leave and call."""

    def __init__(self) -> None:
        super().__init__()
        engines = {EngineRank(rank): KnownEngine(EngineRank(rank)) for rank in range(2)}
        for engine in engines.values():
            engine.joined(None)
        self.session = Session(engines, nonce="n")
        self.serving = {0: True, 1: True}
        self.generation = {0: 0, 1: 0}
        self.lives: list[Life] = []
        self.asked: list[Asked] = []
        self.ended: type[MuroError] | None = None
        self.unread: list[tuple[int, list[EngineCoreOutput]]] = []
        self.numbers = 0
        self.batches = False

    @initialize(batches=st.booleans())
    def begin(self, batches: bool) -> None:
        self.batches = batches
        self.session.read_in_batches(batches)

    def live(self) -> list[Life]:
        return [life for life in self.lives if life.end is None]

    @rule(caller=IDS, rank=st.none() | RANKS)
    def add(self, caller: str, rank: int | None) -> None:
        request = ask(caller)
        request.data_parallel_rank = rank
        in_flight = any(life.caller == caller for life in self.live())
        reachable = any(self.serving.values()) if rank is None else self.serving[rank]
        sink = None if self.batches else Sink()
        if self.ended or in_flight or not reachable:
            with pytest.raises(self.ended or (InvalidRequestError if in_flight else EngineDeadError)):
                self.session.add(request, sink, 0.0)
            return
        attempt, message = self.session.add(request, sink, 0.0)
        to, sent = self.read(message)
        assert to == (rank if rank is not None else to) and self.serving[to]
        wire = sent.request_id  # type: ignore[union-attr]
        assert wire not in [life.wire for life in self.lives], "two attempts under one wire id"
        self.lives.append(Life(caller, wire, to, self.generation[to], attempt, sink))

    @rule(callers=st.lists(IDS, max_size=3))
    def abort(self, callers: list[str]) -> None:
        ended = [life for life in self.live() if life.caller in callers]
        self.expect_aborts(self.session.abort(callers), ended)
        self.finish(ended, "dropped" if self.batches else FinishReason.ABORT)

    @precondition(lambda self: self.lives)
    @rule(data=st.data())
    def reader_leaves(self, data: st.DataObject) -> None:
        life = data.draw(st.sampled_from(self.lives))
        self.expect_aborts(self.session.drop([life.attempt]), [] if life.end is not None else [life])
        if life.end is None:
            self.finish([life], "dropped")

    @rule()
    def abort_all(self) -> None:
        ended = self.live()
        self.expect_aborts(self.session.abort_all(), ended)
        if self.batches:
            self.unread.append((0, [EngineCoreOutput(x.wire, [], finish_reason=FinishReason.ABORT) for x in ended]))
        else:
            self.finish(ended, FinishReason.ABORT)

    @precondition(lambda self: self.lives)
    @rule(data=st.data(), finish=FINISH)
    def engine_speaks(self, data: st.DataObject, finish: FinishReason | None) -> None:
        """Of any attempt ever made, perhaps late, and of a stranger."""
        chosen = data.draw(st.lists(st.sampled_from(self.lives), max_size=3, unique_by=lambda life: life.wire))
        self.numbers += 1
        told = [output(life.wire, self.numbers, finish=finish) for life in chosen]
        self.session.receive(outputs(*told, output("stranger", 1)))
        if self.batches:
            self.unread.append((0, [output(life.wire, self.numbers, finish=finish) for life in chosen]))
            return
        for life in chosen:
            if life.end is None:
                life.tokens.append(self.numbers)
                life.end = finish

    @precondition(lambda self: self.batches)
    @rule()
    def take_batch(self) -> None:
        batch = self.session.take_batch()
        wanted: list[tuple[str, list[int], FinishReason | None]] = []
        while self.unread and not wanted:
            for item in self.unread.pop(0)[1]:
                life = next(x for x in self.lives if x.wire == item.request_id)
                if life.end is None:
                    life.end = item.finish_reason
                    wanted.append((life.caller, item.new_token_ids, item.finish_reason))
        got = [] if batch is None else [(o.request_id, o.new_token_ids, o.finish_reason) for o in batch.outputs]
        assert got == wanted

    @rule(rank=RANKS, stale=st.booleans())
    def engine_dies(self, rank: int, stale: bool) -> None:
        generation = self.generation[rank] - stale
        news = self.session.died(EngineRank(rank), generation, EngineDeadError("killed", rank=rank))
        assert news == (self.serving[rank] and not stale)
        if not news:
            return
        self.serving[rank] = False
        if not self.batches:
            self.finish([life for life in self.live() if life.rank == rank], EngineDeadError)
        for asked in self.asked:
            if rank in asked.waiting.values():
                asked.waiting, asked.over, asked.failed = {}, True, True

    @rule(rank=RANKS)
    def engine_comes_back(self, rank: int) -> None:
        if self.serving[rank]:
            return
        self.generation[rank] += 1
        self.session.succeeded(EngineRank(rank), Generation(self.generation[rank]), None)
        self.serving[rank] = True

    @rule(rank=st.none() | RANKS)
    def call(self, rank: int | None) -> None:
        over: list[None] = []
        reachable = all(self.serving.values()) if rank is None else self.serving[rank]
        if self.ended or not reachable:
            with pytest.raises(self.ended or EngineDeadError):
                self.session.call(IS_SLEEPING, (), rank, lambda: over.append(None))
            return
        call, messages = self.session.call(IS_SLEEPING, (), rank, lambda: over.append(None))
        sent = [self.read(message) for message in messages]
        waiting = {request.call_id: to for to, request in sent}  # type: ignore[union-attr]
        assert sorted(waiting.values()) == ([0, 1] if rank is None else [rank])
        self.asked.append(Asked(call, waiting))

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), fails=st.booleans())
    def engine_answers(self, data: st.DataObject, fails: bool) -> None:
        asked = data.draw(st.sampled_from(self.asked))
        call_id = data.draw(st.sampled_from(sorted(asked.waiting) or [10**6]))
        answer = UtilityOutput(call_id, "no", None) if fails else UtilityOutput(call_id, None, [None, False])
        self.session.receive(EngineCoreOutputs(utility_output=answer))
        if asked.waiting.pop(call_id, None) is not None and (fails or not asked.waiting):
            asked.waiting, asked.over, asked.failed = {}, True, fails

    @rule(sure=st.integers(0, 19), closes=st.booleans())
    def everything_ends(self, sure: int, closes: bool) -> None:
        if sure:
            return
        ended = self.live()
        if closes:
            told = [] if self.ended else ended
            self.expect_aborts(self.session.close(), told)
        else:
            self.session.end(RequestFailedError("over"))
        if closes or self.ended is None:
            self.ended = ClientClosedError if closes else RequestFailedError
        if not self.batches:
            self.finish(ended, self.ended)
        if closes:
            self.unread.clear()
        for asked in self.asked:
            if not asked.over:
                asked.waiting, asked.over, asked.failed = {}, True, True

    @invariant()
    def the_session_holds_what_the_model_holds(self) -> None:
        live = self.live()
        assert len(self.session) == len(live)
        for rank in self.session.engines:
            current = [x for x in live if x.rank == rank and x.generation == self.generation[rank]]
            assert self.session.fleet.in_flight(rank) == (len(current) if self.serving[rank] else 0)
        assert len(self.session.calls) == sum(len(asked.waiting) for asked in self.asked)
        for asked in self.asked:
            assert asked.call.over == asked.over and (asked.call.error is not None) == asked.failed

    @invariant()
    def every_reader_has_what_came_and_one_end(self) -> None:
        for life in self.lives:
            if life.sink is None:
                continue
            assert life.sink.tokens == life.tokens
            ends = [e if isinstance(e, FinishReason) else type(e) for e in life.sink.endings]
            assert ends == ([] if life.end in (None, "dropped") else [life.end])

    def finish(self, ended: list[Life], end: FinishReason | type[MuroError] | str) -> None:
        for life in ended:
            life.end = end

    def expect_aborts(self, messages: list[Message], ended: list[Life]) -> None:
        """Engines that still work on these are told, each once; nobody else is."""
        wanted: dict[int, list[str]] = {}
        for life in ended:
            if self.serving[life.rank] and life.generation == self.generation[life.rank]:
                wanted.setdefault(life.rank, []).append(life.wire)
        told = dict(self.read(message) for message in messages)
        assert len(told) == len(messages)
        assert {to: sorted(sent.request_ids) for to, sent in told.items()} == {  # type: ignore[union-attr]
            rank: sorted(ids) for rank, ids in wanted.items()
        }

    @staticmethod
    def read(message: Message) -> tuple[int, AbortRequest | UtilityRequest | object]:
        return int.from_bytes(message[0], "little"), RequestDecoder().decode(message[1:])


SessionMachine.TestCase.settings = settings(max_examples=count(60, 2000), stateful_step_count=40, deadline=None)
TestSessionMachine = SessionMachine.TestCase
