"""Engines with one fault each: what is wrong, and which case of `muro wire check` finds it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from muro.testing.broken.engine import (
    ANSWER,
    FINISH,
    FINISHED,
    LOGPROBS,
    MAX_MODEL_LEN,
    OUTPUTS,
    PREFILL,
    STATS,
    TOKENS,
    Died,
    EngineHooks,
    Map,
    Tree,
)
from muro.wire.codec.headers import array_length
from muro.wire.control import StartDPWave, UtilityRequest
from muro.wire.frames import Frame, RequestType
from muro.wire.request import EngineCoreRequest, SamplingParams

_KEYS_25: Final = (
    "max_model_len",
    "num_gpu_blocks",
    "block_size",
    "dp_stats_address",
    "dtype",
    "vllm_version",
    "world_size",
    "data_parallel_size",
)


class BrokenEngine(msgspec.Struct, frozen=True):
    """One fault: what is wrong, the cases that fail because of it, and how it is done."""

    wrong: str
    cases: tuple[str, ...]
    hooks: EngineHooks


def _params(request: EngineCoreRequest) -> SamplingParams:
    return request.sampling_params or SamplingParams()


def _one_more_token(request: EngineCoreRequest) -> EngineCoreRequest:
    _params(request).max_tokens = (_params(request).max_tokens or 0) + 1
    return request


def _unseeded(request: EngineCoreRequest) -> EngineCoreRequest:
    _params(request).seed = None
    return request


def _without_stop(request: EngineCoreRequest) -> EngineCoreRequest:
    _params(request).stop_token_ids = []
    return request


def _without_eos(request: EngineCoreRequest) -> EngineCoreRequest:
    _params(request).eos_token_id = None
    return request


def _without_least(request: EngineCoreRequest) -> EngineCoreRequest:
    _params(request).min_tokens = 0
    return request


def _cut(request: EngineCoreRequest) -> EngineCoreRequest:
    request.prompt_token_ids = (request.prompt_token_ids or [])[: MAX_MODEL_LEN - 64]
    return request


def _rows(message: Tree) -> list[Tree]:
    rows: list[Tree] = message[OUTPUTS]
    return rows


def _is_end(message: Tree) -> bool:
    return any(len(row) > FINISH and row[FINISH] is not None for row in _rows(message))


def _says_more(message: Tree) -> list[Tree]:
    if not _is_end(message):
        return [message]
    more = [*message]
    more[OUTPUTS] = [[row[0], [7]] for row in _rows(message)]
    return [message, more]


def _ends_twice(message: Tree) -> list[Tree]:
    return [message, message] if _is_end(message) else [message]


def _and_nothing(message: Tree) -> list[Tree]:
    return [message, [message[0], [], None, message[3], None, None, None, None]]


def _mixed(message: Tree) -> list[Tree]:
    if message[ANSWER] is not None:
        message[FINISHED] = ["somebody"]
    return [message]


def _as_in_25(message: Tree) -> list[Tree]:
    message[OUTPUTS] = [row if len(row) < 14 else [*row[:9], *row[10:14]] for row in _rows(message)]
    return [message]


def _long_envelope(message: Tree) -> list[Tree]:
    return [[*message, None]]


def _thin_stats(message: Tree) -> list[Tree]:
    if message[STATS] is not None:
        del message[STATS]["kv_cache_eviction_events"]
    return [message]


def _prefill_always(message: Tree) -> list[Tree]:
    for row in _rows(message):
        if len(row) > PREFILL:
            row[PREFILL] = {"num_prompt_tokens": 8}
    return [message]


def _rank_zero(message: Tree) -> list[Tree]:
    for row in _rows(message):
        if len(row) > LOGPROBS and row[LOGPROBS] is not None:
            row[LOGPROBS][2][2] = msgspec.msgpack.Ext(3, struct.pack("<q", 0))
    return [message]


def _without_last_token(message: Tree) -> list[Tree]:
    for row in _rows(message):
        if len(row) > FINISH and row[FINISH] == 0 and row[FINISH + 1] is not None:
            row[TOKENS] = []
    return [message]


def _other_index(message: Tree) -> list[Tree]:
    message[0] = 7
    return [message]


def _and_a_riddle(message: Tree) -> list[Tree]:
    return [message, [message[0], [[b"no text", [1]]]]]


def _bare_nil(method: str, answer: Tree) -> Tree:
    return [answer[0], None, None] if method == "reset_encoder_cache" else answer


def _signed(method: str, answer: Tree) -> Tree:
    return [answer[0] & (2**63 - 1), *answer[1:]]


def _old_wake_up(method: str, answer: Tree) -> Tree:
    return [*answer[:2], [None, None]] if method == "wake_up" else answer


def _number_for_bool(method: str, answer: Tree) -> Tree:
    return [*answer[:2], [None, 0]] if method == "is_sleeping" else answer


def _no_first_call(call: UtilityRequest) -> UtilityRequest:
    if call.method == "reset_mm_cache":
        call.method = "reset_mm_cache_that_is_not_there"
    return call


_KNOWN: Final = ("get_", "reset_", "is_", "sleep", "wake_up", "pause_", "resume_", "list_", "profile")


def _dies_of_unknown(call: UtilityRequest) -> UtilityRequest:
    if not call.method.startswith(_KNOWN):
        raise Died
    return call


def _die(*_: Any) -> None:
    raise Died


def _few_elements(frames: Sequence[Frame]) -> bool:
    return frames[0] != RequestType.ADD or len(frames) < 2 or array_length(frames[1]) <= 22


def _dies_of_nothing(frames: Sequence[Frame]) -> None:
    if len(frames) < 2 or (bytes(frames[0]) <= RequestType.UTILITY and not frames[1]):
        raise Died


def _dies_of_a_text(frames: Sequence[Frame]) -> None:
    if len(frames) > 1 and b"no map" in bytes(frames[1]):
        raise Died


def _believes(frames: Sequence[Frame]) -> None:
    if len(frames) > 1 and array_length(frames[1]) > 1 << 30:
        raise Died


def _dies_of_twice(ids: list[str]) -> list[str]:
    if len(set(ids)) < len(ids):
        raise Died
    return ids


def _all_is_well(method: str, answer: Tree) -> Tree:
    return [*answer[:1], None, [None, None]] if method in ("sleep", "profile") else answer


def _stopped() -> None:
    raise Died(told=[0, 1])


def _half_a_notice(wave: StartDPWave) -> None:
    raise Died(told=[0])


def _first_only(client: int, ready: Map) -> Map | None:
    return ready if client == 0 else None


def _without(*keys: str) -> Any:
    return lambda message: {key: value for key, value in message.items() if key not in keys}


def _dies_of_a_crowd(number: int) -> None:
    if number > 4:
        raise Died(told=[0, 1])


BROKEN_ENGINES: Final[dict[str, BrokenEngine]] = {
    "silent": BrokenEngine("connects, and never says HELLO", ("hello",), EngineHooks(hello=lambda hello: None)),
    "half-hello": BrokenEngine("its HELLO lacks `headless`", ("hello",), EngineHooks(hello=_without("headless"))),
    "ascii-identity": BrokenEngine(
        'its identity is the text "0"', ("identity",), EngineHooks(identity=lambda identity: b"0")
    ),
    "one-input": BrokenEngine(
        "sends its ready response to the first front-end process alone",
        ("ready_response",),
        EngineHooks(ready_response=_first_only),
    ),
    "old-ready-keys": BrokenEngine(
        "says that it is 0.33, with the ready response of 0.25",
        ("ready_keys",),
        EngineHooks(ready_response=lambda client, ready: {key: ready[key] for key in _KEYS_25}),
    ),
    "torch-dtype": BrokenEngine(
        "calls its dtype torch.float16",
        ("ready_keys",),
        EngineHooks(ready_response=lambda client, ready: ready | {"dtype": "torch.float16"}),
    ),
    "never-ready": BrokenEngine("never says READY", ("ready",), EngineHooks(ready=lambda ready: None)),
    "no-first-call": BrokenEngine("does not know reset_mm_cache", ("first_calls",), EngineHooks(call=_no_first_call)),
    "signed-call-ids": BrokenEngine("cuts call ids to 63 bits", ("call_ids",), EngineHooks(answer=_signed)),
    "bare-nil": BrokenEngine(
        "answers a call that returns nothing with a bare nil", ("answers",), EngineHooks(answer=_bare_nil)
    ),
    "number-for-bool": BrokenEngine(
        "answers is_sleeping with 0", ("call_types",), EngineHooks(answer=_number_for_bool)
    ),
    "dies-of-unknown-method": BrokenEngine(
        "ends at a call that it does not know", ("unknown_method",), EngineHooks(call=_dies_of_unknown)
    ),
    "one-too-many": BrokenEngine(
        "gives a token more than max_tokens", ("max_tokens",), EngineHooks(request=_one_more_token)
    ),
    "crowd-shy": BrokenEngine("fails when it has five requests", ("together",), EngineHooks(serving=_dies_of_a_crowd)),
    "crossed-clients": BrokenEngine(
        "sends everything to the first front-end process", ("clients",), EngineHooks(client=lambda client: 0)
    ),
    "says-more": BrokenEngine(
        "sends a token after the end of a request", ("one_end",), EngineHooks(message=_says_more)
    ),
    "ends-twice": BrokenEngine("ends each request twice", ("one_end",), EngineHooks(message=_ends_twice)),
    "empty-messages": BrokenEngine(
        "sends an empty message after each other one", ("not_empty",), EngineHooks(message=_and_nothing)
    ),
    "riddles": BrokenEngine(
        "sends after each message one that cannot be read", ("readable",), EngineHooks(message=_and_a_riddle)
    ),
    "mixed-messages": BrokenEngine(
        "tells in the answers of calls who has finished", ("one_kind",), EngineHooks(message=_mixed)
    ),
    "old-layout": BrokenEngine(
        "says that it is 0.33, and writes outputs as 0.25 does", ("layout",), EngineHooks(message=_as_in_25)
    ),
    "long-envelope": BrokenEngine("writes messages of ten elements", ("layout",), EngineHooks(message=_long_envelope)),
    "thin-stats": BrokenEngine(
        "leaves a compulsory key out of its statistics", ("stats",), EngineHooks(message=_thin_stats)
    ),
    "prefill-always": BrokenEngine(
        "sends prefill statistics with every output", ("prefill",), EngineHooks(message=_prefill_always)
    ),
    "other-index": BrokenEngine(
        "says in its messages that it is rank 7", ("engine_index",), EngineHooks(message=_other_index)
    ),
    "rank-zero": BrokenEngine("counts ranks of tokens from 0", ("logprobs",), EngineHooks(message=_rank_zero)),
    "unseeded": BrokenEngine("ignores seeds", ("seed",), EngineHooks(request=_unseeded)),
    "runs-past-stop": BrokenEngine("ignores stop tokens", ("stop_token",), EngineHooks(request=_without_stop)),
    "swallows-stop": BrokenEngine(
        "keeps the stop token to itself", ("stop_token",), EngineHooks(message=_without_last_token)
    ),
    "runs-past-eos": BrokenEngine("ignores the end-of-sequence token", ("eos",), EngineHooks(request=_without_eos)),
    "stops-early": BrokenEngine("ignores min_tokens", ("min_tokens",), EngineHooks(request=_without_least)),
    "cuts-prompts": BrokenEngine(
        "shortens prompts that are too long", ("long_prompt", "prefill"), EngineHooks(request=_cut)
    ),
    "deaf-to-aborts": BrokenEngine("ignores ABORT", ("abort",), EngineHooks(aborted=lambda ids: [])),
    "restless": BrokenEngine("serves during a pause", ("pause",), EngineHooks(held=lambda held: False)),
    "old-wake-up": BrokenEngine(
        "says that it is 0.33, and answers wake_up with nil", ("wake_up",), EngineHooks(answer=_old_wake_up)
    ),
    "refuses-more": BrokenEngine(
        "refuses requests with more elements than it knows", ("other_lengths",), EngineHooks(readable=_few_elements)
    ),
    "dies-of-second-abort": BrokenEngine(
        "ends at an ABORT that names a request twice", ("abort_again",), EngineHooks(aborted=_dies_of_twice)
    ),
    "all-is-well": BrokenEngine(
        "answers calls with wrong arguments as if they were right",
        ("wrong_arguments",),
        EngineHooks(answer=_all_is_well),
    ),
    "half-a-notice": BrokenEngine(
        "ends at START_DP_WAVE, and tells the first front-end process alone",
        ("death_notice", "wave"),
        EngineHooks(wave=_half_a_notice),
    ),
    "dies-of-junk": BrokenEngine(
        "ends at the first message that it cannot read", ("unknown_type",), EngineHooks(unreadable=_die)
    ),
    "dies-of-nothing": BrokenEngine(
        "ends at a message without a payload", ("undecodable",), EngineHooks(unreadable=_dies_of_nothing)
    ),
    "dies-of-wrong-request": BrokenEngine(
        "ends at a request whose parameters are a text", ("wrong_request",), EngineHooks(unreadable=_dies_of_a_text)
    ),
    "believes-sizes": BrokenEngine(
        "ends at a message that claims to be huge", ("absurd_sizes",), EngineHooks(unreadable=_believes)
    ),
    "dies-at-sigterm": BrokenEngine("fails when it is asked to stop", ("shutdown",), EngineHooks(stopped=_stopped)),
}
