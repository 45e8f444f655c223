"""stepper.py with structured output: every answer that ends is valid, whatever goes on around it."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from muro.core.grammar import Workshop
from muro.core.options import SchedulerConfig
from muro.core.stepper import StepperEngine
from muro.engine.interface import EngineCore
from muro.errors import UnsupportedOptionError
from muro.testing.hashing import HashingExecutor
from muro.wire.output import EngineCoreOutput, EventType, FinishReason
from muro.wire.request import RESUMED_TOKENS, EngineCoreRequest, SamplingParams, StructuredOutputsParams
from tests.support.deadline import until
from tests.support.grammars import EOS, VOCAB, compiler, engine_with_grammars
from tests.support.schemas import examples
from tests.unit.core.test_stepper import Case, add, drive, shown

# A model that hashes writes any bytes: short texts of one alphabet end in time.
CLOSING = {ord(c): 4.0 for c in '"}]'} | {EOS: 4.0}


def sampling(seed: int = 0, max_tokens: int = 250, **structured: object) -> SamplingParams:
    return SamplingParams(
        seed=seed,
        max_tokens=max_tokens,
        eos_token_id=EOS,
        logit_bias=CLOSING,
        structured_outputs=StructuredOutputsParams(**structured),  # type: ignore[arg-type]
    )


def text_of(outputs: list[EngineCoreOutput]) -> str:
    return bytes(t for output in outputs for t in output.new_token_ids if t < 256).decode(errors="replace")


def tokens_of(outputs: list[EngineCoreOutput]) -> list[int]:
    return [token for output in outputs for token in output.new_token_ids]


def test_answers_of_a_slice_of_the_suite_are_valid() -> None:
    chosen = examples()[::16]
    cases = [
        Case(list(example.question.encode())[:50], sampling(i, json=example.schema, disable_any_whitespace=True))
        for i, example in enumerate(chosen)
    ]
    wanted = [case.sampling.structured_outputs for case in cases]
    with engine_with_grammars([one for one in wanted if one]) as engine:
        outputs = drive(engine, cases)
    ended = 0
    for number, example in enumerate(chosen):
        last = outputs[str(number)][-1]
        assert last.finish_reason in (FinishReason.STOP, FinishReason.LENGTH), last.error
        if last.finish_reason == FinishReason.STOP:
            ended += 1
            Draft202012Validator(example.schema).validate(json.loads(text_of(outputs[str(number)])))
    assert ended >= len(chosen) // 2


@given(
    seeds=st.lists(st.tuples(st.integers(0, 2**31), st.integers(0, 7)), min_size=1, max_size=6),
    blocks=st.integers(66, 90),
    seqs=st.integers(1, 6),
    budget=st.integers(6, 40),
    ahead=st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_each_gets_what_it_gets_alone(
    seeds: list[tuple[int, int]], blocks: int, seqs: int, budget: int, ahead: bool
) -> None:
    cases = [
        Case([1, 2, 3], sampling(seed, 60, json=examples()[which].schema), arrives=number)
        for number, (seed, which) in enumerate(seeds)
    ]
    wanted = [case.sampling.structured_outputs for case in cases if case.sampling.structured_outputs]
    with engine_with_grammars(wanted, blocks=blocks, seqs=seqs, budget=budget, ahead=ahead) as engine:
        together = drive(engine, cases)
    with engine_with_grammars(wanted) as engine:
        for number, case in enumerate(cases):
            alone = drive(engine, [msgspec.structs.replace(case, arrives=0)])["0"]
            assert shown(together[str(number)]) == shown(alone)


def test_it_survives_preemption() -> None:
    cases = [Case([i] * 3, sampling(i, 60, json={"type": "array", "items": {"type": "string"}})) for i in range(8)]
    for case in cases:
        case.sampling.logit_bias = None  # long texts, that need room
    wanted = [case.sampling.structured_outputs for case in cases if case.sampling.structured_outputs]
    with engine_with_grammars(wanted, blocks=17) as engine:
        tight = drive(engine, cases)
    with engine_with_grammars(wanted) as engine:
        roomy = drive(engine, cases)
    events = [event.type for one in tight.values() for output in one for event in output.events or ()]
    assert EventType.PREEMPTED in events
    assert {key: tokens_of(one) for key, one in tight.items()} == {key: tokens_of(one) for key, one in roomy.items()}


@given(seed=st.integers(0, 2**31), which=st.integers(0, 7), cut=st.integers(1, 60))
@settings(max_examples=15, deadline=None)
def test_it_continues_elsewhere_as_if_nothing_had_happened(seed: int, which: int, cut: int) -> None:
    params = sampling(seed, 60, json=examples()[which].schema)
    assert params.structured_outputs is not None
    with engine_with_grammars([params.structured_outputs]) as engine:
        whole = tokens_of(drive(engine, [Case([1, 2], params)])["0"])
        cut = min(cut, len(whole) - 1)
        resumed = msgspec.structs.replace(params, extra_args={RESUMED_TOKENS: cut})
        rest = tokens_of(drive(engine, [Case([1, 2, *whole[:cut]], resumed)])["0"])
    assert rest == whole[cut:]


def test_it_ends_when_the_grammar_is_complete_whatever_min_tokens_says() -> None:
    params = sampling(choice=["yes", "no"])
    params.min_tokens = 20
    assert params.structured_outputs is not None
    with engine_with_grammars([params.structured_outputs]) as engine:
        outputs = drive(engine, [Case([1], params)])["0"]
    assert text_of(outputs) in ("yes", "no")
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == (FinishReason.STOP, None)


def test_a_complete_structure_is_followed_by_the_end_token() -> None:
    """Some front-ends leave the last token of what has stopped out of the text."""
    params = sampling(choice=["yes", "no"])
    assert params.structured_outputs is not None
    cases = {"free": params, "one more": msgspec.structs.replace(params, max_tokens=4)}
    cases["never"] = msgspec.structs.replace(params, ignore_eos=True)
    cases["not allowed"] = msgspec.structs.replace(params, allowed_token_ids=list(b"yesno"))
    with engine_with_grammars([params.structured_outputs]) as engine:
        found = drive(engine, [Case([1], each) for each in cases.values()])
    ends = {name: tokens_of(outputs)[-1] for name, outputs in zip(cases, found.values(), strict=True)}
    assert ends.pop("free") == ends.pop("one more") == EOS
    assert EOS not in ends.values()
    assert all(outputs[-1].finish_reason == FinishReason.STOP for outputs in found.values())


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_a_complete_structure_is_followed_by_the_end_of_sequence(ahead: bool, logprobs: int | None) -> None:
    """Front-ends of vLLM do not show the last token of an output that stopped without a reason."""
    params = sampling(regex="[0-9]{3}")
    params.logprobs = logprobs
    assert params.structured_outputs is not None
    with engine_with_grammars([params.structured_outputs], ahead=ahead) as engine:
        outputs = drive(engine, [Case([1], params)])["0"]
    assert len(text_of(outputs)) == 3 and tokens_of(outputs)[3:] == [EOS]
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == (FinishReason.STOP, None)
    assert [o.new_logprobs is not None for o in outputs] == [logprobs is not None] * 4


@pytest.mark.parametrize(
    ("changes", "reason"), [({"ignore_eos": True}, FinishReason.STOP), ({"max_tokens": 3}, FinishReason.LENGTH)]
)
def test_where_no_end_of_sequence_can_follow(changes: dict[str, object], reason: FinishReason) -> None:
    params = msgspec.structs.replace(sampling(regex="[0-9]{3}"), **changes)
    assert params.structured_outputs is not None
    with engine_with_grammars([params.structured_outputs]) as engine:
        outputs = drive(engine, [Case([1], params)])["0"]
    assert len(tokens_of(outputs)) == len(text_of(outputs)) == 3
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == (reason, None)


def test_what_leaves_nothing_to_choose_is_an_error_of_one_request() -> None:
    params = sampling(choice=["yes", "no"])
    params.allowed_token_ids = [ord("x")]
    other = sampling(choice=["yes", "no"])
    assert params.structured_outputs is not None
    with engine_with_grammars([params.structured_outputs]) as engine:
        outputs = drive(engine, [Case([1], params), Case([1], other)])
    error = outputs["0"][-1].error
    assert error is not None and "no token is allowed" in error.message
    assert outputs["1"][-1].finish_reason == FinishReason.STOP


def test_resumed_tokens_that_do_not_follow_the_grammar_are_an_error() -> None:
    params = sampling(choice=["yes", "no"])
    params.extra_args = {RESUMED_TOKENS: 1}
    assert params.structured_outputs is not None
    with engine_with_grammars([params.structured_outputs]) as engine:
        (output,) = drive(engine, [Case([1, ord("q")], params)])["0"]
    assert output.error is not None and "ends before the token 113" in output.error.message


def test_thinking_comes_before_the_structure() -> None:
    params = sampling(regex="ab", max_tokens=40)
    params.thinking_token_budget = 3
    assert params.structured_outputs is not None
    with engine_with_grammars([params.structured_outputs], thinking=((4,), (5, 6))) as engine:
        request = EngineCoreRequest("a", [1, 4], sampling_params=params, reasoning_ended=False)
        engine.add_request("a", engine.preprocess(request))
        tokens = run_out(engine)["a"]
    assert tokens[-5:] == [5, 6, 97, 98, EOS] and len(tokens) == 8


def run_out(engine: EngineCore) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    while engine.has_work():
        for output in engine.step(lambda: ()).outputs:
            found.setdefault(output.request_id, []).extend(output.new_token_ids)
    return found


@pytest.mark.parametrize(
    "wrong", [{"regex": "("}, {"json": {"not": {}}}, {"json": {"$ref": "#/$defs/none"}}, {"grammar": "start: start"}]
)
def test_a_grammar_that_does_not_compile_costs_its_request(wrong: dict[str, object]) -> None:
    with engine_with_grammars() as engine:
        add(engine, "wrong", [1], sampling(**wrong))  # type: ignore[arg-type]
        add(engine, "other", [1], SamplingParams(max_tokens=3, seed=1))
        outputs: list[EngineCoreOutput] = []
        until(lambda: outputs.extend(engine.step(lambda: ()).outputs) or not engine.has_work())
    by_id = {output.request_id: output for output in outputs}
    error = by_id["wrong"].error
    assert error is not None and error.code == "validation_error" and "structured_outputs" in error.message
    assert by_id["other"].finish_reason == FinishReason.LENGTH


def test_who_waits_for_a_grammar_holds_nobody_up_and_says_so() -> None:
    gate: list[bool] = []

    class Late:
        def compile(self, spec: object) -> object:
            until(lambda: gate)
            return compiler().compile(spec)  # type: ignore[arg-type]

    executor = HashingExecutor(num_blocks=100, block_size=4, vocab_size=VOCAB, max_model_len=100)
    engine = StepperEngine(executor, SchedulerConfig(), grammars=Workshop(Late))  # type: ignore[arg-type]
    try:
        add(engine, "late", [1], sampling(choice=["yes"]))
        add(engine, "other", [1], SamplingParams(max_tokens=3, seed=1))
        outputs = [output for _ in range(4) for output in engine.step(lambda: ()).outputs]
        assert [output.request_id for output in outputs] == ["other"] * 3
        assert engine.phase() == "grammar" and engine.has_work()
        assert not engine.step(lambda: ()).executed
        assert engine.stats().num_skipped_waiting_reqs == 1
        add(engine, "aborted", [1], sampling(choice=["no"]))
        engine.abort_requests(["aborted"])
        gate.append(True)
        found: list[EngineCoreOutput] = []
        until(lambda: found.extend(engine.step(lambda: ()).outputs) or not engine.has_work())
        assert text_of(found) == "yes" and {output.request_id for output in found} == {"late"}
        assert engine.phase() is None
    finally:
        engine.shutdown()


def test_without_a_tokenizer_it_is_refused_by_name() -> None:
    engine = StepperEngine(HashingExecutor(vocab_size=VOCAB))
    with pytest.raises(UnsupportedOptionError, match="structured_outputs"):
        add(engine, "a", [1], sampling(regex="a"))
