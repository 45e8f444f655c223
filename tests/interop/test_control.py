"""What ends a request early, and what an operator does with an engine."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.interop.asking import User, reasons
from tests.interop.pair import Pair
from tests.interop.peers import RUST, RUST_NEW, SMG
from tests.interop.table import case, limit
from tests.support.deadline import until

pytestmark = [pytest.mark.timeout(600), pytest.mark.model]

NO_OPERATIONS = "SMG calls no operations of an engine: it has no route for it"


@pytest.fixture
def tester(echoing: Pair) -> Iterator[User]:
    """Somebody who asks an engine whose answers he knows."""
    with echoing.http() as http:
        yield User(echoing.front.peer, http)
    until(echoing.is_idle, what="the engine has nothing left to do")


@pytest.fixture
def operator(modelled: Pair) -> Iterator[httpx.Client]:
    """Somebody who controls an engine with the demo model."""
    with modelled.http() as http:
        yield http
    until(modelled.is_idle, what="the engine has nothing left to do")


@pytest.mark.smoke
@case("client disconnect")
def test_a_user_who_leaves_ends_the_request_in_the_engine(echoing: Pair, tester: User) -> None:
    with tester.stream() as stream:
        stream.first()
        assert echoing.engine.progress().running == 1
    until(echoing.is_idle, within=5, what="the request ends in the engine")


@case("client disconnect")
def test_many_users_who_leave(echoing: Pair, tester: User) -> None:
    def leave(number: int) -> None:
        with echoing.http() as http, User(tester.peer, http).stream(prompt=f"number {number}") as stream:
            stream.first()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(leave, range(16)))
    until(echoing.is_idle, within=5, what="all requests end in the engine")
    assert tester.text(max_tokens=3) == "one two three"


@case("abort")
def test_a_stop_string_aborts_the_request_in_the_engine(echoing: Pair, tester: User) -> None:
    """The engine knows nothing of stop strings: it would go on for thousands of tokens."""
    with tester.stream(stop=["three one"], prompt="one two three ") as stream:
        events = stream.rest()
    assert reasons(events) == ["stop"]
    until(echoing.is_idle, within=5, what="the request ends in the engine")


@case("abort", SMG)
def test_a_request_that_the_engine_refuses_costs_nobody_else(tester: User) -> None:
    with tester.stream(max_tokens=500) as stream:
        stream.first()
        assert tester.post("completions", prompt="word " * 9000, max_tokens=1).status_code >= 400
        events = stream.rest()
    assert reasons(events) == ["length"]


@case("abort", *RUST)
def test_a_request_that_fails_costs_nobody_else(tester: User) -> None:
    with tester.stream(max_tokens=500) as stream:
        stream.first()
        failing = tester.post("completions", prompt="x", max_tokens=1, vllm_xargs={"fault": "preprocess:raise"})
        assert failing.status_code >= 400
        events = stream.rest()
    assert reasons(events) == ["length"]


@case("pause, resume", *RUST)
@pytest.mark.parametrize("mode", ["keep", "wait", "abort"])
def test_pause(operator: httpx.Client, modelled: Pair, mode: str) -> None:
    user = User(modelled.front.peer, operator)
    user.complete(max_tokens=1)
    assert operator.post("/pause", params={"mode": mode}).status_code == 200
    assert operator.get("/is_paused").json() == {"is_paused": True}
    assert operator.post("/resume").status_code == 200
    assert operator.get("/is_paused").json() == {"is_paused": False}
    assert user.text(max_tokens=2)


@case("sleep, wake", *RUST)
@pytest.mark.parametrize("level", [1, 2])
def test_sleep(operator: httpx.Client, modelled: Pair, level: int) -> None:
    user = User(modelled.front.peer, operator)
    before = user.text("The capital of France is", max_tokens=8)
    assert operator.post("/sleep", params={"level": level}).status_code == 200
    assert operator.get("/is_sleeping").json() == {"is_sleeping": True}
    assert operator.post("/wake_up").status_code == 200
    assert operator.get("/is_sleeping").json() == {"is_sleeping": False}
    assert user.text("The capital of France is", max_tokens=8) == before


@case("prefix-cache reset", *RUST)
def test_reset_of_the_prefix_cache(operator: httpx.Client, modelled: Pair) -> None:
    user = User(modelled.front.peer, operator)
    prompt = "All that was said so far, and it was not little. " * 20
    text = user.text(prompt, max_tokens=4)
    assert operator.post("/reset_prefix_cache").status_code == 200
    assert user.text(prompt, max_tokens=4) == text


@case("other operations", *RUST)
@pytest.mark.parametrize("path", ["/reset_mm_cache", "/reset_encoder_cache"])
def test_caches_that_are_empty(operator: httpx.Client, path: str) -> None:
    assert operator.post(path).status_code == 200


@case("other operations", *RUST)
def test_a_method_of_the_executor(operator: httpx.Client) -> None:
    (result,) = operator.post("/collective_rpc", json={"method": "memory"}).json()["results"]
    assert result["weights_loaded"] is True
    assert operator.post("/collective_rpc", json={"method": "no such method"}).status_code == 500


@case("other operations", RUST_NEW)
def test_operations_of_later_releases(operator: httpx.Client, modelled: Pair) -> None:
    assert operator.post("/release_kv_cache_memory").status_code == 500, "it is not paused"
    assert operator.post("/pause", params={"mode": "keep"}).status_code == 200
    assert operator.post("/release_kv_cache_memory").status_code == 200
    assert operator.post("/wake_up").status_code == 200
    assert operator.post("/update_weight_version", json={"new_version": "two"}).status_code == 200
    assert User(modelled.front.peer, operator).text(max_tokens=2)


@limit("pause, resume", SMG, reason=NO_OPERATIONS)
@pytest.mark.parametrize("path", ["/pause", "/resume"])
def test_no_pause(operator: httpx.Client, path: str) -> None:
    assert operator.post(path).status_code == 404


@limit("sleep, wake", SMG, reason=NO_OPERATIONS)
@pytest.mark.parametrize("path", ["/sleep", "/wake_up"])
def test_no_sleep(operator: httpx.Client, path: str) -> None:
    assert operator.post(path).status_code == 404


@limit("other operations", SMG, reason=NO_OPERATIONS)
@pytest.mark.parametrize("path", ["/reset_mm_cache", "/reset_encoder_cache", "/collective_rpc"])
def test_no_other_operations(operator: httpx.Client, path: str) -> None:
    assert operator.post(path, json={}).status_code == 404


@limit("prefix-cache reset", SMG, reason="SMG resets no prefix cache of such an engine: its route says so")
def test_no_reset(operator: httpx.Client) -> None:
    answer = operator.post("/flush_cache")
    assert "no cache-flush" in answer.text and answer.json()["workers_flushed"] == 0
