"""What clients send, through real sockets: whose it is, what is answered, what a wrong message costs."""

import threading
from collections.abc import Iterator
from functools import partial

import pytest

from muro.config import Limits
from muro.engine.interface import EngineCore
from muro.process.receiver import Receiver
from muro.wire.codec import RequestEncoder
from muro.wire.output import FinishReason
from muro.wire.request import EngineCoreRequest
from tests.support.asking import FOREVER, ask
from tests.support.deadline import until
from tests.support.hosted import Hosted, hosted, is_silent
from tests.support.rawpeer import ABORT, ADD, UTILITY, RawClient, add_frames, failed, pack
from tests.support.scripted import Scripted

LENGTH = FinishReason.LENGTH
CLIENT_INDEX = EngineCoreRequest.__struct_fields__.index("client_index")


class Refusing(Scripted):
    """Refuses one prompt in its preprocessing, which happens on the input thread."""

    def __init__(self) -> None:
        super().__init__()
        self.preprocessed_by: set[str] = set()

    def preprocess(self, request: EngineCoreRequest) -> EngineCoreRequest:
        self.preprocessed_by.add(threading.current_thread().name)
        if request.prompt_token_ids == [13]:
            raise ValueError("thirteen")
        return request


@pytest.fixture
def core() -> Refusing:
    return Refusing()


@pytest.fixture
def engine(core: Refusing) -> Iterator[Hosted]:
    def load(report: object) -> EngineCore:
        return core

    with hosted(load, clients=2, limits=Limits(max_message_bytes=1 << 20)) as engine:
        engine.join()
        yield engine
    assert engine.ended() is None, "no message ends an engine"


def test_each_client_gets_its_own(engine: Hosted) -> None:
    first, second = engine.clients
    first.add(ask("same", 4, [1, 2]))
    second.add(ask("same", 4, [8, 9]))
    first.finish("same")
    second.finish("same")
    assert first.tokens["same"] == [1, 2, 1, 2] and second.tokens["same"] == [8, 9, 8, 9]
    assert first.call("is_sleeping").failure_message is None
    second.read_all()
    assert not second.answers


def test_the_request_says_who_reads_the_answer_and_its_sender_may_abort_it(engine: Hosted, core: Refusing) -> None:
    first, second = engine.clients
    request = ask("r", FOREVER)
    request.client_index = 1
    first.send(*RequestEncoder().add(request))
    second.read_until(lambda: second.tokens.get("r"))
    second.abort(["r"])
    second.call("is_sleeping")
    assert core.held, "an ABORT names no client, so it speaks for the socket that it came from"
    first.abort(["r"])
    until(lambda: not core.held)
    first.read_all()
    assert "r" not in first.tokens


@pytest.mark.parametrize("index", [2, -1, 2**40])
def test_a_client_that_does_not_exist(engine: Hosted, index: int) -> None:
    """Its error goes back to where it came from."""
    (_, sender) = engine.clients
    sender.send(*add_frames(ask("r"), {CLIENT_INDEX: index}))
    assert failed(sender.finish("r")[0])


def test_preprocessing_is_done_by_the_input_thread_and_its_error_ends_one_request(
    engine: Hosted, core: Refusing
) -> None:
    (client, _) = engine.clients
    client.add(ask("good", 50), ask("bad", 5, [13]), ask("later", 2))
    assert failed(client.finish("bad")[0])
    assert [output.finish_reason for output in client.finish("good", "later")] == [LENGTH, LENGTH]
    assert core.preprocessed_by == {"muro-receiver"}
    assert "bad" not in core.added


