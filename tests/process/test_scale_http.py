"""The number of engines changes over HTTP and from the command line, under streams."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.deadline import until
from tests.support.server import Server

SIM = ["--engine", "sim", "--engine-option", "step_us=2000", "--engine-option", "prefill_us_per_token=0"]


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(*SIM, "--enable-dev-mode", "--restart", "on-failure") as running:
        yield running.ready()


def ranks(http: httpx.Client) -> list[int]:
    return [engine["rank"] for engine in http.get("/health").json()["engines"]]


def muro_scale(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "muro", "scale", "--url", server.url, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)


class Load:
    """Callers whose every stream must have all its tokens."""

    def __init__(self, url: str, callers: int) -> None:
        self._url = url
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._call) for _ in range(callers)]
        self.served = 0
        self.wrong: list[str] = []

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _call(self) -> None:
        with httpx.Client(base_url=self._url, timeout=30) as http:
            while not self._over.is_set():
                body = {"prompt": "a", "max_tokens": 40, "ignore_eos": True, "stream": True}
                body["stream_options"] = {"include_usage": True}
                with http.stream("POST", "/v1/completions", json=body) as answer:
                    lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
                if lines[-1] != "[DONE]" or json.loads(lines[-2])["usage"]["completion_tokens"] != 40:
                    self.wrong.append(lines[-1])
                self.served += 1


def test_under_streams_nothing_is_lost(server: Server) -> None:
    with server.http() as http, Load(server.url, 8) as load:
        until(lambda: load.served > 8)
        answer = http.post("/scale", json={"engines": 3})
        assert (answer.status_code, answer.json()) == (200, {"ranks": [0, 1, 2]})
        assert server.metric("muro:engine_up") == 3
        seen = load.served
        until(lambda: load.served > seen + 16)
        said = muro_scale(server, "1")
        assert (said.returncode, said.stdout) == (0, "1 engine serves: 0\n"), said.stderr
        assert ranks(http) == [0] and server.metric("muro:engine_up") == 1
        seen = load.served
        until(lambda: load.served > seen + 16)
        answer = http.post("/scale_elastic_ep", json={"new_data_parallel_size": 2, "drain_timeout": 5})
        assert answer.json() == {"message": "Scaled to 2 data parallel engines"}
    assert not load.wrong


def test_what_cannot_be_is_said(server: Server) -> None:
    with server.http() as http:
        for body, param in (
            ({"engines": 0}, "engines"),
            ({"engines": 300}, "engines"),
            ({"engines": "2"}, "engines"),
            ({}, "engines"),
            ({"engines": 2, "drain_timeout": -1}, "drain_timeout"),
        ):
            answer = http.post("/scale", json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), body
        assert ranks(http) == [0]


def test_who_asks_and_leaves_has_changed_nothing(server: Server) -> None:
    with server.http() as http:
        assert http.post("/scale", json={"engines": 2}).status_code == 200
        body = {"prompt": "a", "max_tokens": 8000, "ignore_eos": True, "stream": True}
        pinned = {"x-data-parallel-rank": "1"}
        with http.stream("POST", "/v1/completions", json=body, headers=pinned) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            with pytest.raises(httpx.ReadTimeout):
                assert httpx.post(f"{server.url}/scale", json={"engines": 1}, timeout=0.5).text == "later"
            until(lambda: {engine["state"] for engine in http.get("/health").json()["engines"]} == {"serving"})


def test_without_developer_mode_nobody_scales(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    with Server(*SIM, "--api-key-file", str(keys)) as running:
        running.ready()
        said = muro_scale(running, "2", "--api-key-file", str(keys))
        assert said.returncode == 1 and "--enable-dev-mode" in said.stderr
        said = muro_scale(running, "2")
        assert said.returncode == 1 and "key" in said.stderr


def test_a_time_that_is_none_is_refused() -> None:
    command = [sys.executable, "-m", "muro", "scale", "1", "--drain-timeout", "inf"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (said.returncode, said.stderr) == (
        2,
        "muro: --drain-timeout inf: this must be a number, of 1000000000 at most\n",
    )
