"""EngineHost against a model, under random orders of everything that clients, loop and sender may do.

The model knows the echo engine exactly: after a step each live request has got one token more, its own number.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from muro.config import Limits
from muro.engine.admission import Admission
from muro.engine.events import Abort, Add, Call, Event, GivenUp, Routed
from muro.engine.host import EngineHost
from muro.ids import ClientIndex, EngineRank
from muro.testing.harness import generate_request
from muro.wire.output import FinishReason
from tests.support.counts import count
from tests.support.scripted import Scripted

CLIENTS = st.sampled_from([ClientIndex(i) for i in range(3)])
IDS = st.sampled_from(["a", "b", "a#1", "a#2"])
CALLS = st.one_of(
    st.sampled_from([("is_sleeping", []), ("is_scheduler_paused", []), ("resume_scheduler", [])]),
    st.tuples(
        st.sampled_from(["pause_scheduler", "pause_generation"]),
        st.tuples(st.sampled_from(["abort", "wait", "keep"]), st.booleans()).map(list),
    ),
)
Key = tuple[ClientIndex, str]
Said = tuple[ClientIndex, str, tuple[int, ...], FinishReason | None]


@dataclass
class Life:
    """One request from its ADD to its end; `number` is the token that it repeats."""

    number: int
    left: int
    held: bool = False
    """Whether a pause keeps it from the engine."""


@dataclass
class Model:
    """What the clients may expect."""

    live: dict[Key, Life] = field(default_factory=dict)
    stopping: bool = False
    paused: str | None = None
    refuses: bool = False

    def add(self, key: Key, life: Life) -> list[Said]:
        if self.stopping:
            return [(*key, (), FinishReason.ABORT)]
        if self.refuses:
            return [(*key, (), FinishReason.ERROR)]
        life.held = self.paused is not None
        if self.live.pop(key, None):
            return [(*key, (), FinishReason.ERROR)]
        self.live[key] = life
        return []

    def abort(self, keys: list[Key]) -> None:
        for key in keys:
            self.live.pop(key, None)

    def end(self, keys: list[Key]) -> list[Said]:
        self.abort(keys)
        return [(*key, (), FinishReason.ABORT) for key in keys]

    def call(self, method: str, args: list[Any]) -> list[Said]:
        if self.stopping:
            return []
        if method == "resume_scheduler":
            self.paused, self.refuses = None, False
            for life in self.live.values():
                life.held = False
        elif method.startswith("pause"):
            self.paused, self.refuses = args[0], method == "pause_generation" and args[0] != "keep"
            if self.paused == "abort":
                return self.end([key for key, life in self.live.items() if not life.held])
        return []

    def step(self) -> list[Said]:
        said: list[Said] = []
        for key, life in list(self.live.items()):
            if life.held:
                continue
            life.left -= 1
            said.append((*key, (life.number,), None if life.left else FinishReason.LENGTH))
            if not life.left:
                del self.live[key]
        return said


class HostMachine(RuleBasedStateMachine):
    """The receiver's side fills an inbox; the loop's side empties it and steps."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = Scripted()
        self.admission = Admission(Limits())
        self.host = EngineHost(
            self.engine,
            rank=EngineRank(0),
            name="echo",
            admission=self.admission,
            clock=lambda: 0.0,
            post_late=lambda routed: None,
        )
        self.model = Model()
        self.inbox: deque[Event] = deque()
        self.fast: list[Abort] = []
        self.numbers = 0
        self.calls = self.answers = 0

    @rule(client=CLIENTS, request_id=IDS, tokens=st.integers(1, 4))
    def receive_add(self, client: ClientIndex, request_id: str, tokens: int) -> None:
        self.numbers += 1
        request = generate_request(request_id, (self.numbers,), max_tokens=tokens)
        self.admission.admit(1)
        self.inbox.append(Add(client, client, request_id, 0, request, size=1))

    @rule(client=CLIENTS, request_ids=st.lists(IDS, max_size=3))
    def receive_abort(self, client: ClientIndex, request_ids: list[str]) -> None:
        event = Abort(client, request_ids)
        self.host.abort_soon(event)
        self.fast.append(event)
        self.inbox.append(event)

    @rule(client=CLIENTS, call=CALLS)
    def receive_call(self, client: ClientIndex, call: tuple[str, list[Any]]) -> None:
        self.calls += 1
        self.inbox.append(Call(client, self.calls, *call))

    @rule(client=CLIENTS, request_ids=st.lists(IDS, max_size=2, unique=True), everything=st.booleans())
    def sender_gives_up(self, client: ClientIndex, request_ids: list[str], everything: bool) -> None:
        self.inbox.append(GivenUp(client, request_ids, everything))

    @rule(events=st.integers(1, 5))
    def take_input(self, events: int) -> None:
        for _ in range(min(events, len(self.inbox))):
            event = self.inbox.popleft()
            expected = self.expect(event)
            self.compare(self.host.apply(event), expected)

    @rule()
    def step(self) -> None:
        if not self.host.has_work():
            self.host.went_idle()
            self.fast.clear()
            return
        for event in self.fast:
            if any(waiting is event for waiting in self.inbox):
                self.model.abort([(event.origin, i) for i in event.request_ids])
        self.fast.clear()
        routed, _ = self.host.step()
        self.compare(routed, self.model.step())

    @rule()
    def abort_all(self) -> None:
        self.compare(self.host.abort_all(), self.model.end(list(self.model.live)))

    @rule(sure=st.integers(0, 9))
    def stop_accepting(self, sure: int) -> None:
        if sure == 0:
            self.model.stopping = True
            self.host.stop_accepting()

    def expect(self, event: Event) -> list[Said]:
        match event:
            case Add():
                life = Life(event.prepared.prompt_token_ids[0], event.prepared.sampling_params.max_tokens)
                return self.model.add((event.origin, event.request_id), life)
            case Call():
                return self.model.call(event.method, event.args)
            case Abort():
                self.model.abort([(event.origin, i) for i in event.request_ids])
            case GivenUp():
                mine = [key for key in self.model.live if key[0] == event.client]
                self.model.abort([key for key in mine if key[1] in event.request_ids])
                if event.everything:
                    return self.model.end([key for key in mine if key[1] not in event.request_ids])
        return []

    def compare(self, routed: list[Routed], expected: list[Said]) -> None:
        said = [
            (r.client, o.request_id, tuple(o.new_token_ids), o.finish_reason) for r in routed for o in r.message.outputs
        ]
        assert sorted(said, key=repr) == sorted(expected, key=repr)
        self.answers += sum(r.message.utility_output is not None for r in routed)
        assert sum(r.message.scheduler_stats is not None for r in routed) <= 1

    @invariant()
    def host_and_engine_hold_what_the_model_holds(self) -> None:
        held = sum(life.held for life in self.model.live.values())
        assert self.host.num_live == len(self.model.live) == len(self.engine.held) + held
        assert self.host.num_held == held
        assert set(self.host._by_wire) == set(self.model.live)
        waiting = sum(isinstance(event, Add) for event in self.inbox)
        assert self.admission.requests == len(self.model.live) + waiting

    def teardown(self) -> None:
        if not self.model.stopping:
            self.receive_call(ClientIndex(0), ("resume_scheduler", []))
        elif self.model.paused:
            self.abort_all()
        while self.inbox or self.host.has_work():
            self.take_input(5)
            self.step()
        self.host_and_engine_hold_what_the_model_holds()
        assert self.admission.requests == self.host.num_live == 0
        assert self.answers == self.calls


HostMachine.TestCase.settings = settings(max_examples=count(60, 2000), stateful_step_count=40, deadline=None)
TestHostMachine = HostMachine.TestCase
