"""replay.py: how a request continues, what forbids it, and whose doing a death was."""

from __future__ import annotations

import msgspec
import pytest

from muro.errors import ConfigError, EngineDeadError
from muro.llm.replay import DeathPolicy, cannot_continue, continued, obstacle, seeded, sent_by_others, understands
from muro.wire.arrays import Tensor
from muro.wire.handshake import Features, ReadyResponse
from muro.wire.request import (
    RESUMED_TOKENS,
    EngineCoreRequest,
    PoolingParams,
    SamplingParams,
)


def request(**params: object) -> EngineCoreRequest:
    return EngineCoreRequest("r", [1, 2, 3], sampling_params=SamplingParams(**params))  # type: ignore[arg-type]


def ready(features: Features | None) -> ReadyResponse:
    return ReadyResponse(
        max_model_len=100,
        num_gpu_blocks=1,
        block_size=16,
        dp_stats_address=None,
        dtype="float32",
        vllm_version="0.33.0",
        world_size=1,
        data_parallel_size=1,
        muro=features,
    )


ABLE = ready(Features("1", [RESUMED_TOKENS]))


def test_without_output_it_is_the_same_request() -> None:
    one = request(seed=1)
    assert continued(one, []) is one


def test_delivered_tokens_go_behind_the_prompt() -> None:
    one = request(seed=1, max_tokens=9, min_tokens=4, stop_token_ids=[5], logprobs=2, prompt_logprobs=1)
    rest = continued(one, [7, 8])
    assert rest.prompt_token_ids == [1, 2, 3, 7, 8]
    assert one.prompt_token_ids == [1, 2, 3]
    assert rest.sampling_params is not None and one.sampling_params is not None
    assert rest.sampling_params.extra_args == {RESUMED_TOKENS: 2}
    untouched = {"extra_args": None, "prompt_logprobs": None}
    for name in SamplingParams.__struct_fields__:
        expected = getattr(one.sampling_params, name)
        assert getattr(rest.sampling_params, name) == expected or name in untouched
    assert msgspec.structs.replace(rest, prompt_token_ids=None, sampling_params=None) == msgspec.structs.replace(
        one, prompt_token_ids=None, sampling_params=None
    )


def test_tokens_that_the_caller_has_resumed_himself_are_counted_with_them() -> None:
    rest = continued(request(extra_args={RESUMED_TOKENS: 1, "mine": 5}), [7, 8])
    assert rest.sampling_params is not None
    assert rest.sampling_params.extra_args == {RESUMED_TOKENS: 3, "mine": 5}


def test_the_kinds_of_a_prompts_parts_grow_with_it() -> None:
    one = msgspec.structs.replace(request(), prompt_is_token_ids=[True, False, True])
    assert continued(one, [7, 8]).prompt_is_token_ids == [True, False, True, True, True]


@pytest.mark.parametrize(
    "one",
    [
        msgspec.structs.replace(request(), prompt_embeds=Tensor("<f4", [0], b"")),
        EngineCoreRequest("r", [1], pooling_params=PoolingParams()),
    ],
)
def test_what_cannot_continue_can_start_again(one: EngineCoreRequest) -> None:
    assert obstacle(one, 1, [ABLE]) is not None
    assert obstacle(one, 0, [ABLE]) is None
    assert obstacle(one, 0, [ready(None)]) is None


@pytest.mark.parametrize("engine", [None, ready(None), ready(Features("1")), ready(Features("1", ["other"]))])
def test_an_engine_has_to_understand(engine: ReadyResponse | None) -> None:
    assert not understands(engine)
    why = obstacle(request(), 1, [ABLE, engine])
    assert why is not None and RESUMED_TOKENS in why
    assert obstacle(request(), 1, [ABLE, ABLE]) is None


def test_the_error_says_what_was_lost_and_why() -> None:
    dead = EngineDeadError("engine 0 has died of SIGSEGV")
    error = cannot_continue("r", 17, "its prompt is an image", dead)
    assert error.__cause__ is dead and error.request_id == "r"
    assert "17 tokens" in error.message and "image" in error.message and "SIGSEGV" in error.message
    assert "None" not in cannot_continue("r", 17, "its prompt is an image", None).message


def test_a_seed_is_drawn_only_where_there_is_none() -> None:
    assert seeded(SamplingParams(seed=0), 7).seed == 0
    assert seeded(SamplingParams(), 7).seed == 7


@pytest.mark.parametrize(
    ("status", "pid", "others"),
    [(-9, 1, True), (-15, 1, True), (-11, 1, False), (-6, 1, False), (1, 1, False), (0, 1, False), (None, 1, False),
     (None, None, True)],
)  # fmt: skip
def test_whose_doing_a_death_was(status: int | None, pid: int | None, others: bool) -> None:
    assert sent_by_others(EngineDeadError("dead", pid=pid, exit_status=status)) is others


@pytest.mark.parametrize(
    "wrong", [{"on_engine_death": "retry"}, {"restart_wait": -1.0}, {"restart_wait": float("nan")}]
)
def test_a_wrong_policy_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        DeathPolicy(**wrong)  # type: ignore[arg-type]
