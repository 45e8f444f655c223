"""What clients are sent, through real sockets: the layout of each, whole buffers, nobody waiting for a slow one."""

import logging
from collections.abc import Iterator
from queue import Empty
from typing import Any

import msgspec
import pytest

from muro.config import Limits
from muro.engine.events import ExecutorFailed, Routed
from muro.engine.interface import EngineCore, Report, operation
from muro.errors import InternalError
from muro.ids import COORDINATOR, ClientIndex
from muro.process import receiver as receiver_file
from muro.process import sender as sender_file
from muro.process.attention import Attention
from muro.process.peers import PeerLayouts
from muro.process.queues import Control, InputQueue, OutputQueue
from muro.process.sender import Sender
from muro.testing.paced import PacedEngine, PacedOptions
from muro.transport.endpoint import EndpointDirectory, ipc_endpoint
from muro.transport.inflight import BufferPool
from muro.transport.sockets import Socket, bind_pull, close
from muro.wire.arrays import Tensor
from muro.wire.codec import DEAD, OutputDecoder
from muro.wire.handshake import Addresses, Features
from muro.wire.output import EngineCoreOutput, EngineCoreOutputs, FinishReason, Logprobs
from muro.wire.releases import NEWEST
from muro.wire.stats import PrefillStats
from tests.support.asking import FOREVER, ask
from tests.support.deadline import until
from tests.support.hosted import hosted, receive
from tests.support.rawpeer import UTILITY, RawClient, add_frames, pack
from tests.support.scripted import Scripted

C0, C1 = ClientIndex(0), ClientIndex(1)
LARGE = 300_000
"""Tokens: an output with so many is sent from where it was encoded, without a copy."""


class Detailed(Scripted):
    """Says with every output how the prompt was filled in, which not every release can read."""

    def step(self, take_aborts: Any) -> Any:
        result = super().step(take_aborts)
        for output in result.outputs:
            output.prefill_stats = PrefillStats(num_prompt_tokens=3)
        return result


def detailed(report: Report) -> EngineCore:
    return Detailed()


class Describing(Scripted):
    """Has an operation with a longer answer."""

    described = 0

    @operation
    def describe(self) -> str:
        self.described += 1
        return "x" * 1000


class Listener:
    """Notes the lengths of the arrays that a client is sent."""

    def __init__(self, client: RawClient) -> None:
        self._client = client
        self._client._pump.add(client.output, self._take)
        self.envelopes: set[int] = set()
        self.outputs: set[int] = set()
        self.ended = False

    def listen(self) -> None:
        self._client.read_until(lambda: self.ended)

    def _take(self) -> None:
        message = msgspec.msgpack.decode(self._client.output.recv_multipart()[0])
        self.envelopes.add(len(message))
        for output in message[1]:
            self.outputs.add(len(output))
            self.ended = self.ended or (len(output) > 5 and output[5] is not None)


def ask_as(client: RawClient, length: int) -> None:
    """An ADD of so many positions."""
    request = ask("r")
    request.client_index = client.index
    client.send(*add_frames(request, {} if length == 20 else {length - 1: None}))


def test_each_client_is_written_to_in_its_own_layout() -> None:
    with hosted(detailed, clients=2) as engine:
        engine.join()
        old, new = map(Listener, engine.clients)
        for client, length in zip(engine.clients, (20, 22), strict=True):
            ask_as(client, length)
        old.listen()
        new.listen()
    assert max(old.outputs) <= 9, "positions after the ninth mean other things in 0.25 than in 0.27"
    assert old.envelopes == {8} and new.envelopes == {8}
    assert new.outputs == {14}, "with prefill statistics, and what comes later only if it is set"


@pytest.mark.parametrize(("release", "length", "envelope"), [("0.25.1", 13, 8), ("0.27", 14, 8), ("0.33", 19, 9)])
def test_the_operator_says_what_the_peer_reads(release: str, length: int, envelope: int) -> None:
    with hosted(detailed, peer_release=release) as engine:
        engine.join()
        heard = Listener(engine.clients[0])
        ask_as(engine.clients[0], 20)
        heard.listen()
    assert heard.outputs == {length}
    assert heard.envelopes == {envelope}


def test_our_own_front_end_is_written_to_in_the_newest_layout() -> None:
    with hosted(detailed) as engine:
        engine.join(Features("1"))
        heard = Listener(engine.clients[0])
        ask_as(engine.clients[0], 20)
        heard.listen()
    assert heard.envelopes == {NEWEST.envelope_fields} == {9}
    assert heard.outputs == {len(NEWEST.output_fields)} == {19}


