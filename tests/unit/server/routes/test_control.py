"""control.py: options become arguments, answers one answer, and what an engine lacks is said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from muro.errors import CallFailedError, InvalidRequestError, UnknownOperationError
from muro.server.exchange import BodyBounds, Exchange, Message
from muro.server.routes.control import CONTROLS, ControlRoute, read_query
from muro.server.schemas.control import PauseOptions, WakeUpOptions
from muro.wire.ops import Op

BY_PATH = {control.path: control for control in CONTROLS}


class Client:
    """Two engines that give what the test says."""

    def __init__(self, answers: Mapping[int, Any] | Exception) -> None:
        self.answers = answers
        self.asked: list[tuple[str, tuple[Any, ...]]] = []

    async def call_all(self, op: Op[Any], *args: Any) -> Mapping[int, Any]:
        op.check_args(args)
        self.asked.append((op.name, args))
        if isinstance(self.answers, Exception):
            raise self.answers
        return self.answers


def ask(client: Client, path: str, query: str = "", body: Any = None) -> tuple[int, Any]:
    service: Any = SimpleNamespace(llm=SimpleNamespace(client=client), chat_body_bounds=BodyBounds(1000, 100, 5.0))
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def test() -> None:
        arrived: asyncio.Queue[Message] = asyncio.Queue()
        arrived.put_nowait({"type": "http.request", "body": b"" if body is None else json.dumps(body).encode()})
        scope = {"type": "http", "headers": [], "query_string": query.encode()}
        await ControlRoute(service, BY_PATH[path])(Exchange(scope, arrived.get, send))

    asyncio.run(test())
    text = b"".join(message["body"] for message in sent[1:])
    return sent[0]["status"], json.loads(text) if text else None


def test_answers_of_several_engines_become_one() -> None:
    assert ask(Client({1: False, 0: True}), "/is_sleeping") == (200, {"is_sleeping": True})
    assert ask(Client({1: False, 0: True}), "/reset_prefix_cache") == (200, {"success": False})
    assert ask(Client({1: None, 0: None}), "/resume") == (200, {"status": "resumed"})
    assert ask(Client({1: None, 0: None}), "/sleep") == (200, None)
    body = {"method": "m", "args": [1], "timeout": 2}
    client = Client({1: ["c"], 0: ["a", "b"]})
    assert ask(client, "/collective_rpc", body=body) == (200, {"results": ["a", "b", "c"]})
    assert client.asked == [("collective_rpc", ("m", 2.0, [1], None))]


def test_options_become_arguments() -> None:
    client = Client({0: None})
    ask(client, "/sleep", "level=2&mode=wait")
    ask(client, "/pause", "mode=keep&clear_cache=0")
    ask(client, "/wake_up", "tags=weights&tags=kv_cache")
    ask(client, "/start_profile")
    ask(client, "/set_weight_version", body={"weight_version": "v2"})
    assert client.asked == [
        ("sleep", (2, "wait")),
        ("pause_scheduler", ("keep", False)),
        ("wake_up", (["weights", "kv_cache"],)),
        ("profile", (True,)),
        ("set_weight_version", ("v2",)),
    ]


def test_options_in_a_body_that_nobody_would_read_are_refused() -> None:
    client = Client({0: None})
    with pytest.raises(InvalidRequestError, match=r"stand in its query \(/pause\?NAME=VALUE\)"):
        ask(client, "/pause", body={"mode": "keep"})
    assert client.asked == []
    assert ask(client, "/pause", "mode=keep", body={}) == (200, {"status": "paused"})


def test_what_an_engine_lacks_or_cannot_do() -> None:
    status, said = ask(Client(UnknownOperationError("it has no sleep")), "/sleep")
    assert (status, said["error"]["code"], said["error"]["message"]) == (501, "unknown_operation", "it has no sleep")
    with pytest.raises(CallFailedError):  # answered by the application, like every other error
        ask(Client(CallFailedError("it broke")), "/sleep")


def test_every_control_has_a_path_of_its_own_and_options_with_defaults() -> None:
    assert len({(c.method, c.path) for c in CONTROLS}) == len(CONTROLS)
    for control in CONTROLS:
        if not control.in_body:
            control.op.check_args(control.args(control.options()))


def test_options_of_a_query() -> None:
    assert read_query(b"mode=keep&clear_cache=false", PauseOptions) == PauseOptions("keep", False)
    assert read_query(b"tags=weights&tags=kv_cache", WakeUpOptions) == WakeUpOptions(["weights", "kv_cache"])
    assert read_query(b"", WakeUpOptions) == WakeUpOptions()


@pytest.mark.parametrize(
    ("query", "param"), [(b"mode=x", "mode"), (b"clear_cache=5", "clear_cache"), (b"depth=1", "depth")]
)
def test_a_wrong_option_of_a_query_is_named(query: bytes, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_query(query, PauseOptions)
    assert caught.value.param == param


def test_only_what_can_be_woken_is_a_tag() -> None:
    assert read_query(b"tags=weights&tags=scheduling", WakeUpOptions).tags == ["weights", "scheduling"]
    with pytest.raises(InvalidRequestError, match="tags"):
        read_query(b"tags=weights&tags=x", WakeUpOptions)
