"""What every client promises to who reads in batches."""

from collections.abc import Iterator

import pytest

from muro.clients.interface import OutputBatch
from muro.errors import InvalidRequestError, UsageError
from muro.wire.output import EngineCoreOutput, FinishReason
from tests.support.asking import FOREVER, ask, faulty
from tests.support.clients import KINDS, Face, opened


@pytest.fixture(scope="module", params=KINDS)
def client(request: pytest.FixtureRequest) -> Iterator[Face]:
    with opened(request.param, "faulty") as client:
        yield client


def finish(client: Face, *request_ids: str) -> dict[str, list[EngineCoreOutput]]:
    """Read until all of these have ended."""
    got: dict[str, list[EngineCoreOutput]] = {request_id: [] for request_id in request_ids}
    while not all(items and items[-1].finish_reason is not None for items in got.values()):
        batch = client.get_outputs(timeout=20)
        assert batch or batch.scheduler_stats is not None
        for item in batch.outputs:
            got[item.request_id].append(item)
    return got


def tokens(items: list[EngineCoreOutput]) -> list[int]:
    return [token for item in items for token in item.new_token_ids]


def test_many_requests_in_batches(client: Face) -> None:
    for number in range(50):
        client.add_request(ask(f"r{number}", 20, [number]))
    got = finish(client, *(f"r{number}" for number in range(50)))
    assert {key: tokens(items) for key, items in got.items()} == {f"r{n}": [n] * 20 for n in range(50)}


def test_time_may_run_out(client: Face) -> None:
    while client.get_outputs(timeout=0.05).scheduler_stats is not None:
        pass
    batch = client.get_outputs(timeout=0)
    assert batch == OutputBatch() and not batch


def test_an_error_is_an_output_with_its_reason(client: Face) -> None:
    client.add_request(faulty("bad", "preprocess:refuse"))
    client.add_request(ask("good", 2))
    got = finish(client, "bad", "good")
    [bad] = got["bad"]
    assert bad.finish_reason == FinishReason.ERROR and bad.error is not None
    assert "refusal" in bad.error.message
    assert tokens(got["good"]) == [7, 8]


def test_an_aborted_request_is_over_and_its_id_free(client: Face) -> None:
    for _ in range(10):
        client.add_request(ask("same", FOREVER, [1]))
        assert tokens(client.get_outputs(timeout=20).outputs) == [1]
        client.abort(["same"])
        client.add_request(ask("same", 3, [2]))
        assert tokens(finish(client, "same")["same"]) == [2, 2, 2]


def test_the_same_id_twice_is_refused(client: Face) -> None:
    client.add_request(ask("twin", 5))
    with pytest.raises(InvalidRequestError):
        client.add_request(ask("twin", 5))
    assert len(finish(client, "twin")["twin"]) == 5


def test_streams_as_well_are_refused(client: Face) -> None:
    with pytest.raises(UsageError, match="get_outputs"):
        client.generate(ask("b"))
