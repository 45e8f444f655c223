"""vLLM's Rust front-end and our engine: a user's requests, and what the user sees when the engine ends.

The engine repeats its prompt, so every answer is known.
"""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from muro.wire.failure import ExitCode
from tests.support.deadline import until
from tests.support.vllm_rs import HOST, Pair, VllmRs, paired

pytestmark = pytest.mark.timeout(600)
FOREVER = 5_000
"""More tokens than any test waits for, and fewer than fill the context."""


@pytest.fixture(scope="module")
def pair(vllm_rs: Path, model: Path) -> Iterator[Pair]:
    """For tests that leave the engine alive."""
    with paired(vllm_rs, model, "faulty", step_ms=2) as pair:
        yield pair
        assert pair.engine.poll() is None and pair.front.health() == 200


@pytest.fixture
def doomed(vllm_rs: Path, model: Path) -> Iterator[Pair]:
    """For tests that end the engine."""
    with paired(vllm_rs, model, "faulty", step_ms=2) as pair:
        yield pair


@pytest.fixture
def http(pair: Pair) -> Iterator[httpx.Client]:
    with pair.front.http() as http:
        yield http
    until(lambda: pair.engine.progress().running == 0, what="the engine has nothing left to do")


def complete(http: httpx.Client, prompt: str = "one two three", **more: Any) -> Any:
    answer = http.post("/completions", json={"model": "m", "prompt": prompt, "temperature": 0, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


class Stream:
    """A completion whose tokens come one by one; `events` are the choices that came."""

    def __init__(self, http: httpx.Client, **more: Any) -> None:
        body = {"model": "m", "prompt": "one two three", "max_tokens": FOREVER, "stream": True, **more}
        self._context = http.stream("POST", "/completions", json=body)

    def __enter__(self) -> "Stream":
        response = self._context.__enter__()
        assert response.status_code == 200
        self._lines = response.iter_lines()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._context.__exit__(*exc)

    def __iter__(self) -> Iterator[Any]:
        for line in self._lines:
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


def test_completion(http: httpx.Client) -> None:
    answer = complete(http, max_tokens=6)
    assert answer["choices"][0]["text"] == "one two threeone two three"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}


def test_chat(http: httpx.Client) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 64}
    answer = http.post("/chat/completions", json=body)
    assert answer.status_code == 200
    (choice,) = answer.json()["choices"]
    assert "user\nhello there" in choice["message"]["content"], "the words of the chat template, said back"
    assert choice["finish_reason"] in ("length", "stop")


def test_stream(http: httpx.Client) -> None:
    with Stream(http, max_tokens=6) as stream:
        chunks = [event["choices"][0] for event in stream]
    assert "".join(chunk["text"] for chunk in chunks) == "one two threeone two three"
    assert len(chunks) >= 6, "a token at a time"
    assert [chunk["finish_reason"] for chunk in chunks if chunk.get("finish_reason")] == ["length"]


@pytest.mark.parametrize("tokens", [1, 2, 100])
def test_max_tokens(http: httpx.Client, tokens: int) -> None:
    assert complete(http, max_tokens=tokens)["usage"]["completion_tokens"] == tokens


def test_stop_string(http: httpx.Client) -> None:
    """Found by the front-end, which then aborts the request in the engine."""
    (choice,) = complete(http, max_tokens=FOREVER, stop=["two"])["choices"]
    assert choice["text"] == "one " and choice["finish_reason"] == "stop"


def test_sixteen_at_once(pair: Pair, http: httpx.Client) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda i: complete(http, prompt=f"number {i}", max_tokens=200), range(16)))
    for number, answer in enumerate(answers):
        assert answer["choices"][0]["text"].startswith(f"number {number}number {number}")
        assert answer["usage"]["completion_tokens"] == 200


def test_a_user_who_leaves_ends_the_request_in_the_engine(pair: Pair, http: httpx.Client) -> None:
    with Stream(http) as stream:
        next(iter(stream))
        assert pair.engine.progress().running == 1
    until(lambda: pair.engine.progress().running == 0, within=5)


def test_a_request_that_fails_costs_nobody_else(http: httpx.Client) -> None:
    with Stream(http, max_tokens=500) as stream:
        next(iter(stream))
        failing = {"model": "m", "prompt": "x", "vllm_xargs": {"fault": "preprocess:raise"}}
        assert http.post("/completions", json=failing).status_code == 500
        *_, last = stream
        assert last["choices"][0]["finish_reason"] == "length"


