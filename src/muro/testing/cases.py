"""What the contract demands of an engine, a case each.

A case is a function that gets a `Trial` with a fresh, or at least idle, engine. Each looks at one demand alone and
uses of the others as little as it can, so that one fault fails one case. Ids carry the case's name: an engine may
be shared by all cases. The last cases may change an engine's state for good.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from muro.engine.interface import Collective, EngineInfo
from muro.engine.operations import declared_operations
from muro.engine.standard import StandardOperations
from muro.errors import MuroError
from muro.testing.harness import StepHarness, generate_request
from muro.testing.trial import ContractError, Trial, expect
from muro.wire.codec import OutputEncoder
from muro.wire.ops import OPS
from muro.wire.output import EngineCoreOutputs, FinishReason
from muro.wire.releases import LAYOUTS, SAFE
from muro.wire.request import LoRARequest, PoolingParams, StructuredOutputsParams
from muro.wire.stats import SchedulerStats

DTYPES = ("float16", "bfloat16", "float32")
MANY = 32


class Case(msgspec.Struct, frozen=True):
    """A demand: its name, its words, where it is written, and how it is examined."""

    name: str
    demand: str
    where: str
    examine: Callable[[Trial], None]

    def __str__(self) -> str:
        return self.name


CASES: list[Case] = []
"""All cases, in the order in which they are run."""


def case(where: str) -> Callable[[Callable[[Trial], None]], Callable[[Trial], None]]:
    """Put a function on the list of cases, under its own name; its docstring is the demand."""

    def enlist(examine: Callable[[Trial], None]) -> Callable[[Trial], None]:
        CASES.append(Case(examine.__name__, examine.__doc__ or "", f"muro.engine.interface.{where}", examine))
        return examine

    return enlist


@case("EngineInfo")
def info(trial: Trial) -> None:
    """info() tells sizes that make sense, a dtype that front-ends know, at least one task."""
    found = trial.engine.info()
    expect(isinstance(found, EngineInfo), f"info() gave a {type(found).__name__}")
    expect(found.dtype in DTYPES, f"dtype is {found.dtype!r}; it is one of {', '.join(DTYPES)}")
    for name in ("max_model_len", "block_size", "max_num_seqs", "max_num_batched_tokens"):
        value = getattr(found, name)
        expect(type(value) is int and value >= 1, f"{name} is {value!r}; it must be a positive integer")
    for name in ("num_gpu_blocks", "kv_cache_size_tokens"):
        value = getattr(found, name)
        fits = type(value) is int and value >= 0
        expect(fits or (value is None and name != "num_gpu_blocks"), f"{name} is {value!r}; it counts something")
    tasks = found.supported_tasks
    expect(tasks and all(isinstance(t, str) for t in tasks), f"supported_tasks is {tasks!r}; it names at least one")
    expect(trial.engine.info() == found, "a second info() says something else")


@case("EngineCore.step")
def one_final_output(trial: Trial) -> None:
    """A request ends with exactly one final output, and nothing follows it."""
    trial.harness.submit(generate_request("one_final_output"))
    trial.finish("one_final_output")
    for _ in range(3):
        trial.step()
    seen = [e.finish for e in trial.emitted("one_final_output")]
    expect(seen[-1] is not None, f"another output came after the final one: {seen}")
    expect(seen.count(None) == len(seen) - 1, f"the request had several final outputs: {seen}")


@case("Engine.token_limit")
def max_tokens(trial: Trial) -> None:
    """No request gets more tokens than max_tokens; one that ends with LENGTH gets as many."""
    for limit in (1, 2, 7):
        name = f"max_tokens-{limit}"
        trial.harness.submit(generate_request(name, max_tokens=limit))
        trial.finish(name)
        tokens, reason = len(trial.harness.tokens(name)), trial.harness.finishes(name)[0]
        expect(reason != FinishReason.ERROR, f"a plain request with max_tokens={limit} ended with ERROR")
        expect(tokens <= limit, f"{tokens} tokens came for max_tokens={limit}")
        expect(reason != FinishReason.LENGTH or tokens == limit, f"LENGTH after {tokens} tokens of {limit}")


@case("StepResult")
def ids_echoed(trial: Trial) -> None:
    """Outputs carry the ids of running requests, at most one output per request and step."""
    names = [f"ids_echoed-{i}" for i in range(3)]
    for index, name in enumerate(names):
        trial.harness.submit(generate_request(name, (1 + index, 2)))
    trial.finish(*names)
    seen = [(e.step, e.request_id) for e in trial.emitted()]
    strange = sorted({i for _, i in seen} - set(names))
    expect(not strange, f"outputs came for ids that were never given: {strange[:3]}")
    # Only what a host accepts counts here: what follows a final output is another case's concern.
    got = [[o.request_id for o in routed.message.outputs] for routed in trial.harness.messages]
    expect(all(len(ids) == len(set(ids)) for ids in got), f"two outputs for one request in a step: {got}")


@case("EngineCore.has_work")
def has_work(trial: Trial) -> None:
    """has_work() is true from add_request until the last request has ended or was aborted."""
    expect(not trial.engine.has_work(), "has_work() is true before any request")
    for ending in ("finish", "abort"):
        name = f"has_work-{ending}"
        trial.harness.submit(generate_request(name))
        expect(trial.engine.has_work(), "has_work() is false after add_request")
        if ending == "finish":
            trial.finish(name)
            for _ in range(3):  # an engine may need a step to tidy up
                trial.step()
        else:
            trial.harness.abort(name)
        expect(not trial.engine.has_work(), f"has_work() stays true after the last request's {ending}")


@case("EngineCore.abort_requests")
def abort_is_idempotent(trial: Trial) -> None:
    """abort_requests ignores unknown, finished and already aborted ids."""
    for state in ("unknown", "waiting", "running", "finished"):
        name = f"abort_is_idempotent-{state}"
        if state != "unknown":
            trial.harness.submit(generate_request(name))
        if state == "running":
            trial.start(name)
        if state == "finished":
            trial.finish(name)
        for turn in ("first", "second"):
            try:
                trial.engine.abort_requests([name])
            except Exception as error:
                expect(False, f"the {turn} abort of a request that is {state} raised {error!r}")


@case("EngineCore.abort_requests")
def silent_after_abort(trial: Trial) -> None:
    """No output follows for a request that was aborted."""
    for state in ("waiting", "running"):
        name, other = f"silent_after_abort-{state}", f"silent_after_abort-beside-{state}"
        trial.harness.submit(generate_request(name, (1, 2), max_tokens=8))
        trial.harness.submit(generate_request(other, (3, 4), max_tokens=8))
        if state == "running":
            trial.start(name)
        before = len(trial.emitted(name))
        trial.harness.abort(name)
        trial.finish(other)
        expect(len(trial.emitted(name)) == before, f"output came for a request that was aborted while {state}")


@case("TakeAborts")
def takes_aborts(trial: Trial) -> None:
    """step() calls take_aborts, and the ids that it gives get no more output."""
    trial.harness.submit(generate_request("takes_aborts", (1, 2), max_tokens=8))
    trial.harness.submit(generate_request("takes_aborts-beside", (3, 4), max_tokens=8))
    trial.start("takes_aborts")
    before = len(trial.emitted("takes_aborts"))
    trial.harness.abort_during_step("takes_aborts")
    trial.finish("takes_aborts-beside")
    expect(
        len(trial.emitted("takes_aborts")) == before,
        "a request whose abort lay ready during a step got output in this step or later",
    )


@case("EngineCore.add_request")
def same_prompts(trial: Trial) -> None:
    """Requests with the same prompt have nothing to do with each other."""
    names = {f"same_prompts-{limit}": limit for limit in (2, 5)}
    for name, limit in names.items():
        trial.harness.submit(generate_request(name, (5, 6, 7), max_tokens=limit))
    trial.harness.submit(generate_request("same_prompts-aborted", (5, 6, 7), max_tokens=5))
    trial.start("same_prompts-2")
    trial.harness.abort("same_prompts-aborted")
    trial.finish(*names)
    for name, limit in names.items():
        reason, tokens = trial.harness.finishes(name)[0], len(trial.harness.tokens(name))
        expect(
            reason != FinishReason.ERROR and tokens >= 1,
            f"of two requests with one prompt, the one of {limit} tokens ended with {reason.name} after {tokens}",
        )


@case("EngineCore")
def id_comes_again(trial: Trial) -> None:
    """An id may come again once its request has ended or was aborted."""
    for ending in ("finish", "abort", "none"):
        before = len(trial.harness.outputs("id_comes_again"))
        trial.harness.submit(generate_request("id_comes_again", max_tokens=3))
        if ending == "abort":
            trial.harness.abort("id_comes_again")
            continue
        trial.until(["id_comes_again"], functools.partial(_ended_since, trial, before))
        last = trial.harness.outputs("id_comes_again")[-1]
        expect(last.finish_reason != FinishReason.ERROR, f"a request under a used id ended with ERROR: {last.error}")


def _ended_since(trial: Trial, count: int) -> bool:
    return any(o.finish_reason is not None for o in trial.harness.outputs("id_comes_again")[count:])


ODD: dict[str, dict[str, Any]] = {
    "token id 2**31 - 1": {"prompt": (2**31 - 1, 1)},
    "seed 2**63 - 1": {"seed": 2**63 - 1, "temperature": 1.0},
    "temperature 1e30": {"temperature": 1e30},
    "top_k 2**40": {"top_k": 2**40, "temperature": 1.0},
    "logprobs 3": {"logprobs": 3, "prompt_logprobs": 3},
    "logit_bias beyond the vocabulary": {"logit_bias": {2**40: 1.0}},
    "stop token ids below zero": {"stop_token_ids": [-1]},
    "a grammar": {"structured_outputs": StructuredOutputsParams(regex="[ab]+")},
    "a broken grammar": {"structured_outputs": StructuredOutputsParams(grammar="((((")},
}


@case("EngineCore.preprocess")
def odd_requests(trial: Trial) -> None:
    """A request that the engine cannot serve ends alone, in preprocess or later."""
    odd = {name: generate_request(f"odd_requests: {name}", **parts) for name, parts in ODD.items()}
    lora, pool = generate_request("odd_requests: an adapter"), generate_request("odd_requests: pooling")
    lora.lora_request = LoRARequest("none", 1, "/nonexistent")
    pool.sampling_params, pool.pooling_params = None, PoolingParams(task="embed")
    for request in (*odd.values(), lora, pool):
        beside = f"odd_requests-beside: {request.request_id}"
        trial.harness.submit(request)
        trial.harness.submit(generate_request(beside, (3, 4)))
        try:
            trial.finish(request.request_id, beside)
        except ContractError:
            raise
        except Exception as error:
            expect(False, f"{request.request_id} ended the engine: {error!r}")
        reason = trial.harness.finishes(beside)[0]
        expect(reason != FinishReason.ERROR, f"{request.request_id} also ended the request beside it")


@case("EngineCore.preprocess")
def preprocess_apart(trial: Trial) -> None:
    """preprocess runs on another thread and leaves the scheduler's state alone."""
    trial.harness.submit(generate_request("preprocess_apart-beside", (3, 4)))
    trial.finish("preprocess_apart-beside")
    errors: list[Exception] = []

    def prepare() -> None:
        try:
            trial.engine.preprocess(generate_request("preprocess_apart"))
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=prepare, name="muro-conformance")
    thread.start()
    thread.join()
    expect(not errors, f"preprocess of a plain request raised {errors[:1]}")
    before = len(trial.emitted())
    for _ in range(3):
        trial.step()
    expect(len(trial.emitted()) == before, "a request that was preprocessed and never added got output")


