"""FC-02, FC-03, FC-05 over HTTP: a stuck engine is told to probes and callers, a busy one bothers nobody.

`pytest -s` shows how long it took.
"""

import threading
import time
from typing import Any

import httpx
import pytest

from tests.support.deadline import until
from tests.support.server import Server

pytestmark = pytest.mark.cases

PROBE = 0.5
"""Seconds between two probes."""


def ask(server: Server, fault: str | None = None, max_tokens: int = 3) -> httpx.Response:
    body: dict[str, Any] = {"prompt": "abc", "max_tokens": max_tokens}
    if fault:
        body["vllm_xargs"] = {"fault": fault}
    return httpx.post(server.url + "/v1/completions", json=body, timeout=30)


def in_background(server: Server, fault: str, max_tokens: int) -> tuple[threading.Thread, list[httpx.Response]]:
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(ask(server, fault, max_tokens)))
    thread.start()
    return thread, answers


@pytest.mark.parametrize("fault", ["step:hang_lock", "step:spin", "step:barren"])
def test_fc02_fc03_readiness_goes_bad_the_caller_is_told_and_the_server_goes_on(fault: str) -> None:
    with Server("--engine", "faulty", "--stall-limit", "1") as server:
        server.ready()
        assert ask(server).status_code == 200 and server.status("/readyz") == 200
        began = time.monotonic()
        thread, answers = in_background(server, fault, 100)
        until(lambda: server.status("/readyz") == 503, within=5, what="readiness goes bad")
        bad = time.monotonic() - began
        thread.join(10)
        told = time.monotonic() - began
        until(lambda: server.status("/readyz") == 200, within=20, what="the next engine serves")
        again = time.monotonic() - began
        print(f"\n{fault}: not ready after {bad:.2f} s, told after {told:.2f} s, ready again after {again:.2f} s")
        assert bad < 1 + 1.5 and told < 1 + 2
        (answer,) = answers
        assert answer.status_code >= 500 and "stuck" in answer.json()["error"]["message"]
        assert ask(server).status_code == 200
        assert server.metric("muro:engine_generation") == 1
        assert "is stuck" in server.errors() and "most recent call first" in server.errors()


def test_fc05_probes_during_a_long_step_are_good_and_quick_and_ask_the_engine_nothing() -> None:
    """A step three times as long as the distance of probes, under the limit."""
    with Server("--engine", "faulty", "--stall-limit", "4") as server:
        server.ready()
        ask(server)
        steps = server.metric("muro:engine_steps")
        thread, answers = in_background(server, f"step:sleep={6 * PROBE}", 3)
        until(lambda: server.metric("muro:engine_step_age_seconds") > 0)
        took, ages = [], []
        with server.http() as probes:
            while thread.is_alive():
                for path in ("/health", "/readyz"):
                    began = time.monotonic()
                    assert probes.get(path).status_code == 200
                    took.append(time.monotonic() - began)
                ages.append(server.metric("muro:engine_step_age_seconds"))
                thread.join(PROBE)
        assert answers[0].status_code == 200
        print(f"\n{len(took)} probes in a step of {6 * PROBE} s: the slowest {max(took) * 1000:.0f} ms; ages {ages}")
        assert len(took) >= 2 * 4 and sorted(took)[len(took) // 2] < 0.05 and max(took) < 0.5
        assert ages[:-1] == sorted(ages[:-1]) and max(ages) > 2
        assert server.metric("muro:engine_steps") - steps == 3, "what probes ask costs the engine no step"


def test_the_ages_of_the_last_step_and_of_the_last_report_grow_while_nothing_happens() -> None:
    names = ("muro:engine_last_step_age_seconds", "muro:engine_last_report_age_seconds")
    with Server("--engine", "sim") as server:
        server.ready()
        assert ask(server).status_code == 200
        first = {name: server.metric(name) for name in names}
        assert all(0 < age < 5 for age in first.values())
        for name in names:
            until(lambda name=name: server.metric(name) > first[name] + 0.5)
        assert ask(server).status_code == 200
        assert all(server.metric(name) < first[name] + 0.5 for name in names)
