"""One client's way out, with real sockets: nothing lost, nothing twice, nothing after the end.

A client that does not read is one whose socket is not there yet: everything waits on our side.
"""

import threading
from collections.abc import Iterator
from queue import Empty
from typing import Any

import pytest

from muro.engine.events import Event, GivenUp, Routed
from muro.ids import ClientIndex
from muro.process.lane import Lane
from muro.process.peers import PeerLayouts
from muro.process.queues import InputQueue
from muro.testing.harness import StepHarness, generate_request
from muro.transport.endpoint import EndpointDirectory, ipc_endpoint
from muro.transport.inflight import BufferPool, InFlight
from muro.transport.sockets import Socket, bind_pull, close, connect_push
from muro.wire.codec import DEAD, OutputDecoder
from muro.wire.output import EngineCoreOutput, EngineCoreOutputs, FinishReason, OutputError, UtilityOutput
from muro.wire.stats import SchedulerStats
from tests.support.deadline import until
from tests.support.scripted import Scripted

C0 = ClientIndex(0)
ABORT, ERROR, LENGTH = FinishReason.ABORT, FinishReason.ERROR, FinishReason.LENGTH


class Rig:
    """A lane, and the client at its other end once it `listens`."""

    def __init__(self, address: str, limit: int) -> None:
        self.address = address
        self.push = connect_push(address, linger_ms=0)
        self.pull: Socket | None = None
        self.pool = BufferPool(2)
        self.in_flight = InFlight(limit, self.pool)
        self.inbox = InputQueue()
        self.peers = PeerLayouts(1, "auto", ours=False)
        self.ignored: list[bool] = []
        self.lane = Lane(
            C0,
            self.push,
            peers=self.peers,
            in_flight=self.in_flight,
            pool=self.pool,
            inbox=self.inbox,
            ignore=self.ignored.append,
            limit=limit,
            largest=1 << 20,
        )
        self.decoder = OutputDecoder("0.25.1")

    def listen(self) -> None:
        self.pull = bind_pull(self.address)

    def receive(self, within: float = 10.0) -> Any:
        """The next message."""
        assert self.pull is not None
        assert self.pull.poll(int(within * 1000)), "no message came"
        return self.decoder.decode(self.pull.recv_multipart())

    def receive_all(self) -> list[EngineCoreOutputs]:
        """Everything up to the death notice, which is asked for now."""
        self.lane.send_death()
        found = []
        while (message := self.receive()) is not DEAD:
            found.append(message)
        return found

    def events(self) -> list[Event]:
        found = []
        while True:
            try:
                found.append(self.inbox.get_nowait())
            except Empty:
                return found

    def close(self) -> None:
        close(self.push, 0)
        if self.pull is not None:
            close(self.pull, 0)


@pytest.fixture
def directory() -> Iterator[EndpointDirectory]:
    with EndpointDirectory() as directory:
        yield directory


@pytest.fixture
def rig(directory: EndpointDirectory) -> Iterator[Rig]:
    rig = Rig(ipc_endpoint(directory, "out"), limit=1 << 20)
    rig.listen()
    yield rig
    rig.close()


@pytest.fixture
def deaf(directory: EndpointDirectory) -> Iterator[Rig]:
    """A client that does not read; 4 KiB in flight and as much held are allowed."""
    rig = Rig(ipc_endpoint(directory, "out"), limit=4096)
    yield rig
    rig.close()


def deltas(*request_ids: str, token: int = 1, count: int = 1) -> Routed:
    return Routed(C0, EngineCoreOutputs(outputs=[EngineCoreOutput(i, [token] * count) for i in request_ids]))


def ending(request_id: str, reason: FinishReason = LENGTH) -> Routed:
    return Routed(C0, EngineCoreOutputs(outputs=[EngineCoreOutput(request_id, [], finish_reason=reason)]))


def answer(value: Any) -> Routed:
    return Routed(C0, EngineCoreOutputs(utility_output=UtilityOutput(7, None, [None, value])), method="look")


