"""FC-06, FC-07, FC-09, FC-36: one bad request by raw wire costs that request alone; streams beside it go on."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import msgspec
import pytest

from muro.wire.output import FinishReason
from muro.wire.request import EngineCoreRequest
from tests.support.asking import FOREVER, ask, faulty
from tests.support.counts import count
from tests.support.integers import Build, integer_places
from tests.support.rawpeer import ADD, UTILITY, RawClient, RawPeer, add_frames, failed, pack, raw_peer

LENGTH, ERROR = FinishReason.LENGTH, FinishReason.ERROR
POSITION = {name: index for index, name in enumerate(EngineCoreRequest.__struct_fields__)}
PLACES = list(integer_places())

pytestmark = pytest.mark.cases


@pytest.fixture(scope="module")
def peer() -> Iterator[RawPeer]:
    with raw_peer("faulty", clients=2, max_model_len=50_000) as peer:
        yield peer
        assert peer.child.poll() is None
        assert " ERROR " not in peer.child.log_tail(1000)


@pytest.fixture
def client(peer: RawPeer) -> Iterator[RawClient]:
    """A client whose ids are all free again, and whose engine holds nothing afterwards."""
    client = peer.clients[0]
    yield client
    assert client.call("num_live").result[1] == 0
    assert not client.dead
    for name in list(client.tokens):
        client.forget(name)


def undecodable(client: RawClient) -> None:
    client.send(*add_frames(ask("bad"), {"temperature": "warm"}))


def by_fault(fault: str) -> Callable[[RawClient], None]:
    return lambda client: client.add(faulty("bad", fault))


BAD: dict[str, Callable[[RawClient], None]] = {
    "decoding": undecodable,
    "preparing": by_fault("preprocess:raise"),
    "admission": by_fault("add:raise"),
    "the step, named": by_fault("step:refuse"),
    "its output": by_fault("output:garble"),
}


@pytest.mark.parametrize("where", BAD)
def test_fc06_fc07_a_request_that_raises(client: RawClient, where: str) -> None:
    beside = [f"beside{number}" for number in range(50)]
    client.add(*(ask(name, 60, [number]) for number, name in enumerate(beside)))
    BAD[where](client)
    after = [f"after{number}" for number in range(100)]
    client.add(*(ask(name, 5, [number]) for number, name in enumerate(after)))
    assert failed(client.finish("bad")[0])
    assert {output.finish_reason for output in client.finish(*beside, *after)} == {LENGTH}
    assert [client.tokens[name] for name in beside] == [[number] * 60 for number in range(50)]
    assert [client.tokens[name] for name in after] == [[number] * 5 for number in range(100)]
    assert set(client.endings.values()) == {1}


def test_fc07_a_step_that_names_nobody_is_announced() -> None:
    with raw_peer("faulty") as peer:
        (client,) = peer.clients
        client.add(*(ask(f"r{number}", FOREVER) for number in range(50)), faulty("bad", "step:raise"))
        client.read_until(lambda: client.dead, within=2)
        assert peer.child.wait(5)
        assert "a fault was asked for in step" in str(peer.child.death().dead_error(0, 0))


TOO_LARGE = [2**63, 2**64 - 1, -(2.0**63) * 1.01, 2.0**63, 2.0**64]
"""msgpack cannot say less than -2^63 or more than 2^64-1 in an integer, so such come as floats."""


@pytest.mark.parametrize(("position", "build"), [place[1:] for place in PLACES], ids=[place[0] for place in PLACES])
def test_fc09_an_integer_beyond_64_bits(client: RawClient, position: int, build: Build) -> None:
    for number, value in enumerate(TOO_LARGE):
        changes = {position: build(value)}
        if position == POSITION["sampling_params"]:
            changes = build(value)
        elif position == POSITION["pooling_params"]:
            changes[POSITION["sampling_params"]] = None
        client.send(*add_frames(ask(f"bad{number}"), changes))
        client.add(ask(f"good{number}"))
    bad = client.finish(*(f"bad{number}" for number in range(len(TOO_LARGE))))
    good = client.finish(*(f"good{number}" for number in range(len(TOO_LARGE))))
    assert [output.finish_reason for output in bad] == [ERROR] * len(TOO_LARGE)
    assert [output.finish_reason for output in good] == [LENGTH] * len(TOO_LARGE)


def test_fc09_there_are_many_such_places() -> None:
    names = {name for name, _, _ in PLACES}
    assert {"sampling_params.seed", "sampling_params.logit_bias{}", "priority", "lora_request.lora_int_id"} <= names
    assert len(names) > 30


def test_fc09_integers_of_calls_and_waves(client: RawClient) -> None:
    client.send(UTILITY, pack([0, 11, "give_back", [2**64 - 1]]))
    client.send(UTILITY, pack([0, 12, "sleep", [2**64 - 1]]))
    assert client.answer(11).failure_message and client.answer(12).failure_message
    client.send(UTILITY, pack([2**64 - 1, 2**64 - 1, "num_live", []]))
    assert client.answer(2**64 - 1).result[1] == 0
    for wave in (2**64 - 1, -(2**63), 2.0**70):
        client.send(b"\x02", pack([wave, 0]))


@pytest.mark.parametrize(("megabytes", "stall"), [(10, 0.1), (200, 3.0)])
def test_fc36_an_absurd_prompt_beside_streams(megabytes: int, stall: float) -> None:
    """It is never decoded; but it is copied once, which for 200 MB takes a fifth of a second (decoding: four)."""
    payload = prompt_payload(megabytes << 20)
    with raw_peer("faulty", step_ms=2) as peer:
        (client,) = peer.clients
        client.add(ask("beside", FOREVER))
        longest_without = gap_of(client, "beside", lambda: True)
        client.send(ADD, payload)
        longest = gap_of(client, "beside", lambda: "absurd" in client.ended)
        print(f"\n{megabytes} MB: longest gap {longest * 1000:.1f} ms, before {longest_without * 1000:.1f} ms")
        assert failed(client.ended["absurd"])
        assert longest < longest_without + stall


def test_fc36_one_token_too_many(client: RawClient) -> None:
    client.add(ask("fits", 1, [1] * 49_999), ask("over", 1, [1] * 50_000))
    fits, over = client.finish("fits", "over")
    assert (fits.finish_reason, over.finish_reason) == (LENGTH, ERROR)


def prompt_payload(tokens: int) -> bytes:
    """An ADD of one byte per token, put together by hand: nobody should have to hold such a list."""
    head, _, tail = bytes(add_frames(ask("absurd"), {1: "HERE"})[1]).partition(msgspec.msgpack.encode("HERE"))
    return head + b"\xdd" + tokens.to_bytes(4, "big") + b"\x01" * tokens + tail


def gap_of(client: RawClient, name: str, until: Callable[[], bool]) -> float:
    """Longest time between two steps of an engine that has but one stream, for some hundred and until it is true.

    By the engine's clock: 200 MB keep the sending process busy as well.
    """
    client.times.clear()
    while len(client.times) < count(300, 2000) or not until():
        heard = len(client.times)
        client.read_until(lambda heard=heard: len(client.times) > heard)
        assert name not in client.ended, "the stream was long enough for all of this"
    return max(later - earlier for earlier, later in pairwise(client.times))
