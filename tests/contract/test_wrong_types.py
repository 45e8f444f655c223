"""Values of wrong types given to a client: refused in its own words, by every client alike, and without a trace."""

from collections.abc import Iterator
from typing import Any

import pytest

from muro.errors import InvalidRequestError, UsageError
from muro.wire.ops import Op
from muro.wire.request import EngineCoreRequest, SamplingParams
from tests.support.asking import ask
from tests.support.clients import KINDS, Face, opened


@pytest.fixture(scope="module", params=KINDS)
def client(request: pytest.FixtureRequest) -> Iterator[Face]:
    with opened(request.param, "faulty") as client:
        yield client


REQUESTS: dict[str, Any] = {
    "text": "hi",
    "nothing": None,
    "dictionary": {"request_id": "a"},
    "class": EngineCoreRequest,
    "id-number": EngineCoreRequest(5, [1]),  # type: ignore[arg-type]
    "id-none": EngineCoreRequest(None, [1]),  # type: ignore[arg-type]
    "id-bytes": EngineCoreRequest(b"x", [1]),  # type: ignore[arg-type]
    "id-empty": EngineCoreRequest("", [1]),
    "prompt-text": EngineCoreRequest("a", "hi"),  # type: ignore[arg-type]
    "prompt-floats": EngineCoreRequest("a", [1.5]),  # type: ignore[list-item]
    "params-number": EngineCoreRequest("a", [1], sampling_params=5),  # type: ignore[arg-type]
    "max_tokens-text": EngineCoreRequest("a", [1], sampling_params=SamplingParams(max_tokens="2")),  # type: ignore[arg-type]
    "rank-text": EngineCoreRequest("a", [1], data_parallel_rank="0"),  # type: ignore[arg-type]
    "rank-list": EngineCoreRequest("a", [1], data_parallel_rank=[0]),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", REQUESTS)
def test_what_is_no_request(client: Face, case: str) -> None:
    for use in (client.generate, client.add_request):
        with pytest.raises((InvalidRequestError, UsageError)):
            use(REQUESTS[case])
        with pytest.raises(InvalidRequestError):
            client.generate(REQUESTS[case])
    assert client.engines()[0].in_flight == 0
    assert [token for item in client.generate(ask("a")) for token in item.new_token_ids] == [7, 8, 9]


def test_a_text_is_led_to_who_takes_texts(client: Face) -> None:
    with pytest.raises(InvalidRequestError, match=r"EngineCoreRequest, not str; for texts there is muro\.LLM"):
        client.generate("hi")  # type: ignore[arg-type]


@pytest.mark.parametrize("op", [5, None, b"is_sleeping", ["is_sleeping"], print, Op])
def test_what_is_no_operation(client: Face, op: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"an operation is one of muro\.wire\.ops, or its name, not "):
        client.call(op)


@pytest.mark.parametrize("engine", ["0", 0.0, [0], 7, -1, True])
def test_what_is_no_engine(client: Face, engine: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"there is no engine .* here; ranks: 0"):
        client.call("is_sleeping", engine=engine)


@pytest.mark.parametrize("timeout", ["5", [1], float("nan"), b"1"])
def test_what_is_no_timeout(client: Face, timeout: Any) -> None:
    for use in (lambda: client.call("is_sleeping", timeout=timeout), lambda: client.close(timeout)):
        with pytest.raises(UsageError, match="must be a number of seconds"):
            use()
    assert client.call("is_sleeping", timeout=10) is False


@pytest.mark.parametrize("ids", [5, None, [5], [[]], [b"a"]])
def test_what_are_no_ids(client: Face, ids: Any) -> None:
    with pytest.raises(InvalidRequestError, match="request ids"):
        client.abort(ids)
    client.abort([])
    client.abort("nobody")
