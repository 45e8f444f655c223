"""The bounds of the HTTP side, each reached on purpose: queue, connections, heads, bodies, idle time, deadlines."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import httpx
import psutil
import pytest

from tests.support.deadline import until
from tests.support.server import Server, answer_on

LONG = {"prompt": "abc", "max_tokens": 4000}
MOST_CONNECTIONS = 12
QUICK = 0.4
"""Seconds that the server under test gives to heads and bodies."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """It runs one request at a time."""
    bounds = {
        "max-queued-requests": 3, "max-queued-tokens": 300, "max-connections": MOST_CONNECTIONS, "head-timeout": QUICK,
        "body-timeout": QUICK, "timeout-keep-alive": 2, "max-request-timeout": 60, "max-body-bytes": 10_000,
    }  # fmt: skip
    flags = [word for name, value in bounds.items() for word in (f"--{name}", str(value))]
    with Server("--engine", "sim", "--max-num-seqs", "1", *flags) as running:
        yield running.ready()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


@pytest.fixture
def occupied(server: Server, pool: ThreadPoolExecutor) -> Iterator[None]:
    """A stream takes the engine's only place."""
    with in_flight(server):
        until(lambda: server.metric("vllm:num_requests_running") == 1)
        yield
    until(lambda: server.metric("muro:requests_in_progress") == 0)


@contextmanager
def in_flight(server: Server, stream: bool = True, **body: Any) -> Iterator[socket.socket]:
    """A request on a connection of its own; the caller leaves at the end."""
    with server.raw() as connection:
        server.post_raw(connection, "/v1/completions", json.dumps({**LONG, "stream": stream, **body}).encode())
        yield connection


