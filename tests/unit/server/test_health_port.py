"""Health on a port of its own: what is told, how old it may be, and that few callers are answered at once."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from muro.server.health import EngineHealth, Health, QueueHealth
from muro.server.health_port import MOST, STUCK, HealthPort
from tests.support.deadline import until


def state(reason: str | None = None) -> Health:
    engines = [EngineHealth(rank=0, state="serving")]
    return Health(
        status="ok" if reason is None else "unavailable", reason=reason, engines=engines, queue=QueueHealth(0, 0)
    )


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def door(clock: Clock) -> Iterator[HealthPort]:
    listener = socket.create_server(("127.0.0.1", 0))
    door = HealthPort(listener, clock).open()
    yield door
    door.close()


def get(door: HealthPort, path: str) -> httpx.Response:
    return httpx.get(door.url + path, timeout=10)


def told(door: HealthPort, *states: Health) -> None:
    """Let a loop look once at each of these."""
    left = list(states)

    async def keep() -> None:
        over = asyncio.Event()

        def look() -> Health:
            if len(left) == 1:
                over.set()
            return left.pop(0)

        door.keep(look)
        await over.wait()

    asyncio.run(keep())


def test_before_it_serves_it_lives_and_is_not_ready(door: HealthPort) -> None:
    assert get(door, "/livez").text == "ok\n"
    ready = get(door, "/readyz")
    assert (ready.status_code, ready.text) == (503, "the server is starting\n")
    health = get(door, "/health")
    assert (health.status_code, health.json()["status"]) == (503, "unavailable")


def test_what_the_loop_wrote_down_is_handed_out(door: HealthPort, clock: Clock) -> None:
    told(door, state("the engine has died"), state())
    clock.now += 3
    assert get(door, "/readyz").status_code == 200
    health = get(door, "/health")
    assert health.json()["engines"][0]["state"] == "serving"
    assert health.headers["age"] == "3"
    assert health.headers["content-type"] == "application/json"


def test_a_reason_makes_it_unready_and_no_less_alive(door: HealthPort) -> None:
    told(door, state("the engine has died"))
    assert get(door, "/readyz").text == "the engine has died\n"
    assert get(door, "/health").status_code == 503
    assert get(door, "/livez").status_code == 200


def test_a_loop_that_does_not_turn_is_dead(door: HealthPort, clock: Clock) -> None:
    told(door, state())
    clock.now += STUCK + 1
    for path in ("/livez", "/readyz", "/health"):
        answer = get(door, path)
        assert answer.status_code == 503
        assert f"busy with something else for {STUCK + 1:.0f} s" in answer.text


def test_other_paths_and_methods(door: HealthPort) -> None:
    assert get(door, "/metrics").status_code == 404
    assert httpx.post(door.url + "/livez").status_code == 501
    assert get(door, "/livez?verbose").status_code == 200
    head = httpx.head(door.url + "/readyz")
    assert (head.status_code, head.content) == (503, b"")


def test_silent_callers_take_only_so_many_places_and_for_a_moment(door: HealthPort) -> None:
    host, port = door.url.removeprefix("http://").split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(MOST)]
    try:

        def refused() -> bool:
            try:
                get(door, "/livez")
            except httpx.TransportError:
                return True
            return False

        until(refused, what="all places are taken")
        began = time.monotonic()
        until(lambda: not refused(), within=20, what="the silent ones have lost theirs")
        assert time.monotonic() - began < 15
    finally:
        for connection in silent:
            connection.close()


def test_callers_who_dribble_lose_their_places_too(door: HealthPort) -> None:
    host, port = door.url.removeprefix("http://").split(":")
    slow = [socket.create_connection((host, int(port))) for _ in range(MOST)]
    try:
        for caller in slow:
            caller.sendall(b"GET /livez HTTP/1.1\r\nname: ")

        def answered() -> bool:
            for caller in slow:
                with contextlib.suppress(OSError):
                    caller.sendall(b"x")
            try:
                return get(door, "/livez").status_code == 200
            except httpx.TransportError:
                return False

        until(lambda: not answered(), what="all places are taken")
        until(answered, within=10, what="the slow ones have lost theirs")
    finally:
        for caller in slow:
            caller.close()


def test_it_is_closed_with_its_thread_whoever_is_inside(clock: Clock) -> None:
    door = HealthPort(socket.create_server(("127.0.0.1", 0)), clock).open()
    url = door.url
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))):
        door.close()
    with pytest.raises(httpx.TransportError):
        httpx.get(url + "/livez")
