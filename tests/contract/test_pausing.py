"""Pause and resume over every client, for an engine that knows nothing of them."""

from collections.abc import Iterator

import pytest

from muro.errors import CallFailedError, RequestAbortedError
from muro.wire.ops import IS_SCHEDULER_PAUSED, PAUSE_GENERATION, PAUSE_SCHEDULER, RESUME_SCHEDULER
from muro.wire.output import FinishReason
from tests.support.asking import FOREVER, ask
from tests.support.clients import KINDS, Face, opened


@pytest.fixture(scope="module", params=KINDS)
def client(request: pytest.FixtureRequest) -> Iterator[Face]:
    with opened(request.param, "faulty", step_ms=1) as client:
        yield client


@pytest.fixture(autouse=True)
def resumed(client: Face) -> Iterator[None]:
    yield
    client.call(RESUME_SCHEDULER)
    assert client.call(IS_SCHEDULER_PAUSED) is False
    assert client.call("num_live") == 0


def test_abort_ends_streams(client: Face) -> None:
    stream = client.generate(ask("a", FOREVER))
    next(stream)
    client.call(PAUSE_SCHEDULER, "abort", True)
    assert client.call(IS_SCHEDULER_PAUSED) is True
    assert [output.finish_reason for output in stream][-1] is FinishReason.ABORT


def test_wait_lets_them_finish_and_holds_new_ones_back(client: Face) -> None:
    stream = client.generate(ask("a", 50))
    next(stream)
    client.call(PAUSE_SCHEDULER, "wait", False)
    later = client.generate(ask("b", 3))
    assert client.call("num_live") == 0, "nothing runs"
    assert sum(len(output.new_token_ids) for output in stream) == 49
    client.call(RESUME_SCHEDULER)
    assert [token for output in later for token in output.new_token_ids] == [7, 8, 9]


def test_keep_freezes_a_stream_which_then_goes_on_where_it_was(client: Face) -> None:
    stream = client.generate(ask("a", 300))
    tokens = list(next(stream).new_token_ids)
    client.call(PAUSE_SCHEDULER, "keep", False)
    assert client.call("num_live") == 1
    client.call(RESUME_SCHEDULER)
    tokens += [token for output in stream for token in output.new_token_ids]
    assert tokens == [7, 8, 9] * 100


def test_a_stream_that_is_dropped_while_it_is_frozen_is_gone(client: Face) -> None:
    stream = client.generate(ask("a", FOREVER))
    next(stream)
    client.call(PAUSE_SCHEDULER, "keep", False)
    stream.close()
    assert client.call("num_live") == 0


def test_the_later_word_refuses_new_requests(client: Face) -> None:
    client.call(PAUSE_GENERATION, "wait", False)
    stream = client.generate(ask("a"))
    with pytest.raises(RequestAbortedError, match="paused"):
        list(stream)
    client.call(RESUME_SCHEDULER)
    assert sum(len(output.new_token_ids) for output in client.generate(ask("a"))) == 3


def test_an_unknown_mode_fails_its_call(client: Face) -> None:
    with pytest.raises(CallFailedError, match="mode"):
        client.call(PAUSE_SCHEDULER, "stop", True)
    assert client.call(IS_SCHEDULER_PAUSED) is False
