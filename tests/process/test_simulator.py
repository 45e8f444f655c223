"""The simulator behind real clients: what it says is foretold, what goes wrong is told, and restarts leave nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from muro import EngineDeadError, connect
from muro.config import ConnectConfig, EngineConfig, RestartPolicy
from muro.engines.sim.text import continuation
from muro.errors import CallFailedError
from tests.support.asking import FOREVER, ask
from tests.support.server import Server

PROMPT = list(b"Once upon a time")


def test_tokens_are_those_foretold() -> None:
    with connect(engine="sim", options={"step_us": 100}) as client:
        streams = {n: client.generate(ask(f"r{n}", 40, [*PROMPT, n], temperature=0.9, seed=n)) for n in range(20)}
        told = {n: [token for item in stream for token in item.new_token_ids] for n, stream in streams.items()}
    assert told == {n: continuation([*PROMPT, n], 40) for n in range(20)}


def test_faults_at_run_time() -> None:
    with connect(engine="sim", options={"fault": "hang@time=600"}) as client:
        client.call("inject_fault", "step:raise@step=3")
        assert client.call("list_faults") == ["step:hang@time=600", "step:raise@step=3"]
        with pytest.raises(CallFailedError, match="the place is one of"):
            client.call("inject_fault", "explode")
        with pytest.raises(EngineDeadError, match="FaultError: a fault was asked for in step"):
            list(client.generate(ask("a", FOREVER)))


def test_it_dies_although_there_is_no_work() -> None:
    with connect(engine="sim", options={"fault": "idle:signal=SIGKILL@time=0.2"}) as client:
        with pytest.raises(EngineDeadError, match="killed by SIGKILL"):
            client.get_outputs(timeout=20)


def test_restarts_leave_no_socket_files(tmp_path: Path) -> None:
    restart = RestartPolicy(policy="on-failure", backoff_first=0.02, budget=100)
    config = ConnectConfig(engine=EngineConfig(engine="sim"), restart=restart, socket_dir=str(tmp_path))
    with connect(config) as client:
        before = sorted(path.name for path in tmp_path.rglob("*") if path.is_socket())
        for number in range(3):
            with pytest.raises(EngineDeadError):
                list(client.generate(ask(f"r{number}", FOREVER, extra_args={"fault": "step:signal=SIGKILL"})))
            client.wait_serving(20)
            stream = client.generate(ask(f"s{number}", 3, PROMPT))
            assert [token for item in stream for token in item.new_token_ids] == continuation(PROMPT, 3)
        assert sorted(path.name for path in tmp_path.rglob("*") if path.is_socket()) == before
    assert not list(tmp_path.iterdir())


def test_over_http_with_a_scenario(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.toml"
    scenario.write_text('[[fault]]\ndo = "output:refuse"\nrequest = 2\n')
    with Server("--engine", "sim", "--engine-option", f"scenario={scenario}", "--fault", "sleep=0.1") as server:
        server.ready()
        with server.http() as http:
            body = {"prompt": bytes(PROMPT).decode(), "max_tokens": 30}
            first, second, third, fourth = (
                http.post("/v1/completions", json=body | more)
                for more in ({}, {}, {"vllm_xargs": {"fault": "add:raise"}}, {})
            )
        assert first.json()["choices"][0]["text"] == bytes(continuation(PROMPT, 30)).decode()
        assert (second.status_code, second.json()["error"]["message"]) == (400, "a refusal was asked for in output")
        assert (third.status_code, third.json()["error"]["code"]) == (500, "request_failed")
        assert fourth.json()["choices"] == first.json()["choices"]