def test_what_can_be_read_half_is_answered_and_the_rest_counted(engine: Hosted) -> None:
    (client, other) = engine.clients
    other.add(ask("bystander", FOREVER))
    client.send(*add_frames(ask("half"), {"temperature": "hot"}))
    assert failed(client.finish("half")[0])
    client.send(UTILITY, pack([0, 77, "is_sleeping"]))  # the arguments are missing
    assert client.answer(77).failure_message
    unreadable = [
        (b"",),
        (b"\x04", b""),
        (b"\x63",),
        (ADD,),
        (ADD, b"\xc1"),
        (ADD, pack({"request_id": "r"})),
        (ABORT, pack("r")),
        (ABORT, pack([1, 2])),
        (b"\x02", pack(["wave"])),
    ]
    for frames in unreadable:
        client.send(*frames)
    until(lambda: engine.page.read().dropped_frames == len(unreadable))
    client.add(ask("after"))
    assert client.finish("after")[0].finish_reason is LENGTH
    other.read_all()
    assert "bystander" not in other.ended


def test_a_request_over_the_limit_of_bytes_is_refused(engine: Hosted) -> None:
    (client, _) = engine.clients
    client.add(ask("long", 1, [200_000] * (1 << 18)))
    assert failed(client.finish("long")[0])
    client.add(ask("short"))
    assert client.finish("short")[0].finish_reason is LENGTH


def test_aborting_is_idempotent(engine: Hosted, core: Refusing) -> None:
    """What is unknown, ended or named twice does no harm."""
    (client, _) = engine.clients
    client.add(ask("r", FOREVER), ask("rest", FOREVER))
    client.read_until(lambda: client.tokens.get("r"))
    client.abort(["r", "r", "nobody"])
    client.abort(["r"])
    until(lambda: len(core.held) == 1)
    client.call("is_sleeping")
    assert "r" not in client.ended, "an ABORT of its own is not answered"
    client.add(ask("r", 2))
    assert client.finish("r")[0].finish_reason is LENGTH


def test_what_has_arrived_when_the_engine_stops_is_answered() -> None:
    """The input thread is busy with one request while the rest comes and the loop ends."""
    entered, may_go_on = threading.Event(), threading.Event()

    class Slow(Scripted):
        def preprocess(self, request: EngineCoreRequest) -> EngineCoreRequest:
            entered.set()
            assert may_go_on.wait(20)
            return request

    with hosted(lambda report: Slow()) as engine:
        engine.join()
        (client,) = engine.clients
        client.add(ask("first"))
        assert entered.wait(20)
        client.add(*(ask(f"r{number}") for number in range(50)))
        assert is_silent(client.output, 50), "meanwhile all of it arrives"
        engine.proc.ask_to_stop()
        until(lambda: engine.page.read().phase == "stopping")
        may_go_on.set()
        ends = client.finish("first", *(f"r{number}" for number in range(50)))
        assert {output.finish_reason for output in ends} == {FinishReason.ABORT}
    assert engine.ended() is None


def test_stopping_twice_does_nothing() -> None:
    with hosted() as engine:
        engine.join()
        receiver = engine.proc._receiver
        assert isinstance(receiver, Receiver) and receiver.alive
        receiver.stop()
        receiver.stop()
        assert receiver.failure is None
    assert engine.ended() is None


def test_the_requests_of_a_front_end_that_has_gone_end_and_its_successor_is_served(
    engine: Hosted, core: Refusing
) -> None:
    """At the same addresses, without another greeting; what the old one had still sent ends, too."""
    stays, goes = engine.clients
    stays.add(ask("mine", FOREVER))
    goes.add(*(ask(f"r{n}", FOREVER) for n in range(20)))
    until(lambda: len(core.held) == 21)
    for generation in range(1, 4):
        goes.add(*(ask(f"late{generation}-{n}", FOREVER) for n in range(50)))
        goes.close()
        until(lambda: set(core.held) == {"mine"}, what="nobody is worked for who has gone")
        goes = engine.clients[1] = RawClient(1, goes.directory)
        until(partial(goes.reaches, ["nobody"]), what="the engine has dialled again")
        goes.add(ask(f"short{generation}", 3, [1, 2]), *(ask(f"r{generation}-{n}", FOREVER) for n in range(20)))
        goes.finish(f"short{generation}")
        assert goes.tokens[f"short{generation}"] == [1, 2, 1]
        until(lambda: len(core.held) == 21)
    stays.read_until(lambda: stays.tokens.get("mine"))
    assert "mine" not in stays.ended
