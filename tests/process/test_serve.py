"""The server as its callers see it: real process, echo engine, real HTTP clients."""

import contextlib
import json
import re
import shlex
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from tests.support.deadline import command_line
from tests.support.server import Server

LENGTH_LIMIT = 4096

NOTHING_CACHED = {"prompt_tokens_details": {"cached_tokens": 0}}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--engine", "echo", "--max-model-len", str(LENGTH_LIMIT)) as running:
        yield running.ready()


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with server.http() as client:
        yield client


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def complete(http: httpx.Client, **body: Any) -> httpx.Response:
    return http.post("/v1/completions", json={"prompt": "abc", "max_tokens": 6, **body})


def events(response: httpx.Response) -> list[dict[str, Any]]:
    data = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert data[-1] == "[DONE]"
    return [json.loads(item) for item in data[:-1]]


def test_two_processes_with_telling_command_lines(server: Server) -> None:
    assert "muro serve" in command_line(server.process.pid)
    assert server.engine_pid != server.process.pid
    assert "--engine echo" in command_line(server.engine_pid)


def test_the_curl_line_works(server: Server) -> None:
    line = next(line for line in server.output().splitlines() if line.startswith("curl"))
    answer = subprocess.run([*shlex.split(line), "-s"], capture_output=True, check=True, timeout=20)
    assert "capital of France" in json.loads(answer.stdout)["choices"][0]["message"]["content"]


def test_the_official_client_chats(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "héllo"}]
    whole = client.chat.completions.create(model="echo", messages=messages, max_tokens=26)
    assert whole.choices[0].message.content == "user: héllo\nassistant: us"
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (24, 26)
    stream = client.chat.completions.create(
        model="echo", messages=messages, max_completion_tokens=26, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "user: héllo\nassistant: us"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 26


def test_the_official_client_completes(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="echo", prompt="abc", max_tokens=5, n=2)
    assert [choice.text for choice in whole.choices] == ["abcab", "abcab"]
    text = ""
    for chunk in client.completions.create(model="echo", prompt="abc", max_tokens=5, stream=True):
        text += chunk.choices[0].text
    assert text == "abcab"
    assert [model.id for model in client.models.list()] == ["echo"]
    assert client.models.retrieve("echo").id == "echo"


def test_prompts_in_all_forms(http: httpx.Client) -> None:
    def texts(prompt: Any, **more: Any) -> list[str]:
        return [choice["text"] for choice in complete(http, prompt=prompt, max_tokens=2, **more).json()["choices"]]

    assert texts([97, 98, 99]) == ["ab"]
    assert texts(["ab", "cd"]) == ["ab", "cd"]
    assert texts([[97], [98, 99]], n=2) == ["aa", "aa", "bc", "bc"]


def test_the_default_is_sixteen_tokens(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json={"prompt": "abc"}).json()
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 16, "total_tokens": 19, **NOTHING_CACHED}


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings(http: httpx.Client, stream: bool) -> None:
    answer = complete(http, prompt="one two three", stop=["two", "x"], max_tokens=100, stream=stream)
    last = events(answer)[-1] if stream else answer.json()
    text = "".join(e["choices"][0]["text"] for e in events(answer)) if stream else last["choices"][0]["text"]
    assert text == "one "
    assert (last["choices"][0]["finish_reason"], last["choices"][0]["stop_reason"]) == ("stop", "two")


def test_usage_in_a_stream(http: httpx.Client) -> None:
    plain = events(complete(http, stream=True))
    assert all("usage" not in event for event in plain)
    asked = events(complete(http, stream=True, stream_options={"include_usage": True}, n=2))
    assert all(event["usage"] is None for event in asked[:-1])
    assert asked[-1]["choices"] == []
    assert asked[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 12, "total_tokens": 15, **NOTHING_CACHED}
    both = {"include_usage": True, "continuous_usage_stats": True}
    assert all(event["usage"] for event in events(complete(http, stream=True, stream_options=both)))


def test_the_same_request_id_twice_at_once(server: Server, http: httpx.Client) -> None:
    """FC-14: both complete with their own tokens, and both callers see their own id."""

    def ask(letter: str) -> httpx.Response:
        body = {"prompt": letter, "max_tokens": 2000}
        return httpx.post(f"{server.url}/v1/completions", json=body, headers={"X-Request-Id": "mine"}, timeout=30)

    with ThreadPoolExecutor(8) as pool:
        for letter, answer in zip("abcdefgh", pool.map(ask, "abcdefgh"), strict=True):
            assert answer.headers["x-request-id"] == "mine"
            assert answer.json()["id"] == "cmpl-mine"
            assert answer.json()["choices"][0]["text"] == letter * 2000
    assert http.get("/health", headers={"X-Request-Id": "mine"}).headers["x-request-id"] == "mine"


def test_an_id_can_be_used_again_at_once(server: Server, http: httpx.Client) -> None:
    """FC-13: leave and come back with the same id."""
    for _ in range(20):
        with http.stream(
            "POST",
            "/v1/completions",
            json={"prompt": "x", "max_tokens": 4000, "stream": True},
            headers={"X-Request-Id": "again"},
        ) as stream:
            next(stream.iter_raw())
        again = http.post("/v1/completions", json={"prompt": "y", "max_tokens": 50}, headers={"X-Request-Id": "again"})
        assert again.json()["choices"][0]["text"] == "y" * 50


