"""Front-ends with one fault each: what is wrong, and which case of `muro wire check` finds it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from muro.testing.broken.frontend import CLIENT, REQUEST_ID, SAMPLING, FrontendHooks, Gone, Map, Messages, Tree
from muro.wire.frames import RequestType
from muro.wire.handshake import ReadyResponse
from muro.wire.output import EngineCoreOutput, FinishReason

MORE_THAN_ANY: Final = 19


class BrokenFrontend(msgspec.Struct, frozen=True):
    """One fault: what is wrong, the cases that fail because of it, and how it is done."""

    wrong: str
    cases: tuple[str, ...]
    hooks: FrontendHooks


def _without_key(init: Map) -> Map:
    del init["addresses"]["coordinator_output"]
    return init


def _unequal(init: Map) -> Map:
    init["addresses"]["outputs"] *= 2
    return init


def _port_zero(init: Map) -> Map:
    init["addresses"]["outputs"] = ["tcp://127.0.0.1:0"]
    return init


def _call(call_id: int, args: Any) -> list[bytes]:
    return [RequestType.UTILITY, msgspec.msgpack.encode([0, call_id, "is_sleeping", args])]


def _strict_keys(ready: Map) -> Messages:
    if set(ready) - set(ReadyResponse.__struct_fields__):
        raise Gone
    return []


def _short(tree: Tree) -> Tree:
    return tree[:8]


def _other_client(tree: Tree) -> Tree:
    tree[CLIENT] = 3
    return tree


def _same_id(tree: Tree) -> Tree:
    tree[REQUEST_ID] = "cmpl"
    return tree


def _no_seed(tree: Tree) -> Tree:
    del tree[SAMPLING]["seed"]
    return tree


def _list_for_map(tree: Tree) -> Tree:
    tree[SAMPLING] = list(tree[SAMPLING].items())
    return tree


def _last_token_lost(output: EngineCoreOutput) -> EngineCoreOutput:
    if output.finish_reason is not None:
        output.new_token_ids = []
    return output


def _errors_lost(output: EngineCoreOutput) -> EngineCoreOutput | None:
    return None if output.finish_reason == FinishReason.ERROR else output


def _go(*_: Any) -> None:
    raise Gone


def _not_mine(request_id: str) -> None:
    if not request_id.startswith("cmpl"):
        raise Gone


def _counting(tree: Tree) -> None:
    if any(len(row) > MORE_THAN_ANY for row in tree[1]):
        raise Gone


def _no_empty(tree: Tree) -> None:
    if not any(tree[1:3] + tree[4:]):
        raise Gone


def _no_mixed(tree: Tree) -> None:
    if len(tree) > 4 and tree[4] is not None and tree[1]:
        raise Gone


def _no_stats_alone(tree: Tree) -> None:
    if len(tree) > 2 and tree[2] is not None and not tree[1]:
        raise Gone


BROKEN_FRONTENDS: Final[dict[str, BrokenFrontend]] = {
    "no-init": BrokenFrontend("does not answer HELLO", ("init",), FrontendHooks(init=lambda init: None)),
    "lost-key": BrokenFrontend(
        "leaves an address that is nil out of INIT", ("init_keys",), FrontendHooks(init=_without_key)
    ),
    "unequal": BrokenFrontend(
        "lists two output sockets for one input socket", ("init_keys",), FrontendHooks(init=_unequal)
    ),
    "port-zero": BrokenFrontend("tells port 0 instead of the real one", ("addresses",), FrontendHooks(init=_port_zero)),
    "impatient": BrokenFrontend(
        "calls an engine that has not said READY",
        ("waits",),
        FrontendHooks(ready_response=lambda ready: [_call(1, [])]),
    ),
    "strict-keys": BrokenFrontend(
        "ends at a key of the ready response that it does not know",
        ("ready_keys",),
        FrontendHooks(ready_response=_strict_keys),
    ),
    "map-for-args": BrokenFrontend(
        "gives the arguments of a call as a map", ("messages",), FrontendHooks(joined=lambda: [_call(1, {})])
    ),
    "same-call-id": BrokenFrontend(
        "uses the id of a call twice", ("call_ids",), FrontendHooks(joined=lambda: [_call(1, []), _call(1, [])])
    ),
    "waves": BrokenFrontend(
        "starts waves of engines that are independent",
        ("no_waves",),
        FrontendHooks(joined=lambda: [[RequestType.START_DP_WAVE, msgspec.msgpack.encode([0, None])]]),
    ),
    "list-for-map": BrokenFrontend(
        "writes sampling parameters as a list", ("completion", "messages"), FrontendHooks(add=_list_for_map)
    ),
    "short-add": BrokenFrontend("writes requests of 8 elements", ("add_layout",), FrontendHooks(add=_short)),
    "other-client": BrokenFrontend(
        "says that it is process 3 of one", ("client_index",), FrontendHooks(add=_other_client)
    ),
    "same-id": BrokenFrontend(
        "gives every request the same id", ("request_ids", "together"), FrontendHooks(add=_same_id)
    ),
    "seedless": BrokenFrontend("keeps seeds to itself", ("sampling",), FrontendHooks(add=_no_seed)),
    "loses-last-token": BrokenFrontend(
        "drops the token that comes with the end", ("completion",), FrontendHooks(output=_last_token_lost)
    ),
    "no-abort": BrokenFrontend(
        "tells nobody that a user has left",
        ("leaving",),
        FrontendHooks(abort=lambda request_id, why: [request_id] if why == "stop" else []),
    ),
    "no-stop": BrokenFrontend(
        "does not abort what its stop string has ended",
        ("stop_string",),
        FrontendHooks(abort=lambda request_id, why: [request_id] if why == "left" else []),
    ),
    "loses-errors": BrokenFrontend(
        "lets users wait for a request that has failed", ("engine_error",), FrontendHooks(output=_errors_lost)
    ),
    "counts-elements": BrokenFrontend(
        "ends at an output with more elements than it knows", ("more_elements",), FrontendHooks(raw=_counting)
    ),
    "no-stats": BrokenFrontend(
        "ends at a message that has statistics alone", ("stats_alone",), FrontendHooks(raw=_no_stats_alone)
    ),
    "no-strangers": BrokenFrontend(
        "ends at the output of a request that it has never sent", ("unknown_request",), FrontendHooks(unknown=_not_mine)
    ),
    "once-only": BrokenFrontend("ends at a second HELLO", ("second_hello",), FrontendHooks(hello_again=_go)),
    "no-empty": BrokenFrontend("ends at an empty message", ("empty_message",), FrontendHooks(raw=_no_empty)),
    "no-mixed": BrokenFrontend("ends at a mixed message", ("mixed_message",), FrontendHooks(raw=_no_mixed)),
    "no-riddles": BrokenFrontend(
        "ends at a message that it cannot read", ("unreadable",), FrontendHooks(unreadable=_go)
    ),
    "deaf-to-death": BrokenFrontend("does not heed a death notice", ("death",), FrontendHooks(death=lambda: False)),
}
