"""The other commands: load on a server, an engine alone, a model's directory, help that teaches."""

import importlib.util
import json
import re
import signal
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest

from muro.cli.options import EXIT_CODES, ServeOptions
from muro.models import catalog
from tests.support.deadline import until
from tests.support.server import Server


def muro(*arguments: str, code: int = 0) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "muro", *arguments], capture_output=True, text=True, timeout=50, check=False
    )
    assert ended.returncode == code, ended.stderr
    return ended.stdout if code == 0 else ended.stderr


@pytest.mark.parametrize(
    "command",
    [(), ("serve",), ("chat",), ("pull",), ("bench",), ("bench", "wall"), ("bench", "serve"), ("bench", "executor")],
)
def test_every_help_teaches(command: tuple[str, ...]) -> None:
    shown = muro(*command, "--help")
    assert "Usage" in shown
    assert len(shown.splitlines()) > 7


def test_the_help_names_the_exit_codes() -> None:
    assert " ".join(EXIT_CODES.split()) in " ".join(muro("serve", "--help").split())


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_help_cuts_no_flag(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown = muro("serve", "--help")
    for field in msgspec.structs.fields(ServeOptions):
        if field.name != "model":
            assert re.search(rf"--{field.name.replace('_', '-')}\b", shown), field.name
    assert "\u2026" not in shown
    assert shown.index("Model and engine:") < shown.index("HTTP:") < shown.index("Engines elsewhere:")
    if width == 80:
        assert max(map(len, shown.splitlines())) <= width


@pytest.mark.parametrize("spelling", ["version", "--version"])
def test_version(spelling: str) -> None:
    assert muro(spelling).strip() == version("muro")


@pytest.mark.parametrize("extra", [(), ("--no-stream",), ("--route", "chat")])
def test_load_on_a_server(extra: tuple[str, ...]) -> None:
    with Server("--engine", "echo") as server:
        server.ready()
        pid = str(server.process.pid)
        shown = muro(
            "bench", "serve", server.url, "-n", "40", "-c", "8", "--max-tokens", "20", "--pid", pid, "--json", *extra
        )
        result = json.loads(shown)
        assert (result["requests"], result["errors"], result["tokens"]) == (40, 0, 800)
        assert result["ttft_ms"]["p50"] > 0
        assert result["processes"][pid]["rss_mb"] > 10
        assert bool(result["between_events_ms"]) is ("--no-stream" not in extra)
        assert "tokens/s" in muro("bench", "serve", server.url, "-n", "4", *extra)
        wrong = json.loads(muro_failing("bench", "serve", server.url, "-n", "4", "--model", "other", "--json"))
        assert wrong["errors"] == 4
        assert "there is no model" in wrong["error_samples"][0]


def muro_failing(*arguments: str) -> str:
    command = [sys.executable, "-m", "muro", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert ended.returncode == 1
    return ended.stdout


def test_load_on_nobody() -> None:
    assert "nobody answers" in muro("bench", "serve", "http://127.0.0.1:9", code=2)
    assert "is no address" in muro("bench", "serve", "ftp://x", code=2)


def test_engines_that_are_started_elsewhere() -> None:
    """One front-end without an engine of its own, and one engine alone."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    apart = ("--data-parallel-size", "1", "--data-parallel-size-local", "0", "--data-parallel-rpc-port", port)
    headless = ("serve", "--engine", "echo", "--headless", "--data-parallel-rpc-port", port)
    with Server("--engine", "echo", *apart) as server:
        until(lambda: "waiting for it" in server.errors(), within=20)
        with subprocess.Popen([sys.executable, "-m", "muro", *headless], stdout=subprocess.PIPE) as engine:
            assert engine.stdout is not None
            said = engine.stdout.readline().decode()
            assert f"engine 0 (echo) dials the front-end at tcp://127.0.0.1:{port} and waits for it" in said
            server.ready()
            with server.http() as http:
                assert http.post("/v1/completions", json={"prompt": "ab", "max_tokens": 2}).status_code == 200
            engine.send_signal(signal.SIGTERM)
            assert engine.wait(10) == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--headless", "--peer-release", "0.24"), "releases 0.25 to 0.33"),
        (("--headless", "--peer-release", "newest"), "'newest' is unknown"),
        (("--peer-release", "0.33"), "--headless"),
        (("--headless", "--max-model-len", "100"), "--engine-option max_model_len=100"),
    ],
)
def test_settings_of_an_engine_that_dials_in(arguments: tuple[str, ...], named: str) -> None:
    assert named in muro("serve", "--engine", "echo", *arguments, code=2)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is here")
def test_what_an_engine_that_dials_in_lacks_is_told_before_it_waits() -> None:
    assert "muro[vllm]" in muro("serve", "--engine", "vllm", "--headless", code=2)


def test_an_engine_for_which_no_front_end_comes_says_so_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    said = muro(
        *("serve", "--engine", "echo", "--headless", "--startup-timeout", "1", "--data-parallel-rpc-port", port),
        code=11,
    )
    assert said.count("and got no INIT in 1 s") == 1 and "Traceback" not in said


@pytest.mark.parametrize("engine", [(), ("--engine", "vllm")])
def test_engines_of_models_take_the_length_of_a_context_when_they_dial_in(engine: tuple[str, ...]) -> None:
    asked = ("serve", "/no/such/model", *engine, "--headless", "--max-model-len", "100")
    assert "there is no model directory" in muro(*asked, code=2)


def test_an_unknown_model() -> None:
    assert "demo" in muro("pull", "nonsense", code=2)


def test_a_directory_that_does_not_exist() -> None:
    """What `make serve MODEL=/wrong` says, too: it asks `muro pull` for what is no directory."""
    for path in ("/no/such/model", "./model"):
        assert f"there is no directory '{path}'" in muro("pull", path, code=2)


@pytest.mark.model
@pytest.mark.timeout(600)
def test_the_demo_models_directory_is_the_last_line() -> None:
    directory = Path(muro("pull", "demo").splitlines()[-1])
    assert directory.name == catalog.find("demo").directory
    assert (directory / "tokenizer.json").is_file()
