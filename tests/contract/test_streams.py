"""What every client promises to who reads request by request, with every built-in engine that needs no model."""

import random
from collections.abc import Iterator

import pytest

from muro.errors import (
    InvalidRequestError,
    PromptTooLongError,
    RequestFailedError,
    UsageError,
)
from muro.wire.output import FinishReason
from tests.support.asking import FOREVER, ask, faulty
from tests.support.clients import KINDS, Face, opened
from tests.support.counts import count
from tests.support.deadline import until

LENGTH, ABORT = FinishReason.LENGTH, FinishReason.ABORT


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=["echo", "paced", "faulty"])
def client(kind: str, request: pytest.FixtureRequest) -> Iterator[Face]:
    options = {"paced": {"step_ms": 0.2}}.get(request.param, {})
    with opened(kind, request.param, **options) as client:
        yield client


@pytest.fixture(scope="module")
def wrong(kind: str) -> Iterator[Face]:
    with opened(kind, "faulty", max_model_len=64_000) as client:
        yield client


def tokens(stream: object) -> list[int]:
    return [token for item in stream for token in item.new_token_ids]


def live(client: Face) -> int:
    return client.call("num_live")


def test_a_request_ends_with_its_tokens_under_its_id(client: Face) -> None:
    items = list(client.generate(ask("mine", 5)))
    assert {item.request_id for item in items} == {"mine"}
    assert [t for item in items for t in item.new_token_ids] == [7, 8, 9, 7, 8]
    assert [item.finish_reason for item in items] == [None] * 4 + [LENGTH]


def test_streams_do_not_mix_however_they_are_read(client: Face) -> None:
    streams = {n: client.generate(ask(f"r{n}", 12, [n, n + 1])) for n in range(40)}
    got: dict[int, list[int]] = {n: [] for n in streams}
    order = random.Random(5)
    while streams:
        number = order.choice(list(streams))
        item = next(streams[number], None)
        if item is None:
            del streams[number]
        else:
            got[number] += item.new_token_ids
    assert got == {n: [n, n + 1] * 6 for n in got}


def test_an_ended_stream_stays_empty(client: Face) -> None:
    stream = client.generate(ask("a", 1))
    assert len(list(stream)) == 1 and list(stream) == []
    stream.close()
    assert list(client.generate(ask("a", 1)))


def test_an_abort_ends_a_stream_with_abort(client: Face) -> None:
    stream = client.generate(ask("a", FOREVER))
    next(stream)
    client.abort(["a", "unknown"])
    client.abort(["a"])
    assert list(stream)[-1].finish_reason == ABORT


@pytest.mark.cases
def test_an_id_is_free_as_soon_as_its_request_was_cancelled(client: Face) -> None:
    for number in range(count(25, 2000)):
        first = client.generate(ask("same", FOREVER, [1]))
        if number % 3:
            next(first)
        if number % 2:
            first.close()
        else:
            client.abort(["same"])
        assert tokens(client.generate(ask("same", 4, [2]))) == [2] * 4


def test_an_id_twice_in_flight_is_refused_and_the_first_goes_on(client: Face) -> None:
    first = client.generate(ask("twin", FOREVER, [1]))
    with pytest.raises(InvalidRequestError, match="in flight"):
        client.generate(ask("twin", 40, [2]))
    assert [next(first).new_token_ids for _ in range(40)] == [[1]] * 40
    first.close()


@pytest.mark.parametrize("value", [-(2**63) - 1, 2**63, 2**64, float(2**63), float(2**64)])
@pytest.mark.parametrize("field", ["seed", "top_k", "max_tokens", "min_tokens", "logprobs"])
def test_integers_beyond_64_bits_are_refused_before_anything_is_sent(client: Face, field: str, value: float) -> None:
    request = ask("big")
    setattr(request.sampling_params, field, value)
    with pytest.raises(InvalidRequestError):
        client.generate(request)
    assert tokens(client.generate(ask("big"))) == [7, 8, 9]


def test_reading_in_batches_as_well_is_refused(client: Face) -> None:
    list(client.generate(ask("a")))
    with pytest.raises(UsageError):
        client.add_request(ask("b"))
    with pytest.raises(UsageError):
        client.get_outputs(timeout=0)


def test_an_empty_prompt_is_the_callers_fault(client: Face) -> None:
    with pytest.raises(InvalidRequestError, match="empty"):
        list(client.generate(ask("a", prompt=[])))


def test_a_prompt_that_is_too_long_is_the_callers_fault(wrong: Face) -> None:
    with pytest.raises(PromptTooLongError):
        list(wrong.generate(ask("a", prompt=[1] * 64_000)))


@pytest.mark.parametrize(
    "fault", ["preprocess:raise", "add:raise", "preprocess:refuse", "step:refuse", "output:garble"]
)
def test_a_request_that_fails_fails_alone(wrong: Face, fault: str) -> None:
    if fault == "output:garble" and type(wrong).__name__ == "InprocClient":
        pytest.skip("nothing is encoded in one process")
    others = [wrong.generate(ask(f"other{n}", 30, [n])) for n in range(5)]
    error = InvalidRequestError if fault.endswith("refuse") else RequestFailedError
    with pytest.raises(error):
        list(wrong.generate(faulty("bad", fault)))
    assert [tokens(stream) for stream in others] == [[n] * 30 for n in range(5)]


def test_a_dropped_stream_leaves_the_engine(wrong: Face) -> None:
    streams = [wrong.generate(ask(f"r{n}", FOREVER)) for n in range(20)]
    for stream in streams[:10]:
        next(stream)
    for stream in streams[::2]:
        stream.close()
    del stream, streams
    until(lambda: live(wrong) == 0)
    assert sum(status.in_flight for status in wrong.engines()) == 0


@pytest.mark.cases
def test_aborts_at_random_moments_cost_nobody_else_anything(wrong: Face) -> None:
    order = random.Random(12)
    steady = wrong.generate(ask("steady", 300, [5]))
    streams = {}
    for number in range(count(300, 5000)):
        streams[f"r{number}"] = wrong.generate(ask(f"r{number}", order.randrange(1, 40), [3]))
        for victim in order.sample([*streams, "unknown"], k=min(len(streams), order.randrange(3))):
            wrong.abort([victim, victim])
            if victim in streams and order.random() < 0.5:
                endings = [item.finish_reason for item in streams.pop(victim) if item.finish_reason is not None]
                assert len(endings) == 1
    for stream in streams.values():
        assert sum(item.finish_reason is not None for item in stream) == 1
    assert tokens(steady) == [5] * 300
    until(lambda: live(wrong) == 0)
