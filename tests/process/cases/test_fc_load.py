"""More callers, larger bodies, slower readers than there is room for: everything has a bound, and recovers."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.support.counts import FULL, count, half
from tests.support.deadline import until
from tests.support.elsewhere import free_port
from tests.support.flood import Fared, Flood
from tests.support.server import Server, answer_on
from tests.support.tokenizers import byte_level

ROOT = Path(__file__).parents[3]
MIB = 1 << 20


def options(*settings: str) -> list[str]:
    """The flags that set an engine's own options."""
    return [word for setting in settings for word in ("--engine-option", setting)]


def flood(server: Server, plan: Flood) -> Fared:
    """Let many callers come; how they fared."""
    command = [sys.executable, "-m", "tests.support.flood", f"{server.url}/v1/completions"]
    done = subprocess.run(
        [*command, msgspec.json.encode(plan).decode()], capture_output=True, cwd=ROOT, check=True, timeout=600
    )
    return msgspec.json.decode(done.stdout, type=Fared)


def resident(pid: int) -> int:
    """Bytes of memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@contextmanager
def watched(server: Server, every: float = 0.1, door: str = "") -> Iterator[dict[str, list[float]]]:
    """Probe it all the while, on `door` if it has a second one: seconds of each answer of `/livez`, memory after it."""
    seen: dict[str, list[float]] = {"seconds": [], "memory": []}
    stop = threading.Event()

    def probe() -> None:
        with server.http() as client:
            while not stop.is_set():
                began = time.monotonic()
                assert client.get(f"{door}/livez").status_code == 200
                seen["seconds"].append(time.monotonic() - began)
                seen["memory"].append(resident(server.process.pid))
                stop.wait(every)

    with ThreadPoolExecutor(1) as pool:
        probing = pool.submit(probe)
        try:
            yield seen
        finally:
            stop.set()
            probing.result(60)


def step_seconds(http: httpx.Client, seconds: float) -> float:
    """Mean time from one step of the busy engine to the next; asked over a connection that is there."""

    def steps() -> tuple[float, int]:
        engine = http.get("/health").json()["engines"][0]
        return time.monotonic(), engine["steps"]

    (began, before), _, (ended, after) = steps(), threading.Event().wait(seconds), steps()
    return (ended - began) / (after - before)


def quantiles(seconds: list[float]) -> tuple[float, float, float]:
    """Median, 95 per cent, worst; in milliseconds."""
    ordered = sorted(seconds)
    median, most, worst = (1000 * ordered[int((len(ordered) - 1) * part)] for part in (0.5, 0.95, 1.0))
    return median, most, worst


def lines_of(server: Server, **body: Any) -> list[tuple[float, str]]:
    """All data of a stream, and when it came."""
    with httpx.stream("POST", f"{server.url}/v1/completions", json={**body, "stream": True}, timeout=120) as answer:
        assert answer.status_code == 200, answer.read()
        return [(time.monotonic(), line.removeprefix("data: ")) for line in answer.iter_lines() if line]


def all_quiet(server: Server, within: float = 10.0) -> None:
    """No request is left on either side, and every gauge says so."""
    gauges = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    own = ("muro:queued_requests", "muro:queued_prompt_tokens", "muro:held_body_bytes", "muro:requests_in_progress")
    until(lambda: not any(map(server.metric, (*gauges, *own))), within=within, what="all gauges are zero")


@pytest.mark.cases
@pytest.mark.timeout(300)
def test_fc26_more_streams_than_the_soft_limit_of_files() -> None:
    """FC-26: the soft limit is raised at start; descriptors inside do not grow with requests."""
    streams = count(400, 2000)
    for soft in half((256, 1024)):
        with Server("--engine", "paced", "--engine-option", "step_ms=200", file_limit=(soft, None)) as server:
            server.ready()
            engine = descriptors(server.engine_pid)
            with ThreadPoolExecutor(1) as pool, server.http() as http:
                assert http.get("/livez").status_code == 200
                plan = Flood(
                    total=streams, within=2.0, body={"prompt": "abc", "max_tokens": count(5, 50), "stream": True}
                )
                running = pool.submit(flood, server, plan)
                until(lambda: http.get("/health").json()["engines"][0]["in_flight"] > min(streams // 2, 300), within=60)
                assert descriptors(server.engine_pid) == engine
                assert running.result(200).outcomes == {"200": streams}
            all_quiet(server)
            assert server.status() == 200


@pytest.mark.cases
@pytest.mark.timeout(120)
def test_fc26_no_more_files_to_be_had() -> None:
    """FC-26: callers for whom there is no file are refused; streams and engine go on; later everything is as before."""
    with Server("--engine", "paced", "--engine-option", "step_ms=20", file_limit=(256, 256)) as server:
        server.ready()
        with ThreadPoolExecutor(1) as pool, ExitStack() as crowd:
            stream = pool.submit(lines_of, server, prompt="abc", max_tokens=150)
            until(lambda: server.metric("vllm:num_requests_running") == 1)
            for _ in range(400):
                crowd.enter_context(server.raw())
            pieces = stream.result(60)
            text = "".join(json.loads(data)["choices"][0]["text"] for _, data in pieces[:-1])
            assert text == "abc" * 50
            assert descriptors(server.process.pid) < 250
        until(lambda: server.status() == 200)
        assert len(lines_of(server, prompt="abc", max_tokens=10)) > 5
        assert "Traceback" not in server.errors()


@pytest.mark.cases
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "longest",
    [
        pytest.param("within the limit", marks=pytest.mark.slow),
        pytest.param("longer", marks=pytest.mark.slow),
        "second signal",
    ],
)
def test_fc31_a_rolling_update_cuts_nothing_short(longest: str) -> None:
    """FC-31: streams end by themselves, new requests are refused on old and new connections, status 0."""
    tokens, limit = 300, 8 if longest == "longer" else 30
    with Server("--engine", "sim", "--engine-option", "step_us=15000", "--shutdown-timeout", str(limit)) as server:
        server.ready()
        with ThreadPoolExecutor(21) as pool, server.http() as old:
            assert old.get("/readyz").status_code == 200
            streams = [pool.submit(lines_of, server, prompt=f"{n} ", max_tokens=tokens) for n in range(20)]
            endless = (
                [] if longest == "within the limit" else [pool.submit(lines_of, server, prompt="x", max_tokens=8000)]
            )
            until(lambda: server.metric("muro:requests_in_progress") == 20 + len(endless))
            server.signal(signal.SIGTERM)
            until(lambda: server.status("/readyz") == 503, within=1)
            for refused in (old.post("/v1/completions", json={"prompt": "x"}), _post(server)):
                assert (refused.status_code, refused.headers["connection"]) == (503, "close")
                assert int(refused.headers["retry-after"]) >= 1
            for stream in streams:
                *_, last, done = (json.loads(d) if d != "[DONE]" else d for _, d in stream.result(30))
                assert (last["choices"][0]["finish_reason"], done) == ("length", "[DONE]")
                received = [json.loads(data)["choices"][0]["text"] for _, data in stream.result()[:-1]]
                assert len("".join(received)) == tokens
            if longest == "second signal":
                server.signal(signal.SIGTERM)
            for stream in endless:
                assert json.loads(stream.result(30)[-2][1])["choices"][0]["finish_reason"] == "abort"
        assert server.exit_code(10) == 0


def _post(server: Server) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/completions", json={"prompt": "x"})


@pytest.mark.cases
@pytest.mark.timeout(400)
def test_fc33_far_more_requests_than_capacity() -> None:
    """FC-33: capacity for ten; half of the callers give up after a while. All are accounted for, memory is bounded, and
    the engine's steps are no slower for it."""
    total, within, queued = count(2000, 50_000), count(2, 20), count(200, 2048)
    tokens = 16
    with Server("--engine", "sim", "--max-num-seqs", "10", "--max-queued-requests", str(queued)) as server:
        server.ready()
        with ThreadPoolExecutor(11) as pool, watched(server) as seen, server.http() as http:
            full = [pool.submit(lines_of, server, prompt="abc", max_tokens=count(200, 600)) for _ in range(10)]
            until(lambda: server.metric("vllm:num_requests_running") == 10)
            alone = step_seconds(http, within / 4)
            wait(full)
            before = resident(server.process.pid)
            body = {"prompt": "abc", "max_tokens": tokens, "stream": True}
            patience = count(1, 5)
            plan = Flood(total=total, within=within, body=body, leaving=0.5, patience=patience, sources=4)
            crowd = pool.submit(flood, server, plan)
            until(lambda: http.get("/health").json()["queue"]["requests"] > queued // 2)
            crowded = step_seconds(http, within / 2)
            fared = crowd.result()
        print(f"steps: {1000 * alone:.2f} ms alone, {1000 * crowded:.2f} ms with the crowd; {fared}")
        seen["seconds"].sort()
        median = 1000 * seen["seconds"][len(seen["seconds"]) // 2]
        print(f"livez: median {median:.1f}, worst {1000 * seen['seconds'][-1]:.0f} ms")
        assert sum(fared.outcomes.values()) == total
        # When callers come faster than they can be accepted, the system turns some away by a reset.
        turned_away = sum(n for outcome, n in fared.outcomes.items() if outcome not in ("200", "503", "left"))
        assert turned_away < total * 0.05, fared
        assert not any(outcome.isdecimal() for outcome in fared.outcomes.keys() - {"200", "503"})
        assert "no answer" not in fared.outcomes
        assert fared.without_hint == 0
        assert fared.outcomes["200"] >= queued // 3
        assert max(seen["memory"]) - before < 200 * MIB
        assert resident(server.engine_pid) < 400 * MIB
        all_quiet(server)
        # Whoever left while it was still connecting was no request.
        heard = server.metric("muro:requests_total") - 10
        assert total - fared.outcomes.get("left", 0) - turned_away <= heard <= total
        # Whoever left before its turn cost the engine nothing; ten at most were in the midst of it at any time.
        ran = fared.outcomes["200"] + fared.outcomes.get("left", 0) // 4
        assert server.metric("vllm:generation_tokens_total") - 10 * count(200, 600) <= ran * tokens
        assert crowded < alone * (1.10 if FULL else 3.0)


@pytest.mark.cases
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("engine", "more"),
    [
        (("paced", *options("step_ms=10")), {}),
        (("sim", *options("step_us=10000", "tokens=sampled", "max_model_len=200000")), {"logprobs": 5}),
    ],
    ids=["plain", "logprobs"],
)
def test_fc34_readers_slower_than_the_engine(engine: tuple[str, ...], more: dict[str, int]) -> None:
    """FC-34: a byte a second. Their requests end; memory is bounded; others notice nothing."""
    slow, normal = count(20, 100), count(20, 100)
    body = {"prompt": "abc", "max_tokens": 100_000, "n": 8, "stream": True, **more}
    flags = ("--slow-reader-timeout", "3", "--max-unread-tokens", "2000")
    with Server("--engine", *engine, *flags) as server, ExitStack() as readers:
        server.ready()
        alone = _gaps(lines_of(server, prompt="abc", max_tokens=100))
        before = resident(server.process.pid)
        held = [readers.enter_context(_slow_reader(server, body)) for _ in range(slow)]
        until(lambda: server.metric("muro:requests_in_progress") == slow)
        with ThreadPoolExecutor(normal) as pool, watched(server) as seen:
            others = [pool.submit(lines_of, server, prompt="abc", max_tokens=count(300, 1000)) for _ in range(normal)]
            while not all(other.done() for other in others):
                wait(others, timeout=1.0)
                for connection in held:
                    _read_a_byte(connection)
        until(lambda: server.metric("muro:requests_in_progress") == 0, within=120)
        all_quiet(server)
        assert max(seen["memory"]) - before < (50 + 2 * slow) * MIB
        # None of them has left: whoever is counted as such was given up by the kernel, which looks at less than we do.
        ended = server.metric("muro:slow_readers_total") + _outcome(server, "slow_reader") + _outcome(server, "left")
        assert ended >= slow
        median = sorted(gap for other in others for gap in _gaps(other.result()))
        assert median[len(median) // 2] < 10 * alone[len(alone) // 2]
        assert all(other.result()[-1][1] == "[DONE]" for other in others)


def _gaps(lines: list[tuple[float, str]]) -> list[float]:
    return sorted(later - earlier for (earlier, _), (later, _) in pairwise(lines))


@contextmanager
def _slow_reader(server: Server, body: dict[str, Any]) -> Iterator[socket.socket]:
    host, port = server.url.removeprefix("http://").rsplit(":", 1)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        server.post_raw(connection, "/v1/completions", json.dumps(body).encode())
        connection.setblocking(False)
        yield connection


def _read_a_byte(connection: socket.socket) -> None:
    with suppress(OSError):  # nothing there, or closed by the server
        connection.recv(1)


def _outcome(server: Server, outcome: str) -> float:
    text = httpx.get(f"{server.url}/metrics").text
    found = [line for line in text.splitlines() if line.startswith("muro:requests_total") and f'"{outcome}"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in found)


@pytest.mark.cases
@pytest.mark.timeout(400)
def test_fc47_large_bodies_hold_nobody_up(tmp_path: Path) -> None:
    """FC-47: ten chats of 27 MB beside fifty streams: health is answered, tokens flow."""
    byte_level().save(str(tmp_path / "tokenizer.json"))
    template = tmp_path / "chat.jinja"
    template.write_text("{% for m in messages %}<|start|>{{ m['role'] }} {{ m['content'] }}<|end|>{% endfor %}")
    words = ("--tokenizer", str(tmp_path), "--chat-template", str(template))
    content = "hello world " * (27_000_000 // 12)
    chat = json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 4}).encode()
    port = free_port()
    with Server("--engine", "paced", "--engine-option", "step_ms=20", "--health-port", str(port), *words) as server:
        server.ready()
        with ThreadPoolExecutor(60) as pool:
            streams = [pool.submit(lines_of, server, prompt="abc", max_tokens=500) for _ in range(50)]
            until(lambda: server.metric("vllm:num_requests_running") == 50, within=30)
            with watched(server) as seen, watched(server, door=f"http://127.0.0.1:{port}") as apart:
                large: list[Future[httpx.Response]] = [
                    pool.submit(httpx.post, f"{server.url}/v1/chat/completions", content=chat, timeout=120)
                    for _ in range(10)
                ]
                # Larger than any context that is left after the engine's length; or too many at once.
                assert {answer.result().status_code for answer in large} <= {400, 503}
            gaps = [_gaps(stream.result())[-1] for stream in streams]
        # Ten bodies of 27 MB are received, and read one after the other: the machine must do little else meanwhile.
        limit = 0.2 if FULL else 1.0
        median, most, worst = quantiles(seen["seconds"])
        print(f"livez: median {median:.1f}, 95 % {most:.0f}, worst {worst:.0f} ms; longest gap {max(gaps):.2f} s")
        assert most < 1000 * limit
        median, most, worst = quantiles(apart["seconds"])
        print(f"on a port of its own: median {median:.1f}, 95 % {most:.0f}, worst {worst:.0f} ms")
        assert most < 1000 * limit
        assert max(gaps) < 10 * limit
        assert server.metric("muro:held_body_bytes") == 0


@pytest.mark.cases
@pytest.mark.timeout(120)
def test_fc55_gauges_fall_with_a_mass_abort() -> None:
    """FC-55: a hundred callers leave at once, and nobody comes after them."""
    with Server("--engine", "sim", "--max-num-seqs", "64") as server, ExitStack() as callers:
        server.ready()
        body = json.dumps({"prompt": "abc", "max_tokens": 4000, "stream": True}).encode()
        for _ in range(100):
            server.post_raw(callers.enter_context(server.raw()), "/v1/completions", body)
        until(lambda: server.metric("vllm:num_requests_running") == 64, within=30)
        until(lambda: server.metric("vllm:num_requests_waiting") == 36, within=30)
        callers.close()
        all_quiet(server, within=1.5)


@pytest.mark.cases
@pytest.mark.timeout(200)
def test_fc57_idle_connections_can_be_used_again() -> None:
    """FC-57: none is reset, however long it was idle within what pools of clients and proxies take."""
    connections, longest = count(100, 1000), count(3, 90)
    ask = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    with Server("--engine", "echo") as server, ExitStack() as stack:
        server.ready()
        pool = [stack.enter_context(server.raw()) for _ in range(connections)]
        for connection in pool:
            connection.sendall(ask)
            assert answer_on(connection).startswith(b"HTTP/1.1 200")
        began = time.monotonic()
        pause = threading.Event()
        for number, connection in enumerate(pool):
            pause.wait(max(0.0, began + longest * number / connections - time.monotonic()))
            connection.sendall(ask)
            assert answer_on(connection).startswith(b"HTTP/1.1 200")