def awkward(request_id: str, finish: FinishReason | None = None) -> EngineCoreOutput:
    return EngineCoreOutput(request_id, [1], finish_reason=finish, kv_transfer_params={"awkward": object()})


def streams(messages: list[EngineCoreOutputs]) -> tuple[dict[str, list[int]], dict[str, list[FinishReason]]]:
    """Tokens and final outputs of each request; fails if anything follows a final output."""
    tokens: dict[str, list[int]] = {}
    ends: dict[str, list[FinishReason]] = {}
    for message in messages:
        for output in message.outputs:
            assert output.request_id not in ends, "something follows a final output"
            tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
            if output.finish_reason is not None:
                ends.setdefault(output.request_id, []).append(output.finish_reason)
    return tokens, ends


# A client that reads


def test_what_is_sent_arrives(rig: Rig) -> None:
    for token in range(50):
        rig.lane.send(deltas("a", "b", token=token))
    rig.lane.send(ending("a"))
    tokens, ends = streams(rig.receive_all())
    assert tokens["a"] == tokens["b"] == list(range(50))
    assert ends == {"a": [LENGTH]}
    assert not rig.lane.holding and rig.events() == []
    assert len(rig.pool) <= 2


def test_the_layout_follows_what_the_client_turns_out_to_be(rig: Rig) -> None:
    def failed() -> Routed:
        output = EngineCoreOutput("a", [], finish_reason=ERROR, error=OutputError("c", "m"))
        return Routed(C0, EngineCoreOutputs(outputs=[output]))

    rig.lane.send(failed())
    assert rig.receive().outputs[0].error is None, "the safe layout has no room for it"
    rig.peers.learn(C0, 22)
    rig.decoder = OutputDecoder("0.33")
    rig.lane.send(failed())
    assert rig.receive().outputs[0].error == OutputError("c", "m")


def test_the_last_word_comes_last(rig: Rig) -> None:
    rig.lane.send(deltas("a"))
    rig.lane.send_death()
    assert rig.receive().outputs[0].request_id == "a"
    assert rig.receive() is DEAD


# What cannot be encoded


def test_an_output_that_cannot_be_sent_ends_its_request_alone(rig: Rig) -> None:
    routed = Routed(
        C0,
        EngineCoreOutputs(outputs=[EngineCoreOutput("a", [1]), awkward("b"), EngineCoreOutput("c", [3])]),
    )
    rig.lane.send(routed)
    assert rig.events() == [GivenUp(C0, ["b"])]
    tokens, ends = streams(rig.receive_all())
    assert tokens == {"a": [1], "b": [], "c": [3]} and ends == {"b": [ERROR]}


def test_it_says_why(rig: Rig) -> None:
    rig.peers.learn(C0, 22)
    rig.decoder = OutputDecoder("0.33")
    rig.lane.send(Routed(C0, EngineCoreOutputs(outputs=[awkward("b")])))
    error = rig.receive().outputs[0].error
    assert error is not None and error.code == "request_failed"
    assert "its output cannot be sent" in error.message and "object" in error.message


def test_nothing_follows_until_the_host_has_settled_it(rig: Rig) -> None:
    rig.lane.send(Routed(C0, EngineCoreOutputs(outputs=[awkward("b")])))
    rig.lane.send(deltas("a", "b"))  # the engine went on meanwhile
    rig.lane.send(ending("b"))
    assert rig.events() == [GivenUp(C0, ["b"])], "asked once"
    rig.lane.send(Routed(C0, EngineCoreOutputs(), settled=["b"]))
    tokens, ends = streams(rig.receive_all())
    assert tokens == {"a": [1], "b": []} and ends == {"b": [ERROR]}


def test_then_its_id_may_come_again(rig: Rig) -> None:
    rig.lane.send(Routed(C0, EngineCoreOutputs(outputs=[awkward("b")])))
    rig.lane.send(Routed(C0, EngineCoreOutputs(), settled=["b"]))
    rig.lane.send(deltas("b", token=5))
    received = [o.new_token_ids for m in rig.receive_all() for o in m.outputs]
    assert received == [[], [5]]