def test_a_client_that_does_not_read_is_still_heard_and_delays_nobody() -> None:
    """Input and output never block each other: the deaf client's aborts go through."""
    core = PacedEngine(PacedOptions(step_ms=1))
    with hosted(lambda report: core, clients=2, limits=Limits(max_bytes_in_flight=64 << 10)) as engine:
        deaf, other = engine.clients
        engine.greet()
        unheard = f"{engine.addresses.outputs[0]}-nobody"
        engine.init(outputs=[unheard, engine.addresses.outputs[1]])
        engine.ready_responses()
        engine.ready()
        deaf.add(*(ask(f"d{number}", FOREVER, [number] * 8) for number in range(20)))
        other.add(ask("first", 200))
        assert other.finish("first")[0].finish_reason is FinishReason.LENGTH
        assert engine.page.read().running == 20
        deaf.abort([f"d{number}" for number in range(20)])
        until(lambda: engine.page.read().running == 0 and not core.has_work())
        other.add(ask("second", 2))
        assert other.finish("second")[0].finish_reason is FinishReason.LENGTH
        pull = bind_pull(unheard)
        receive(pull)  # now that somebody listens the engine need not linger
    assert engine.ended() is None
    close(pull, 0)


def test_from_a_client_that_does_not_read_nothing_is_taken_until_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It goes on asking; what it asks stays with it, so the engine holds no more than the limit for it."""
    monkeypatch.setattr(receiver_file, "MESSAGES_WAITING", 100)
    calls, core = 20_000, Describing()
    limits = Limits(max_bytes_in_flight=64 << 10)
    with hosted(lambda report: core, clients=2, limits=limits) as engine:
        deaf, other = engine.clients
        engine.greet()
        engine.init(outputs=[f"{engine.addresses.outputs[0]}-later", engine.addresses.outputs[1]])
        engine.ready_responses()
        engine.ready()
        for call_id in range(calls):
            deaf.send(UTILITY, pack([0, call_id, "describe", []]))
        seen = -1
        while seen != core.described:  # as long as it still takes some
            seen = core.described
            other.add(ask("beside", 20))
            assert other.finish("beside")[0].finish_reason is FinishReason.LENGTH
            other.forget("beside")
        assert core.described < calls / 2
        pull = bind_pull(f"{engine.addresses.outputs[0]}-later")
        decoder = OutputDecoder("0.25")
        answers: dict[int, str | None] = {}
        while len(answers) < calls:
            message = decoder.decode(list(receive(pull)))
            assert isinstance(message, EngineCoreOutputs)
            if message.utility_output is None:  # statistics
                continue
            assert message.utility_output.call_id not in answers
            answers[message.utility_output.call_id] = message.utility_output.failure_message
        assert sorted(answers) == list(range(calls)) and core.described == calls
        assert answers[calls - 1] is None, "once it reads it is served as everybody else"
    assert engine.ended() is None
    close(pull, 0)


class Rig:
    """A sender for two clients, the second of which listens from the beginning."""

    def __init__(self, directory: EndpointDirectory, limits: Limits | None = None) -> None:
        self.addresses = [ipc_endpoint(directory, f"out-{index}") for index in range(2)]
        self.inbox = InputQueue()
        self.outbox: OutputQueue = OutputQueue()
        self.sender = Sender(
            addresses=Addresses(["ipc:///unused"] * 2, self.addresses),
            peers=PeerLayouts(2, "0.33", ours=False),
            inbox=self.inbox,
            outbox=self.outbox,
            attention=Attention(2),
            limits=limits or Limits(),
        )
        self.pulls: dict[ClientIndex, Socket] = {}
        self.decoder = OutputDecoder("0.33")
        self.listen(C1)
        self.sender.start()

    def listen(self, client: ClientIndex) -> None:
        self.pulls[client] = bind_pull(self.addresses[client])

    def receive(self, client: ClientIndex) -> Any:
        return self.decoder.decode(list(receive(self.pulls[client])))

    def close(self) -> None:
        self.outbox.put(Control.END)
        assert self.sender.join(20)
        for pull in self.pulls.values():
            close(pull, 0)


@pytest.fixture
def rig() -> Iterator[Rig]:
    with EndpointDirectory() as directory:
        rig = Rig(directory)
        yield rig
        rig.close()


def large(client: ClientIndex, number: int) -> Routed:
    """An output whose tokens, and whose log-probabilities beside it, say which one it is."""
    ids = Tensor("<i8", [LARGE, 1], number.to_bytes(8, "little") * LARGE)
    ranks = Tensor("<i8", [LARGE], ids.data)
    logprobs = Logprobs(ids, Tensor("<f4", [LARGE, 1], bytes([number]) * 4 * LARGE), ranks)
    output = EngineCoreOutput(f"r{number}", [number] * LARGE, new_logprobs=logprobs)
    return Routed(client, EngineCoreOutputs(outputs=[output]))


def assert_whole(message: Any, number: int) -> None:
    (output,) = message.outputs
    assert output.request_id == f"r{number}"
    assert output.new_token_ids == [number] * LARGE
    assert output.new_logprobs == large(C0, number).message.outputs[0].new_logprobs


def test_a_buffer_is_not_reused_before_it_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """One client listens only after the other has got everything: its messages must still be what they were."""
    lent: set[int] = set()
    most_kept = 0

    class Watched(BufferPool):
        def take(self) -> bytearray:
            buffer = super().take()
            assert id(buffer) not in lent, "lent out twice"
            lent.add(id(buffer))
            return buffer

        def give(self, buffer: bytearray) -> None:
            nonlocal most_kept
            lent.discard(id(buffer))
            super().give(buffer)
            most_kept = max(most_kept, len(self))

    monkeypatch.setattr(sender_file, "BufferPool", Watched)
    with EndpointDirectory() as directory:
        rig = Rig(directory)
        for number in range(1, 13):
            rig.outbox.put([large(C0, number), large(C1, number)])
        for number in range(1, 13):
            assert_whole(rig.receive(C1), number)
        rig.listen(C0)
        for number in range(1, 13):
            assert_whole(rig.receive(C0), number)
        until(lambda: not lent, what="every buffer comes back")
        rig.close()
    assert 0 < most_kept <= 3, "as many buffers as sockets, and one"


def test_the_death_notice_is_the_last_word_to_everybody(rig: Rig) -> None:
    rig.listen(C0)
    for number in range(20):
        output = EngineCoreOutput(f"r{number}", [number])
        rig.outbox.put([Routed(client, EngineCoreOutputs(outputs=[output])) for client in (C0, C1)])
    rig.outbox.put(Control.DEAD)
    for client in (C0, C1):
        assert [rig.receive(client).outputs[0].new_token_ids for _ in range(20)] == [[n] for n in range(20)]
        assert rig.receive(client) is DEAD
    assert rig.sender.join(20) and not rig.sender.alive


def test_what_is_for_a_coordinator_that_does_not_exist_goes_nowhere(rig: Rig) -> None:
    rig.outbox.put([Routed(COORDINATOR, EngineCoreOutputs(wave_complete=1))])
    rig.outbox.put([Routed(C1, EngineCoreOutputs(outputs=[EngineCoreOutput("r", [1])]))])
    assert rig.receive(C1).outputs[0].request_id == "r"


def test_the_loop_hears_of_a_sender_that_dies(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    nobody = ClientIndex(7)
    rig.outbox.put([Routed(nobody, EngineCoreOutputs(outputs=[EngineCoreOutput("r", [1])]))])
    event = rig.inbox.get(timeout=20)
    assert isinstance(event, ExecutorFailed) and isinstance(event.cause, InternalError)
    assert "the output thread died: IndexError" in str(event.cause)
    assert rig.sender.join(20)
    with pytest.raises(Empty):
        rig.inbox.get_nowait()


def test_what_is_sent_at_once_keeps_its_place_among_what_was_queued(rig: Rig) -> None:
    """Whoever writes alternates at random; nothing overtakes, and both ways are really used."""
    at_once = 0
    for number in range(3000):
        routed = [Routed(C1, EngineCoreOutputs(outputs=[EngineCoreOutput("r", [number])]))]
        if number % 3 and rig.sender.send_now(routed):
            at_once += 1
        else:
            rig.outbox.put(routed)
        if number % 97 == 0:
            until(lambda: not len(rig.outbox), what="the sender has caught up")
    assert [rig.receive(C1).outputs[0].new_token_ids for _ in range(3000)] == [[n] for n in range(3000)]
    assert 0 < at_once < 2000


def test_what_was_sent_at_once_is_looked_after_by_the_sender() -> None:
    """A client that reads late gets what was held for it, although nothing more is put into the queue."""
    with EndpointDirectory() as directory:
        rig = Rig(directory, Limits(max_bytes_in_flight=64 << 10))
        until(lambda: rig.sender.send_now([]), what="the sender stands")
        for number in range(70):  # of 1 KB each: 64 KB are on their way, and the rest is held
            output = EngineCoreOutput("r", [number] * 1000)
            while not rig.sender.send_now([Routed(C0, EngineCoreOutputs(outputs=[output]))]):
                pass
        rig.listen(C0)
        tokens: list[int] = []
        while len(tokens) < 70_000:
            tokens += rig.receive(C0).outputs[0].new_token_ids
        rig.close()
    assert tokens == [number for number in range(70) for _ in range(1000)]


def test_nothing_is_sent_at_once_by_a_sender_that_has_ended(rig: Rig) -> None:
    until(lambda: rig.sender.send_now([]), what="the sender stands")
    rig.outbox.put(Control.END)
    assert rig.sender.join(20)
    assert not rig.sender.send_now([Routed(C1, EngineCoreOutputs(outputs=[EngineCoreOutput("r", [1])]))])
