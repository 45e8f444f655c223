"""Tokens, documentation and control over HTTP: real server, simulator and echo."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.deadline import until
from tests.support.server import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--engine", "sim", "--enable-dev-mode") as running:
        yield running.ready()


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with server.http() as client:
        yield client


def tokenize(http: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = http.post("/tokenize", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def test_tokens_of_texts_and_chats(http: httpx.Client) -> None:
    assert tokenize(http, prompt="aé", return_token_strs=True) == {
        "count": 3,
        "max_model_len": 8192,
        "tokens": [97, 195, 169],
        "token_strs": ["<0x61>", "<0xC3>", "<0xA9>"],
    }
    chat = tokenize(http, messages=[{"role": "user", "content": "hi"}])
    assert (bytes(chat["tokens"]).decode(), chat["token_strs"]) == ("user: hi\nassistant: ", None)
    more = tokenize(http, messages=[{"role": "user", "content": "hi"}], add_generation_prompt=False)
    assert bytes(more["tokens"]).decode() == "user: hi\n"
    assert tokenize(http, prompt="x" * 20_000)["count"] == 20_000, "more than the model takes, but it can be counted"
    assert http.post("/detokenize", json={"tokens": [97, 195, 169, 256]}).json() == {"prompt": "aé<|bos|>"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": "a", "depth": 3}, "depth"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {}, "tokens"),
    ],
)
def test_what_is_wrong_is_named(http: httpx.Client, path: str, body: dict[str, Any], param: str) -> None:
    answer = http.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert http.post("/tokenize", json={"prompt": "a", "model": "other"}).status_code == 404


def test_the_documentation_is_here(http: httpx.Client) -> None:
    page = http.get("/docs")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    described = http.get("/openapi.json").json()
    assert {"/v1/chat/completions", "/tokenize", "/pause"} <= set(described["paths"])
    for path, methods in described["paths"].items():
        for method in methods:
            if method == "get" and "{" not in path:
                assert http.get(path).status_code in (200, 501), path


def test_pausing_and_resuming(server: Server, http: httpx.Client) -> None:
    assert http.get("/is_paused").json() == {"is_paused": False}
    assert http.post("/pause", params={"mode": "keep"}).json() == {"status": "paused"}
    assert http.get("/is_paused").json() == {"is_paused": True}
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(
            httpx.post, f"{server.url}/v1/completions", json={"prompt": "a", "max_tokens": 2}, timeout=30
        )
        until(lambda: http.get("/health").json()["engines"][0]["in_flight"] == 1, what="the request is held back")
        assert not asked.done()
        assert http.post("/resume").json() == {"status": "resumed"}
        assert asked.result().status_code == 200


def test_forgetting_the_prefix_cache(http: httpx.Client) -> None:
    def cached() -> int:
        usage = http.post("/v1/completions", json={"prompt": "again " * 40, "max_tokens": 1}).json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]  # type: ignore[no-any-return]

    assert (cached(), cached() > 0) == (0, True)
    assert http.post("/reset_prefix_cache").json() == {"success": True}
    assert cached() == 0


def test_what_cannot_be_done_is_said(http: httpx.Client) -> None:
    answer = http.post("/collective_rpc", json={"method": "no_such_method"})
    assert answer.status_code >= 400
    assert "no_such_method" in answer.json()["error"]["message"]
    answer = http.post("/pause", params={"mode": "gently"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "mode")


def test_without_developer_mode_there_is_no_control(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    with Server("--engine", "echo", "--api-key-file", str(keys)) as server, server.ready().http() as http:
        headers = {"authorization": "Bearer secret"}
        for path in ("/pause", "/resume", "/sleep", "/reset_prefix_cache", "/collective_rpc"):
            assert http.post(path, headers=headers).status_code == 404
        described = http.get("/openapi.json")
        assert described.status_code == http.get("/docs").status_code == 200, "open to browsers"
        assert "/pause" not in described.json()["paths"] and described.json()["security"]
        assert http.post("/tokenize", json={"prompt": "a"}).status_code == 401
        assert http.post("/tokenize", json={"prompt": "a"}, headers=headers).status_code == 200
