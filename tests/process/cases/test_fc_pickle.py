"""FC-53: bytes from a socket are never run. Payloads that would leave a mark come in at every door, in every place."""

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from muro import SyncMPClient, connect
from muro.errors import MuroError
from muro.transport.sockets import Frame, bound_address, close, connect_dealer, connect_push, send_nowait
from tests.support.asking import FOREVER, ask
from tests.support.deadline import until
from tests.support.hosted import hosted
from tests.support.rawpeer import ABORT, ADD, IDENTITY, UTILITY, WAVE, RawClient, failed, pack, raw_peer

pytestmark = pytest.mark.cases

EXTENSIONS = (1, 2, 3)
"""vLLM's codes for a pickle, a cloudpickle and a raw view."""


class Mark:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self._path,)


@pytest.fixture
def payloads(tmp_path: Path) -> Iterator[list[bytes]]:
    """Pickles in all their forms; none of them may have run when the test is over."""
    mark = tmp_path / "ran"
    made = [pickle.dumps(Mark(mark), protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    pickle.loads(made[0])
    assert mark.exists(), "it would be seen"
    mark.unlink()
    yield made
    assert not mark.exists(), "bytes from a socket were run"


def in_every_place(message: Sequence[bytes], payload: bytes) -> Iterator[list[bytes]]:
    """The message with each of its frames replaced in turn, and the payload alone."""
    yield [payload]
    for place in range(len(message)):
        yield [*message[:place], payload, *message[place + 1 :]]


def extensions(payload: bytes) -> list[msgspec.msgpack.Ext]:
    return [msgspec.msgpack.Ext(code, payload) for code in EXTENSIONS]


def streaming(client: RawClient) -> bool:
    """Whether the stream goes on, with its own tokens."""
    seen = len(client.tokens["stream"])
    client.read_until(lambda: len(client.tokens["stream"]) > seen)
    return set(client.tokens["stream"]) == {5} and "stream" not in client.ended


def test_fc53_at_the_engines_input(payloads: list[bytes]) -> None:
    with raw_peer("faulty", step_ms=1) as peer:
        (client,) = peer.clients
        client.add(ask("stream", FOREVER, [5]))
        client.read_until(lambda: client.tokens.get("stream"))
        dropped = 0
        for payload in payloads:
            for kind in (ADD, ABORT, WAVE, UTILITY):
                for frames in in_every_place([kind, b""], payload):
                    client.send(*frames)
                    dropped += 1
        until(lambda: peer.child.progress().dropped_frames == dropped, what=f"{dropped} dropped messages")
        assert streaming(client)


def test_fc53_inside_requests_and_calls(payloads: list[bytes]) -> None:
    """As an extension, where other implementations put pickles: who sent it hears that it is refused."""
    with raw_peer("faulty", step_ms=1) as peer:
        (client,) = peer.clients
        client.add(ask("stream", FOREVER, [5]))
        client.read_until(lambda: client.tokens.get("stream"))
        for number, extension in enumerate(item for payload in payloads for item in extensions(payload)):
            name = f"r{number}"
            for place, more in (("extra_args", {"extra_args": {"a": extension}}), ("seed", {"seed": extension})):
                client.send(ADD, pack([f"{name}{place}", [1], None, {"max_tokens": 3, **more}]))
                (ended,) = client.finish(f"{name}{place}")
                assert failed(ended) or (place == "extra_args" and extension.code == 3)
            client.send(ADD, pack([f"{name}embeds", None, None, {}, None, 0.0, None, None, None, extension]))
            assert failed(client.finish(f"{name}embeds")[0])
            client.send(UTILITY, pack([0, number, "inject", [extension]]))
            assert client.answer(number).failure_message
        assert streaming(client)


@pytest.mark.parametrize("place", [0, 1])
def test_fc53_instead_of_init(payloads: list[bytes], place: int) -> None:
    """The engine does not start, and says what it has got."""
    for payload in payloads:
        with hosted() as front:
            front.greet()
            assert send_nowait(front.handshake, [IDENTITY, *[b""] * place, payload])
            assert isinstance(front.ended(), MuroError)


def test_fc53_at_the_clients_doors(payloads: list[bytes]) -> None:
    with connect(engine="faulty", options={"step_ms": 1}) as client:
        stream = client.generate(ask("stream", FOREVER, [5]))
        next(stream)
        sent = push_to_outputs(client, payloads)
        until(lambda: next(stream).new_token_ids == [5] and client._link.dropped_messages >= sent)
        assert client._link.dropped_messages == sent
        knock(bound_address(client._link._doors.inputs), payloads)
        knock(client._link._doors.handshake_address, payloads)
        assert [next(stream).new_token_ids for _ in range(20)] == [[5]] * 20
        assert client.call("num_live") == 1
        stream.close()
        assert [t for o in client.generate(ask("next")) for t in o.new_token_ids] == [7, 8, 9]


def push_to_outputs(client: SyncMPClient, payloads: list[bytes]) -> int:
    """Send what is no output to the socket for outputs; gives how many messages."""
    messages: list[list[Frame]] = []
    for payload in payloads:
        messages += in_every_place([pack([0, [], None, 0.0, None])], payload)
        messages += [[payload, payload]]
        for extension in extensions(payload)[:2]:
            answer = [1, None, [None, extension]]
            messages += [[pack([0, [], None, 0.0, answer])], [pack([0, extension])], [pack(extension)]]
    door = connect_push(bound_address(client._link.outputs))
    for frames in messages:
        assert send_nowait(door, frames)
    close(door)
    return len(messages)


def knock(address: str, payloads: list[bytes]) -> None:
    """Send to a ROUTER, as a stranger."""
    door = connect_dealer(address, b"stranger")
    for payload in payloads:
        for frames in in_every_place([b"", b""], payload):
            assert send_nowait(door, frames)
    close(door, 1000)