@case("EngineCore.stats")
def stats(trial: Trial) -> None:
    """stats() gives SchedulerStats or None: counts of what is there, kv_cache_usage 0 ... 1."""

    def look(when: str) -> SchedulerStats | None:
        found = trial.engine.stats()
        expect(found is None or isinstance(found, SchedulerStats), f"{when}: stats() gave a {type(found).__name__}")
        if found is not None:
            counts = (found.num_running_reqs, found.num_waiting_reqs)
            expect(all(type(n) is int and n >= 0 for n in counts), f"{when}: running and waiting are {counts}")
            expect(0.0 <= found.kv_cache_usage <= 1.0, f"{when}: kv_cache_usage is {found.kv_cache_usage}")
        return found

    look("before any request")
    trial.harness.submit(generate_request("stats", max_tokens=3))
    trial.start("stats")
    look("while a request runs")
    trial.finish("stats")
    last = look("after the last request")
    if last is not None:
        left = (last.num_running_reqs, last.num_waiting_reqs)
        expect(left == (0, 0), f"after the last request {left[0]} run and {left[1]} wait")


@case("EngineCore.step")
def encodable(trial: Trial) -> None:
    """What outputs and statistics carry fits every wire layout."""
    trial.harness.submit(generate_request("encodable"))
    trial.harness.submit(generate_request("encodable-logprobs", logprobs=2, prompt_logprobs=1))
    trial.finish("encodable", "encodable-logprobs")
    for layout in (SAFE, *LAYOUTS.values()):
        encoder = OutputEncoder(layout)
        for routed in trial.harness.messages:
            try:
                encoder.encode(routed.message, bytearray())
            except MuroError as error:
                expect(False, f"an output cannot be sent to a front-end of {layout.name}: {error.message}")