@pytest.mark.parametrize("value", [-(2**63) - 1, 2**63, 2**64, float(2**63), float(2**64), 1e300])
@pytest.mark.parametrize("option", ["seed", "max_tokens", "min_tokens", "n", "top_k", "stop_token_ids", "prompt"])
def test_integers_beyond_64_bits(http: httpx.Client, option: str, value: float) -> None:
    """FC-09."""
    answer = complete(http, **{option: [value] if option in ("stop_token_ids", "prompt") else value})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(option)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("option", ["temperature", "top_p", "max_tokens"])
def test_numbers_that_are_none(http: httpx.Client, option: str, text: str) -> None:
    body = f'{{"prompt": "a", "{option}": {text}}}'
    assert http.post("/v1/completions", content=body).status_code == 400


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("logprobs", 3),
        ("logit_bias", {"1": 1}),
        ("presence_penalty", 1.0),
        ("priority", 1),
        ("tools", [{}]),
        ("no_such_option", 1),
    ],
)
def test_an_unsupported_option_is_refused_by_name(http: httpx.Client, option: str, value: Any) -> None:
    """FC-07 at the edge."""
    answer = complete(http, **{option: value})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"], error["type"]) == (option, "unsupported_option", "invalid_request_error")
    assert option in error["message"]


@pytest.mark.parametrize("body", ["", "{", "[]", "null", '"x"', '{"prompt": }', "\xff", "[" * 100_000])
def test_what_is_no_json_object(http: httpx.Client, body: str) -> None:
    answer = http.post("/v1/completions", content=body.encode("latin-1"))
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_request"


def test_an_echo_of_the_prompt_needs_nothing_of_the_engine(http: httpx.Client) -> None:
    assert complete(http, echo=True, max_tokens=2).json()["choices"][0]["text"] == "abcab"


def test_lengths(http: httpx.Client) -> None:
    """FC-36: the limit, one more, ten million tokens."""
    assert complete(http, prompt="x" * (LENGTH_LIMIT - 1), max_tokens=1).status_code == 200
    assert complete(http, prompt="x" * (LENGTH_LIMIT - 6), max_tokens=6).status_code == 200
    for prompt in ("x" * LENGTH_LIMIT, [120] * LENGTH_LIMIT, "x" * 3_000_000):
        answer = complete(http, prompt=prompt)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "prompt_too_long")
    answer = complete(http, prompt=[1] * 1_000_000)  # refused by the commas of its body, before it is read as JSON
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
    for prompt in ("x" * 10_000_000, [1] * 10_000_000):
        assert complete(http, prompt=prompt).status_code == 413
    answer = complete(http, prompt="x" * (LENGTH_LIMIT - 6), max_tokens=7)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_tokens")


def test_a_body_over_the_limit(server: Server, http: httpx.Client) -> None:
    """FC-36: answered before it is read whole; a caller who sends on sees the answer too."""
    with server.raw() as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 200000000\r\n\r\n{")
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")
    answer = http.post("/v1/completions", content=b"x" * 200_000_000)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "body_too_large"


def test_a_chunked_body_over_the_limit(http: httpx.Client) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(100):
            yield b"x" * 1_000_000

    assert http.post("/v1/completions", content=endless()).status_code == 413


def test_unknown_paths_methods_and_models(http: httpx.Client) -> None:
    assert http.get("/v1/nothing").json()["error"]["code"] == "not_found"
    wrong = http.get("/v1/completions")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    answer = complete(http, model="gpt-5")
    assert answer.status_code == 404
    assert "'echo'" in answer.json()["error"]["message"]
    assert http.get("/v1/models/other").status_code == 404


def test_an_odd_request_id_is_refused(server: Server, http: httpx.Client) -> None:
    assert http.get("/health", headers={"X-Request-Id": "x" * 300}).status_code == 400


def test_health_version_metrics(server: Server, http: httpx.Client) -> None:
    assert (http.get("/health").status_code, http.get("/health").json()["status"]) == (200, "ok")
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", http.get("/version").json()["version"])
    before = server.metric("vllm:generation_tokens_total")
    complete(http, max_tokens=7)
    assert server.metric("vllm:generation_tokens_total") == before + 7
    assert server.metric("vllm:num_requests_running") == 0


def test_many_streams_at_once(server: Server) -> None:
    def ask(number: int) -> str:
        body = {"prompt": f"{number} ", "max_tokens": 500, "stream": True}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=30)
        return "".join(event["choices"][0]["text"] for event in events(answer))

    with ThreadPoolExecutor(32) as pool:
        for number, text in enumerate(pool.map(ask, range(64))):
            assert text == (f"{number} " * 500)[:500]


def test_health_is_quick_under_load(server: Server) -> None:
    """It never goes through the engine's queue."""
    stop = threading.Event()

    def load() -> None:
        with server.http() as client:
            while not stop.is_set():
                client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2000, "stream": True})

    with ThreadPoolExecutor(8) as pool:
        for _ in range(8):
            pool.submit(load)
        try:
            with server.http() as client:
                times = sorted(client.get("/health").elapsed.total_seconds() for _ in range(100))
        finally:
            stop.set()
    assert times[50] < 0.1


def test_a_head_without_end_is_refused(server: Server, http: httpx.Client) -> None:
    url = httpx.URL(server.url)
    with socket.create_connection((url.host, url.port), timeout=10) as caller:
        caller.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX: ")
        with contextlib.suppress(ConnectionError):  # it may be closed while we still send
            for _ in range(256):
                caller.sendall(b"a" * 1024)
        assert caller.recv(12) == b"HTTP/1.1 400"
    assert http.get("/health", headers={"X": "a" * 30_000}).status_code == 200
