"""Control of the engines over HTTP, for developers: each route runs one operation on all of them.

Paths and parameters are those of vLLM's server in its developer mode; like there, they exist only if asked for, since
whoever reaches them can stop everybody else's work. An engine that does not offer an operation says so: 501.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal
from urllib.parse import parse_qs

import msgspec

from muro.errors import InvalidRequestError, UnknownOperationError
from muro.server.errors import reply
from muro.server.exchange import Exchange
from muro.server.schemas.control import (
    CollectiveRpcRequest,
    CollectiveRpcResponse,
    IsPaused,
    IsSleeping,
    NoOptions,
    PauseOptions,
    PrefixCacheOptions,
    SleepOptions,
    Status,
    Success,
    WakeUpOptions,
    WeightVersion,
)
from muro.server.schemas.request import decode_request
from muro.server.service import Service
from muro.wire import ops
from muro.wire.ops import Op

Answers = Sequence[Any]
"""One per engine, by rank."""


class Control(msgspec.Struct, frozen=True):
    """One route: how its options become the arguments of an operation, and the engines' answers one answer."""

    method: Literal["GET", "POST"]
    path: str
    op: Op[Any]
    summary: str
    options: type[msgspec.Struct] = NoOptions
    """In the query, unless `in_body`."""
    args: Callable[[Any], tuple[Any, ...]] = lambda options: ()
    answer: type[msgspec.Struct] | None = None
    made: Callable[[Answers], msgspec.Struct | None] = lambda answers: None
    in_body: bool = False


CONTROLS: tuple[Control, ...] = (
    Control(
        "POST", "/sleep", ops.SLEEP, "Give memory back: level 1 that of the cache, level 2 that of the weights, too",
        SleepOptions, lambda o: (o.level, o.mode),
    ),
    Control("POST", "/wake_up", ops.WAKE_UP, "End the sleep", WakeUpOptions, lambda o: (o.tags,)),
    Control(
        "GET", "/is_sleeping", ops.IS_SLEEPING, "Whether an engine sleeps",
        answer=IsSleeping, made=lambda answers: IsSleeping(any(answers)),
    ),
    Control(
        "POST", "/pause", ops.PAUSE_SCHEDULER, "Run nothing more; answered once nothing runs",
        PauseOptions, lambda o: (o.mode, o.clear_cache), Status, lambda answers: Status("paused"),
    ),
    Control(
        "POST", "/resume", ops.RESUME_SCHEDULER, "Go on",
        answer=Status, made=lambda answers: Status("resumed"),
    ),
    Control(
        "GET", "/is_paused", ops.IS_SCHEDULER_PAUSED, "Whether an engine is paused",
        answer=IsPaused, made=lambda answers: IsPaused(any(answers)),
    ),
    Control(
        "POST", "/reset_prefix_cache", ops.RESET_PREFIX_CACHE, "Forget what was computed for earlier prompts",
        PrefixCacheOptions, lambda o: (o.reset_running_requests, o.reset_external),
        Success, lambda answers: Success(all(answers)),
    ),
    Control("POST", "/reset_mm_cache", ops.RESET_MM_CACHE, "Forget images and the like"),
    Control("POST", "/reset_encoder_cache", ops.RESET_ENCODER_CACHE, "Forget what encoders have computed"),
    Control("POST", "/start_profile", ops.PROFILE, "Start the engine's profiler", args=lambda o: (True,)),
    Control("POST", "/stop_profile", ops.PROFILE, "Stop the engine's profiler", args=lambda o: (False,)),
    Control(
        "GET", "/get_weight_version", ops.GET_WEIGHT_VERSION, "What the weights are called",
        answer=WeightVersion, made=lambda answers: WeightVersion(answers[0]),
    ),
    Control(
        "POST", "/set_weight_version", ops.SET_WEIGHT_VERSION, "Give the weights a name",
        WeightVersion, lambda o: (o.weight_version,), in_body=True,
    ),
    Control(
        "POST", "/collective_rpc", ops.COLLECTIVE_RPC, "Call a listed method of every executor",
        CollectiveRpcRequest, lambda o: (o.method, o.timeout, o.args, o.kwargs),
        CollectiveRpcResponse, lambda answers: CollectiveRpcResponse([r for each in answers for r in each]),
        in_body=True,
    ),
)  # fmt: skip


_REPEATED = frozenset({"tags"})
"""Options that a query may have several times; of others the last one counts."""


class ControlRoute:
    """The handler of one of them."""

    def __init__(self, service: Service, control: Control) -> None:
        self._service = service
        self._control = control

    async def __call__(self, exchange: Exchange) -> None:
        control = self._control
        if control.in_body:
            options = decode_request(await exchange.body(self._service.chat_body_bounds), control.options)
        else:
            if control.method == "POST":
                check_no_body(await exchange.body(self._service.chat_body_bounds), control.path)
            options = read_query(exchange.scope["query_string"], control.options)
        async with exchange.while_connected():
            try:
                answers = await self._service.llm.client.call_all(control.op, *control.args(options))
            except UnknownOperationError as error:
                await exchange.reply_error(reply(501, error.message, code=error.code))
                return
            answer = control.made([answers[rank] for rank in sorted(answers)])
            if answer is None:
                await exchange.reply(200, b"", {})
            else:
                await exchange.reply_json(200, answer)


def check_no_body(body: bytes, path: str) -> None:
    """Raises InvalidRequestError for options in a body where nobody would read them."""
    if body.strip() not in (b"", b"{}"):
        what = f"options of {path} stand in its query ({path}?NAME=VALUE), not in a body"
        raise InvalidRequestError(what, param="body")


def read_query(query: bytes, options: type[msgspec.Struct]) -> Any:
    """The options in a query. Raises InvalidRequestError that names the wrong one."""
    given: dict[str, Any] = {}
    for name, values in parse_qs(query.decode("latin-1"), keep_blank_values=True).items():
        if name not in options.__struct_fields__:
            raise InvalidRequestError(f"there is no option {name[:100]!r} here", param=name[:100])
        given[name] = values if name in _REPEATED else values[-1]
    try:
        return msgspec.convert(given, options, strict=False)
    except msgspec.ValidationError as error:
        words, _, place = str(error).partition(" - at `$.")
        raise InvalidRequestError(f"{place.strip('`')}: {words}", param=place.strip("`") or None) from None