def post(server: Server, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/completions", json={**LONG, **body}, headers=headers, timeout=30)


def error(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def refused(server: Server, bound: str) -> float:
    text = httpx.get(f"{server.url}/metrics").text
    line = next(line for line in text.splitlines() if line.startswith("muro:requests_refused") and f'"{bound}"' in line)
    return float(line.rpartition(" ")[2])


def test_a_full_queue_refuses_with_a_hint(server: Server, occupied: None) -> None:
    with ExitStack() as waiting:
        for _ in range(3):
            waiting.enter_context(in_flight(server))
        until(lambda: server.metric("muro:queued_requests") == 3)
        before = refused(server, "requests")
        answers = [post(server, {"X-Request-Id": "mine"}) for _ in range(5)]
        assert {answer.headers["x-request-id"] for answer in answers} == {"mine"}
        assert len(post(server).headers["x-request-id"]) == 32
        assert {error(answer) for answer in answers} == {(503, "overloaded")}
        assert all(1 <= int(answer.headers["retry-after"]) <= 30 for answer in answers)
        assert refused(server, "requests") == before + 6
        assert server.status("/health") == server.status("/readyz") == 200
    until(lambda: server.metric("muro:queued_requests") == 0)
    assert server.metric("muro:queued_prompt_tokens") == 0


def test_a_refused_caller_keeps_its_connection(server: Server, occupied: None) -> None:
    with ExitStack() as waiting, server.http() as kept:
        for _ in range(3):
            waiting.enter_context(in_flight(server))
        until(lambda: server.metric("muro:queued_requests") == 3)
        opened = server.metric("muro:connections")
        for size in (10, 9000):
            answer = kept.post("/v1/completions", json={**LONG, "prompt": "x" * size})
            assert error(answer) == (503, "overloaded")
            assert kept.get("/livez").status_code == 200
        assert server.metric("muro:connections") <= opened + 1


def test_prompts_that_are_too_much_together(server: Server, occupied: None) -> None:
    with in_flight(server, prompt="x" * 250):
        until(lambda: server.metric("muro:queued_prompt_tokens") == 250)
        assert error(post(server, prompt="y" * 100)) == (503, "overloaded")
        assert refused(server, "tokens") >= 1
        with in_flight(server, prompt="y" * 50):
            until(lambda: server.metric("muro:queued_prompt_tokens") == 300)


def test_choices_count_one_by_one(server: Server, occupied: None) -> None:
    with in_flight(server):
        until(lambda: server.metric("muro:queued_requests") == 1)
        assert error(post(server, n=3)) == (503, "overloaded")


def test_an_empty_queue_takes_any_one_request(server: Server) -> None:
    assert post(server, prompt="x" * 2000, max_tokens=2).status_code == 200
    assert post(server, n=5, max_tokens=2).status_code == 200


def received(connection: socket.socket) -> tuple[bytes, float]:
    """All that comes until it is closed, and after how long that is."""
    began, data = time.monotonic(), b""
    while part := connection.recv(65536):
        data += part
    return data, time.monotonic() - began


def test_a_head_that_does_not_arrive(server: Server) -> None:
    with server.raw() as silent, server.raw() as slow:
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost:")
        data, seconds = received(slow)
        assert data.startswith(b"HTTP/1.1 408")
        assert QUICK / 2 < seconds < 3
        assert received(silent)[0] == b""
    assert server.metric("muro:slow_heads_total") >= 2


def resident_mib(pid: int) -> float:
    return psutil.Process(pid).memory_info().rss / 2**20


@pytest.mark.parametrize(
    "more", [b"X-B: 1\r\n" * 50_000, b"X-A: " + b"y" * 500_000, b"1;x=" + b"y" * 500_000], ids=["many", "long", "chunk"]
)
def test_what_frames_a_body_or_follows_it_is_bounded(server: Server, more: bytes) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
    head += b"Content-Type: application/json\r\n\r\n"
    body = json.dumps({"prompt": "abc", "max_tokens": 2}).encode()
    chunk = b"%x\r\n%b\r\n" % (len(body), body)
    end = b"" if more.startswith(b"1;") else b"0\r\n"
    before = resident_mib(server.process.pid)
    with server.raw() as stranger, suppress(OSError):  # it is hung up on
        stranger.sendall(head + chunk + end)
        for _ in range(100):
            stranger.sendall(more)
        raise AssertionError("all of it was taken")
    assert resident_mib(server.process.pid) < before + 30
    with server.raw() as connection:
        connection.sendall(head + b"".join(b"1;x=y\r\n%c\r\n" % byte for byte in body) + b"0\r\nX-B: 1\r\n\r\n")
        assert answer_on(connection).startswith(b"HTTP/1.1 200")


def test_what_is_no_http_is_counted_and_logged_at_a_limited_rate(server: Server) -> None:
    before, logged = server.metric("muro:malformed_requests_total"), server.errors().count("Invalid HTTP")
    for _ in range(100):
        with server.raw() as stranger:
            stranger.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
            assert received(stranger)[0].startswith(b"HTTP/1.1 400")
    assert server.metric("muro:malformed_requests_total") == before + 100
    assert 0 < server.errors().count("Invalid HTTP") - logged <= 8


@pytest.mark.parametrize("offer", ["Upgrade: h2c", "upgrade: websocket", "UPGRADE : TLS/1.0"])
def test_the_offer_of_another_protocol_is_ignored(server: Server, offer: str) -> None:
    """Its body counts, which may have the same words in it; also in a later request of the connection."""
    body = json.dumps({"prompt": "abc\r\nupgrade: h2c\r\n\r\n", "max_tokens": 2}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\n{offer}\r\n"
    with server.raw() as connection:
        for _ in range(2):
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert answer_on(connection).startswith(b"HTTP/1.1 200")


def test_a_second_head_that_does_not_arrive(server: Server) -> None:
    with server.raw() as caller:
        caller.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET /livez HTTP/1.1\r\nHos")
        data, seconds = received(caller)
        assert data.startswith(b"HTTP/1.1 200")
        assert b"HTTP/1.1 408" in data
        assert seconds < 3


def test_a_body_that_does_not_arrive(server: Server) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
    with server.raw() as slow:
        slow.sendall(head + b'{"prompt"')
        slow.settimeout(10)
        data, _ = received(slow)
    assert data.startswith(b"HTTP/1.1 408")
    assert b"connection: close" in data
    assert b'"code":"slow_body"' in data
    until(lambda: server.metric("muro:held_body_bytes") == 0)


def trickling(connection: socket.socket) -> float:
    """Send a byte ten times a second until the connection is closed; after how many seconds it is."""
    began = time.monotonic()
    connection.settimeout(0.1)
    while time.monotonic() < began + 20:
        try:
            if not connection.recv(65536):
                break
        except TimeoutError:
            connection.sendall(b"x")
        except OSError:
            break
    return time.monotonic() - began


@pytest.mark.parametrize("request_line", [b"GET /livez", b"POST /v1/models", b"GET /nothing"])
def test_a_body_that_goes_on_after_its_answer(server: Server, request_line: bytes) -> None:
    with server.raw() as caller:
        caller.sendall(request_line + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
        assert trickling(caller) < 5


def test_a_body_that_goes_on_after_a_refusal(server: Server, occupied: None) -> None:
    with ExitStack() as waiting, server.raw() as caller:
        for _ in range(3):
            waiting.enter_context(in_flight(server))
        until(lambda: server.metric("muro:queued_requests") == 3)
        caller.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
        assert answer_on(caller).startswith(b"HTTP/1.1 503")
        assert trickling(caller) < 5


def test_refusals_in_one_breath_leave_no_timer_behind(server: Server, occupied: None) -> None:
    with ExitStack() as waiting, server.raw() as caller:
        for _ in range(3):
            waiting.enter_context(in_flight(server))
        until(lambda: server.metric("muro:queued_requests") == 3)
        caller.sendall(2 * b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        began, answers = time.monotonic(), b""
        while answers.count(b"HTTP/1.1 503") < 2:
            answers += caller.recv(65536)
        while time.monotonic() < began + 3:  # longer than an idle connection lives, but it is not idle
            caller.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            caller.settimeout(10)
            assert answer_on(caller).startswith(b"HTTP/1.1 200")
            caller.settimeout(0.3)
            with pytest.raises(TimeoutError):
                caller.recv(1)


def test_an_idle_connection_is_closed_in_the_end(server: Server) -> None:
    with server.raw() as idle:
        idle.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        _, seconds = received(idle)
    assert 1 < seconds < 6


def test_too_many_connections(server: Server) -> None:
    """Health is still told; what makes work is refused; far above the bound nobody is let in."""
    ask = b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n"
    with ExitStack() as held:

        def connect() -> socket.socket:
            return held.enter_context(server.raw())

        until(lambda: server.metric("muro:connections") <= 1)
        idle = [connect() for _ in range(MOST_CONNECTIONS)]
        for caller in idle:  # or their heads would be waited for, and they closed
            caller.sendall(ask % b"/livez")
            assert answer_on(caller).startswith(b"HTTP/1.1 200")
        surplus = connect()
        surplus.sendall(ask % b"/health")
        assert answer_on(surplus).startswith(b"HTTP/1.1 200")
        other = connect()
        other.sendall(ask % b"/v1/models")
        answer, _ = received(other)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"connection: close" in answer
        assert b"retry-after" in answer
        idle[0].sendall(ask % b"/v1/models")
        assert answer_on(idle[0]).startswith(b"HTTP/1.1 200")
    until(lambda: server.metric("muro:connections") <= 2)
    assert server.metric("muro:connections_refused_total") >= 2


def timed(server: Server, timeouts: str, **body: Any) -> tuple[httpx.Response, float]:
    began = time.monotonic()
    answer = post(server, {"X-Request-Timeout": timeouts}, **body)
    return answer, time.monotonic() - began


def all_ended(server: Server) -> None:
    until(lambda: server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting") == 0)


@pytest.mark.parametrize("timeouts", ["0.3", "total=0.3", "first-token=9, total=0.3"])
def test_a_request_that_is_not_done_in_time(server: Server, timeouts: str) -> None:
    answer, seconds = timed(server, timeouts)
    assert error(answer) == (504, "deadline")
    assert "0.3 s" in answer.json()["error"]["message"]
    assert 0.3 <= seconds < 2
    all_ended(server)


def test_a_stream_that_is_not_done_in_time(server: Server) -> None:
    answer, seconds = timed(server, "0.3", stream=True)
    *pieces, last, done = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert (answer.status_code, done, json.loads(last)["error"]["code"]) == (200, "[DONE]", "deadline")
    assert pieces
    assert 0.3 <= seconds < 2
    all_ended(server)


def test_no_first_token_in_time(server: Server, occupied: None) -> None:
    answer, seconds = timed(server, "first-token=0.3")
    assert error(answer) == (504, "deadline")
    assert "no token within 0.3 s" in answer.json()["error"]["message"]
    assert seconds < 2


def test_a_first_token_in_time_ends_that_deadline(server: Server) -> None:
    answer, seconds = timed(server, "first-token=0.5", max_tokens=100)
    assert answer.status_code == 200
    assert seconds > 0.7


def test_a_request_that_does_not_run_in_time(server: Server, occupied: None) -> None:
    answer, seconds = timed(server, "queue=0.3")
    assert error(answer) == (504, "deadline")
    assert "queue timeout" in answer.json()["error"]["message"]
    assert seconds < 2


def test_the_body_may_say_it_too_and_the_shorter_counts(server: Server) -> None:
    assert error(post(server, timeouts={"total": 0.2})) == (504, "deadline")
    assert error(post(server, {"X-Request-Timeout": "50"}, timeouts={"total": 0.2})) == (504, "deadline")
    assert error(post(server, {"X-Request-Timeout": "0.2"}, timeouts={"total": 50})) == (504, "deadline")


@pytest.mark.parametrize("header", ["soon", "0", "-1", "nan", "inf", "end=3", "total=", "queue=1;total=2"])
def test_a_header_that_says_no_time(server: Server, header: str) -> None:
    answer, _ = timed(server, header)
    assert error(answer) == (400, "invalid_request")
    assert answer.json()["error"]["param"] == "X-Request-Timeout"
    for wrong in ({"total": 0}, {"end": 3}, 5):
        assert post(server, timeouts=wrong).status_code == 400


def test_a_longest_time_that_nobody_exceeds() -> None:
    flags = ("--request-timeout", "0.2", "--max-request-timeout", "0.6")
    with Server("--engine", "sim", *flags) as server:
        server.ready()
        for headers, least in (({}, 0.2), ({"X-Request-Timeout": "0.4"}, 0.4), ({"X-Request-Timeout": "50"}, 0.6)):
            began = time.monotonic()
            assert error(post(server, headers)) == (504, "deadline")
            assert least <= time.monotonic() - began < least + 1.5


def test_how_every_request_ended_is_counted(server: Server, pool: ThreadPoolExecutor) -> None:
    until(lambda: server.metric("muro:requests_in_progress") == 0)
    before = server.metric("muro:requests_total")
    post(server, max_tokens=2)
    post(server, max_tokens=-1)
    timed(server, "0.05")
    timed(server, "0.05", stream=True)
    started = threading.Event()

    def leave() -> None:
        with in_flight(server) as caller:
            caller.recv(100)
            started.set()

    left: Future[None] = pool.submit(leave)
    assert started.wait(10)
    left.result(10)
    until(lambda: server.metric("muro:requests_total") == before + 5)