def test_a_rejection_passes_even_before_that(rig: Rig) -> None:
    harness = StepHarness(Scripted())
    rig.lane.send(Routed(C0, EngineCoreOutputs(outputs=[awkward("b")])))
    rig.lane.send(harness.host.rejection(C0, "b", ValueError("again, and wrong")))
    assert [o.finish_reason for m in rig.receive_all() for o in m.outputs] == [ERROR, ERROR]


def test_a_final_output_that_cannot_be_sent_is_replaced(rig: Rig) -> None:
    rig.lane.send(Routed(C0, EngineCoreOutputs(outputs=[awkward("b", LENGTH)])))
    assert rig.events() == [], "the engine has ended it already"
    rig.lane.send(deltas("b", token=5))
    assert [(o.new_token_ids, o.finish_reason) for m in rig.receive_all() for o in m.outputs] == [
        ([], ERROR),
        ([5], None),
    ]


@pytest.mark.parametrize(("add_length", "told"), [(20, None), (21, None), (22, True)])
def test_waking_is_answered_as_the_peer_reads_it(rig: Rig, add_length: int, told: bool | None) -> None:
    rig.peers.learn(C0, add_length)
    rig.lane.send(Routed(C0, EngineCoreOutputs(utility_output=UtilityOutput(7, None, [None, True])), method="wake_up"))
    assert rig.receive().utility_output.result == [None, told]
    rig.lane.send(Routed(C0, EngineCoreOutputs(utility_output=UtilityOutput(8, "no", None)), method="wake_up"))
    failed = rig.receive().utility_output
    assert (failed.failure_message, failed.result) == ("no", None)


@pytest.mark.parametrize("value", [object(), threading.Lock(), 2**70, int], ids=["object", "lock", "big", "type"])
def test_an_answer_that_cannot_be_sent_is_answered_so(rig: Rig, value: Any) -> None:
    rig.lane.send(answer(value))
    got = rig.receive().utility_output
    assert got.call_id == 7 and got.result is None
    assert got.failure_message.startswith("Call to look method failed: ")


def test_what_is_larger_than_the_client_takes_is_not_sent(rig: Rig) -> None:
    """Its socket would drop the connection, and with it whatever else is on the way."""
    rig.lane.send(answer("x" * (2 << 20)))
    large = EngineCoreOutput("large", [1], kv_transfer_params={"text": "x" * (2 << 20)})
    rig.lane.send(Routed(C0, EngineCoreOutputs(outputs=[large, EngineCoreOutput("other", [5])])))
    answered, *messages = rig.receive_all()
    assert "Call to look method failed: its message has a part of 2097" in answered.utility_output.failure_message
    tokens, ends = streams(messages)
    assert (tokens, ends) == ({"large": [], "other": [5]}, {"large": [ERROR]})
    assert rig.events() == [GivenUp(C0, ["large"], False)]


def test_statistics_that_cannot_be_sent_cost_nothing_else(rig: Rig) -> None:
    routed = deltas("a", "b")
    routed.message.scheduler_stats = SchedulerStats(perf_stats={"awkward": object()})
    rig.lane.send(routed)
    rig.lane.send(Routed(C0, EngineCoreOutputs(scheduler_stats=SchedulerStats(perf_stats={"awkward": object()}))))
    tokens, _ = streams(rig.receive_all())
    assert tokens == {"a": [1], "b": [1]}


# A client that does not read


def fill(rig: Rig) -> int:
    """Send until the lane holds; how many tokens went to request a."""
    sent = 0
    while not rig.lane.holding:
        rig.lane.send(deltas("a", token=sent))
        sent += 1
        assert sent < 10_000
    return sent


