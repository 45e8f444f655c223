"""Engines of other implementations under our front-end: waited for by name, used in turns, each in its layout."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import msgspec
import pytest

from muro import connect
from muro.clients.sync import SyncMPClient
from muro.wire.request import LoRARequest
from tests.support.asking import ask
from tests.support.deadline import until
from tests.support.elsewhere import PORT_HOST, free_port
from tests.support.foreign_engine import ForeignEngine, foreign_engines
from tests.support.server import Server


def front_end(port: int, engines: int) -> SyncMPClient:
    return connect(host=PORT_HOST, handshake_port=port, num_engines=engines, num_local_engines=0, startup_timeout=20)


@pytest.mark.parametrize("release", [f"0.{minor}.0" for minor in range(25, 34)])
def test_every_release_is_read(release: str) -> None:
    port = free_port()
    with foreign_engines(f"tcp://{PORT_HOST}:{port}", release) as [engine], front_end(port, 1) as client:
        (output,) = client.generate(ask("a", 5))
        assert output.new_token_ids == [7, 8, 9, 7, 8]
        assert output.prefill_stats is not None and output.prefill_stats.num_prompt_tokens == 3
        (status,) = client.engines()
        assert status.state == "serving"
        assert [len(add) for add in engine.adds] == [20], "which every release accepts"


def test_an_engine_that_hangs_up_after_ready_is_waited_for() -> None:
    port = free_port()
    with foreign_engines(f"tcp://{PORT_HOST}:{port}", "0.25.1", hangs_up=True), front_end(port, 1) as client:
        (output,) = client.generate(ask("a", 5))
        assert output.new_token_ids == [7, 8, 9, 7, 8]


def test_adapters_are_named_as_each_release_reads_them() -> None:
    port = free_port()
    adapter = LoRARequest("ours", 1, "/adapters/ours", load_inplace=True)
    with foreign_engines(f"tcp://{PORT_HOST}:{port}", "0.25.1", "0.33.0") as engines, front_end(port, 2) as client:
        for number in range(2):
            request = ask(f"{number}")
            request.lora_request = adapter
            list(client.generate(request))
        lengths = [len(msgspec.msgpack.decode(engine.adds[0][6])) for engine in engines]
        assert lengths == [7, 6]


def test_engines_take_turns() -> None:
    """Of releases that write their outputs differently, too."""
    port = free_port()
    with foreign_engines(f"tcp://{PORT_HOST}:{port}", "0.25.1", "0.33.0", "0.28.0") as engines:
        with front_end(port, 3) as client:
            for number in range(9):
                (output,) = client.generate(ask(f"{number}", 2))
                assert output.new_token_ids == [7, 8]
                assert output.prefill_stats is not None and output.prefill_stats.num_prompt_tokens == 3
        assert [len(engine.adds) for engine in engines] == [3, 3, 3]


def test_who_is_missing_is_said_again_and_again() -> None:
    port = free_port()
    address = f"tcp://{PORT_HOST}:{port}"
    apart = ("-dp", "2", "-dpl", "0", "-dpa", PORT_HOST, "-dpp", str(port))
    with Server("--engine", "echo", *apart) as server, foreign_engines(address, "0.33.0"):
        line = "engine 1 (started elsewhere): waiting for it: no HELLO yet"
        until(lambda: server.errors().count(line) >= 3, within=30, what="the missing one is named three times")
        assert server.errors().count("engine 0 (started elsewhere): waiting for it: no HELLO yet") <= 1


UNKNOWN: list[tuple[str, dict[str, object]]] = [
    ("prompt", {"prompt": [1, 258]}),
    ("prompt", {"prompt": [[1], [1_000_000]]}),
    ("logit_bias", {"logit_bias": {"1000000": 1}}),
    ("allowed_token_ids", {"allowed_token_ids": [1, 258]}),
    ("allowed_token_ids", {"allowed_token_ids": []}),
    ("stop_token_ids", {"stop_token_ids": [258], "min_tokens": 1}),
]


def test_a_token_that_the_model_does_not_have_never_reaches_them(
    before_one: tuple[httpx.Client, ForeignEngine],
) -> None:
    """It would end an engine of vLLM's."""
    http, engine = before_one
    for named, body in UNKNOWN:
        answer = http.post("/v1/completions", json={"prompt": "abc", "max_tokens": 2, **body})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == named, answer.text
    answer = http.post("/v1/embeddings", json={"input": [300]})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "prompt", answer.text
    assert engine.adds == []
    assert http.post("/v1/completions", json={"prompt": [1, 257], "max_tokens": 2}).status_code == 200
    assert len(engine.adds) == 1


@pytest.fixture
def before_one() -> Iterator[tuple[httpx.Client, ForeignEngine]]:
    """A server with an engine of another make; its tokens are bytes, and two more."""
    port = free_port()
    flags = ("--engine", "echo", "-dpl", "0", "-dpp", str(port))
    with foreign_engines(f"tcp://{PORT_HOST}:{port}", "0.25.1") as [engine], Server(*flags) as server:
        with server.ready().http() as http:
            yield http, engine


def test_a_grammar_that_does_not_compile_never_reaches_them(before_one: tuple[httpx.Client, ForeignEngine]) -> None:
    """It would end an engine of vLLM's."""
    http, engine = before_one

    def ask_for(**structure: object) -> httpx.Response:
        body = {"prompt": "abc", "max_tokens": 2, "structured_outputs": structure}
        return http.post("/v1/completions", json=body, timeout=30)

    for wrong in ({"regex": "(unclosed"}, {"json": {"type": "nothing"}}, {"grammar": "root ::= ["}, {}):
        answer = ask_for(**wrong)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == "structured_outputs"
    assert engine.adds == []
    assert ask_for(regex="(a|b)+").status_code == 200
    assert ask_for(json={"type": "object"}).status_code == 200
    assert len(engine.adds) == 2
