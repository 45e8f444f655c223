"""`muro serve` with several ranks: lockstep ones, and those of hybrid and external load balancing."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import httpx
import psutil
import pytest

from tests.support.deadline import until
from tests.support.harm import kill
from tests.support.server import Server

SIM = ("--engine", "sim", "--engine-option", "step_us=1000")
LOCKSTEP = (*SIM, "--engine-option", "lockstep=true", "--data-parallel-lockstep", "--data-parallel-size", "2")


def complete(http: httpx.Client, rank: str | None = None) -> httpx.Response:
    headers = {} if rank is None else {"X-data-parallel-rank": rank}
    body = {"prompt": "abc", "max_tokens": 20, "ignore_eos": True}
    return http.post("/v1/completions", json=body, headers=headers)


def engines_of(server: Server) -> list[psutil.Process]:
    """Its engines' processes, by rank."""
    ranked = {}
    for child in psutil.Process(server.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it is being buried
            if "--rank" in (line := child.cmdline()):
                ranked[int(line[line.index("--rank") + 1])] = child
    return [child for _, child in sorted(ranked.items())]


def test_lockstep_engines_serve_and_come_back_together() -> None:
    with Server(*LOCKSTEP) as server, server.ready().http() as http:
        for rank in (None, "0", "1"):
            answer = complete(http, rank)
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["completion_tokens"] == 20
        assert 0 < server.metric("muro:load_report_age_seconds") < 10
        before = engines_of(server)
        assert len(before) == 2
        kill(before[1].pid)
        until(lambda: len(now := engines_of(server)) == 2 and not set(now) & set(before), within=30)
        for rank in ("0", "1"):
            assert until(lambda rank=rank: complete(http, rank).status_code == 200, within=30)


@pytest.mark.parametrize(
    ("flags", "ranks"),
    [
        (("-dp", "4", "--data-parallel-size-local", "2", "--data-parallel-hybrid-lb", "-dpr", "2"), ["2", "3"]),
        (("-dp", "4", "--data-parallel-rank", "3"), ["3"]),
    ],
)
def test_a_front_end_of_some_ranks(flags: tuple[str, ...], ranks: list[str]) -> None:
    with Server(*SIM, *flags) as server, server.ready().http() as http:
        assert len(engines_of(server)) == len(ranks)
        for rank in (None, *ranks):
            assert complete(http, rank).status_code == 200
        for rank in ("0", "4", "-1", "x", "", str(2**63)):
            answer = complete(http, rank)
            assert answer.status_code == 400, "FC-41"
            assert answer.json()["error"]["message"].endswith(", ".join(ranks))


@pytest.mark.parametrize("flags", [("--data-parallel-size-local", "2", "--data-parallel-hybrid-lb"), ("-dpn", "0")])
def test_the_front_end_of_the_first_ranks_takes_none_of_the_others(flags: tuple[str, ...]) -> None:
    flags = (*flags, "-dpa", "127.0.0.1")
    with Server("--engine", "echo", "--enable-dev-mode", "-dp", "4", *flags) as server, server.ready().http() as http:
        assert "--data-parallel-address 127.0.0.1 has no effect" in server.errors()
        before = engines_of(server)
        answer = http.post("/scale", json={"engines": 3})
        assert answer.status_code == 409 and "other front-ends" in answer.json()["error"]["message"]
        assert engines_of(server) == before


def test_what_does_not_go_together_is_refused_before_anything_starts() -> None:
    command = [sys.executable, "-m", "muro", "serve", *LOCKSTEP, "--data-parallel-rank", "1"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2 and "--data-parallel-lockstep" in ended.stderr + ended.stdout