def test_over_the_limit_messages_are_held_and_merged(deaf: Rig) -> None:
    sent = fill(deaf)
    for token in range(sent, sent + 50):
        deaf.lane.send(deltas("a", token=token))
    deaf.lane.send(answer("now"))
    in_flight = deaf.in_flight.bytes_in_flight(deaf.push)
    deaf.lane.relieve()
    assert deaf.lane.holding and deaf.in_flight.bytes_in_flight(deaf.push) == in_flight, "nothing more is sent"
    deaf.listen()
    until(lambda: deaf.lane.relieve() or not deaf.lane.holding)
    messages = deaf.receive_all()
    tokens, _ = streams(messages)
    assert tokens["a"] == list(range(sent + 50))
    assert len(messages) <= sent + 2, "what was held came as one"
    assert sum(m.utility_output is not None for m in messages) == 1
    assert deaf.events() == []


def test_the_last_word_brings_what_was_held(deaf: Rig) -> None:
    sent = fill(deaf)
    deaf.lane.send(ending("a"))
    deaf.lane.send_death()
    deaf.listen()
    messages = []
    while (message := deaf.receive()) is not DEAD:
        messages.append(message)
    tokens, ends = streams(messages)
    assert tokens["a"] == list(range(sent)) and ends == {"a": [LENGTH]}


def test_far_over_the_limit_its_requests_are_given_up_each_with_one_end(deaf: Rig) -> None:
    """With a real host: some requests are held when it happens, one has ended, one says nothing until then."""
    harness = StepHarness(Scripted())
    for index, limit in enumerate((100_000, 100_000, 30, 100_000)):
        harness.submit(generate_request(f"r{index}", (index,), max_tokens=limit))
    given_up: list[GivenUp] = []
    late = 5  # steps that the engine does before it hears of it
    for _ in range(100_000):
        for routed in harness.host.step()[0]:
            deaf.lane.send(routed)
        given_up += [event for event in deaf.events() if isinstance(event, GivenUp)]
        late -= bool(given_up)
        if late == 0:
            break
    assert [event.everything for event in given_up] == [True]
    assert deaf.ignored == [True], "it is not read from any more"
    harness.submit(generate_request("young", (9,)))
    for routed in harness.host.apply(given_up[0]):
        deaf.lane.send(routed)
    assert harness.host.num_live == harness.admission.requests == 0
    harness.submit(generate_request("r0", (7,), max_tokens=2))  # the id comes again
    deaf.listen()
    until(lambda: deaf.lane.relieve() or not deaf.lane.holding)
    assert deaf.ignored == [True, False]
    while harness.host.has_work():
        for routed in harness.host.step()[0]:
            deaf.lane.send(routed)
    messages = deaf.receive_all()
    ends: dict[str, list[FinishReason]] = {}
    for message in messages:
        for output in message.outputs:
            if output.finish_reason is not None:
                ends.setdefault(output.request_id, []).append(output.finish_reason)
    assert ends == {"r0": [ABORT, LENGTH], "r1": [ABORT], "r2": [LENGTH], "r3": [ABORT], "young": [ABORT]}
    r0 = [o.new_token_ids for m in messages for o in m.outputs if o.request_id == "r0"]
    assert r0[-2:] == [[7], [7]], "the second request of that id has its own tokens"


def test_far_over_the_limit_the_answers_that_wait_are_lost_each_with_word_of_it(deaf: Rig) -> None:
    fill(deaf)
    for call_id in range(10):
        parts = EngineCoreOutputs(utility_output=UtilityOutput(call_id, None, [None, {"text": ["x" * 1000]}]))
        deaf.lane.send(Routed(C0, parts, method="look"))
    assert deaf.ignored == [True]
    deaf.listen()
    until(lambda: deaf.lane.relieve() or not deaf.lane.holding)
    answers = [m.utility_output for m in deaf.receive_all() if m.utility_output is not None]
    assert [answer.call_id for answer in answers] == list(range(10))
    lost = [answer for answer in answers if answer.failure_message is not None]
    assert len(lost) >= 4 and all("did not read" in answer.failure_message for answer in lost)
    assert all(answer.result is None for answer in lost)