@case("EngineCore")
def idle(trial: Trial) -> None:
    """A step without work, a dummy batch and the questions of the loop do no harm."""
    try:
        result = trial.engine.step(tuple)
        trial.engine.execute_dummy_batch()
        phase, collective = trial.engine.phase(), trial.engine.collective()
        trial.engine.on_executor_failure(lambda cause: None)
    except Exception as error:
        expect(False, f"an idle engine raised {error!r}")
    else:
        expect(not result.outputs, f"a step without work gave {len(result.outputs)} outputs")
        expect(phase is None or isinstance(phase, str), f"phase() gave {phase!r}; it is text or None")
        expect(collective is None or isinstance(collective, Collective), f"collective() gave {collective!r}")


@case("EngineCore.step")
def many_requests(trial: Trial) -> None:
    """Many requests at once all end."""
    names = [f"many_requests-{i}" for i in range(MANY)]
    for index, name in enumerate(names):
        trial.harness.submit(generate_request(name, (1 + index, 2, 3), max_tokens=1 + index % 5))
    trial.finish(*names)
    failed = [name for name in names if FinishReason.ERROR in trial.harness.finishes(name)]
    expect(not failed, f"{len(failed)} of {MANY} plain requests ended with ERROR")


@case("operation")
def operations(trial: Trial) -> None:
    """Operations answer with what msgpack carries, those of vLLM with vLLM's types."""
    harness, encoder = StepHarness(trial.engine), OutputEncoder(SAFE)
    listed = declared_operations(StandardOperations(trial.engine)) | declared_operations(trial.engine)
    for name, found in listed.items():
        answer = None if found.required else harness.answer(harness.call(name))
        if answer is None or answer.failure_message is not None:
            continue  # it needs arguments, answers later, or says no
        try:
            encoder.encode(EngineCoreOutputs(utility_output=answer), bytearray())
            if name in OPS:
                OPS[name].check_reply(answer.result[1])
        except MuroError as error:
            expect(False, f"the answer of {name}() does not travel: {error.message}")


@case("EngineCore.shutdown")
def shutdown(trial: Trial) -> None:
    """shutdown() releases the engine, whatever is still running."""
    trial.harness.submit(generate_request("shutdown", max_tokens=8))
    trial.step()
    try:
        trial.engine.shutdown()
    except Exception as error:
        expect(False, f"shutdown() raised {error!r}")