def test_an_engine_that_is_asked_to_stop_ends_its_streams(doomed: Pair) -> None:
    with doomed.front.http() as http, Stream(http) as stream:
        next(iter(stream))
        doomed.engine.terminate()
        *_, last = stream
    assert last["choices"][0]["finish_reason"] == "abort"
    assert doomed.engine.wait(10) and doomed.engine.poll() == 0


def test_an_engine_that_fails_is_announced(doomed: Pair) -> None:
    with doomed.front.http() as http:
        with Stream(http) as stream:
            next(iter(stream))
            fatal = {"model": "m", "prompt": "x", "vllm_xargs": {"fault": "step:raise"}}
            assert http.post("/completions", json=fatal).status_code == 500
            *_, last = stream
            assert "fatal failure" in last["error"]["message"]
        until(lambda: doomed.front.health() == 503, within=5)
        assert http.post("/completions", json={"model": "m", "prompt": "x"}).status_code == 500
    assert doomed.engine.wait(10) and doomed.engine.poll() == 10


def test_an_engine_that_is_killed_is_not_noticed(doomed: Pair) -> None:
    """A limit of this front-end: it watches no engine that it has not started. Ours does."""
    doomed.engine.kill()
    assert doomed.engine.wait(10) and doomed.engine.poll() == -signal.SIGKILL
    with doomed.front.http() as http, pytest.raises(httpx.ReadTimeout):
        http.post("/completions", json={"model": "m", "prompt": "x"}, timeout=1.5)
    assert doomed.front.health() == 200


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_front_end_that_goes_takes_the_engine_along(doomed: Pair, number: signal.Signals) -> None:
    with doomed.front.http() as http, Stream(http) as stream:
        next(iter(stream))
        doomed.front.process.send_signal(number)
        assert doomed.engine.wait(10) and doomed.engine.poll() == ExitCode.LOST_PARENT


def test_an_engine_that_may_stay_serves_the_next_front_end(vllm_rs: Path, model: Path) -> None:
    with paired(vllm_rs, model, "faulty", rejoin=True, step_ms=2) as pair:
        with pair.front.http() as http, Stream(http) as stream:
            next(iter(stream))
            pair.front.process.kill()
            pair.front.process.wait()
        second = VllmRs(vllm_rs, model, pair.front.engine_port)
        try:
            second.ready()
            with second.http() as http:
                assert complete(http, max_tokens=3)["choices"][0]["text"] == "one two three"
            until(lambda: pair.engine.progress().running == 0, what="the first one's request is dropped")
        finally:
            second.close()


@contextlib.contextmanager
def served_from_the_command_line(vllm_rs: Path, model: Path, *arguments: str) -> Iterator[httpx.Client]:
    """The front-end, and an engine that `muro serve --headless` runs."""
    front = VllmRs(vllm_rs, model)
    command = [sys.executable, "-m", "muro", "serve", *arguments, "--headless"]
    command += ["--data-parallel-address", HOST, "--data-parallel-rpc-port", str(front.engine_port)]
    engine = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        front.ready()
        with front.http() as http:
            yield http
        engine.terminate()
        assert engine.wait(10) == 0
    finally:
        engine.kill()
        engine.wait()
        front.close()


def test_the_command_line(vllm_rs: Path, model: Path) -> None:
    with served_from_the_command_line(vllm_rs, model, "--engine", "echo") as http:
        assert complete(http, max_tokens=3)["choices"][0]["text"] == "one two three"


@pytest.mark.model
def test_a_real_model(vllm_rs: Path, model: Path) -> None:
    question = {"role": "user", "content": "What is the capital of France?"}
    with served_from_the_command_line(vllm_rs, model, str(model)) as http:
        body = {"model": "m", "messages": [question], "max_tokens": 32, "temperature": 0}
        answer = http.post("/chat/completions", json=body).json()
        again = http.post("/chat/completions", json=body).json()
    (choice,) = answer["choices"]
    assert "Paris" in choice["message"]["content"] and choice["finish_reason"] == "stop"
    assert again["choices"][0]["message"]["content"] == choice["message"]["content"]
