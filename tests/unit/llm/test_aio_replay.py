"""aio_replay.py: every token once, whatever dies in between; nobody waits for ever, and nothing is left."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muro.core.plan import ModelRunnerOutput, SchedulerOutput
from muro.core.scheduler import SchedulerConfig
from muro.core.stepper import StepperEngine
from muro.engines.echo import EchoEngine
from muro.errors import EngineDeadError, RequestFailedError, UsageError
from muro.llm import pipeline
from muro.llm.aio import AsyncLLM
from muro.llm.aio_replay import AsyncRequests
from muro.llm.outputs import RequestOutput
from muro.llm.replay import DeathPolicy
from muro.llm.words import Words
from muro.observe.metrics import ServingMetrics
from muro.testing.hashing import HashingExecutor
from muro.text.tokenizer import ByteTokenizer
from muro.wire.output import EngineCoreOutput
from muro.wire.request import RESUMED_TOKENS, EngineCoreRequest, OutputKind, SamplingParams
from tests.support.counts import count
from tests.support.mortal import MortalClient, death

MAX_LEN = 60
LETTERS = sorted(set("aé☃🙂".encode()))
"""Output of these bytes is full of characters that lie across tokens."""
REPLAY = DeathPolicy(on_engine_death="replay")


def hashing(
    blocks: int = 200, seqs: int = 16, budget: int = 64, kind: type[HashingExecutor] = HashingExecutor
) -> StepperEngine:
    executor = kind(num_blocks=blocks, block_size=4, vocab_size=258, max_model_len=MAX_LEN)
    return StepperEngine(executor, SchedulerConfig(max_num_seqs=seqs, max_num_batched_tokens=budget))


def llm_over(client: MortalClient, policy: DeathPolicy = REPLAY) -> AsyncLLM:
    return AsyncLLM(client, Words(ByteTokenizer(), None, MAX_LEN), policy=policy)  # type: ignore[arg-type]


def requests_over(client: MortalClient, policy: DeathPolicy = REPLAY) -> AsyncRequests:
    return AsyncRequests(client, policy, ServingMetrics())  # type: ignore[arg-type]


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def drive(client: MortalClient, tasks: Sequence[asyncio.Task[Any]], deaths: Sequence[int] = ()) -> None:
    """Step until all tasks are done; before the steps numbered in `deaths` the engine dies, and is replaced."""
    for step in range(5000):
        await settle()
        if all(task.done() for task in tasks):
            return
        if step in deaths:
            client.die()
            await settle()
            client.replace()
            await settle()
        client.step()
    raise TimeoutError("no end in sight")


def only_task(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    return [task.result() for task in tasks]


def nothing_left(requests: AsyncRequests) -> bool:
    gc.collect()
    return not (len(requests.quarantine) or requests._turns or requests.quarantine._running or requests._streams)


tokens = st.integers(0, 257)
samplings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 4]),
    top_p=st.sampled_from([1.0, 0.8]),
    min_p=st.sampled_from([0.0, 0.05]),
    seed=st.integers(-(2**63), 2**63 - 1),
    max_tokens=st.integers(4, 12) | st.integers(4, 24) | st.none(),
    min_tokens=st.integers(0, 4),
    ignore_eos=st.booleans(),
    stop_token_ids=st.lists(st.sampled_from(LETTERS), max_size=2),
    allowed_token_ids=st.just([*LETTERS, 256, 257]),
    logprobs=st.sampled_from([None, 0, 3]),
)


def shown(output: EngineCoreOutput) -> object:
    return output.new_token_ids, output.new_logprobs, output.finish_reason, output.stop_reason


async def read(requests: AsyncRequests, request: EngineCoreRequest) -> list[object]:
    return [shown(output) async for output in requests.generate(request)]


@given(sampling=samplings, prompt=st.lists(tokens, min_size=1, max_size=8))
@settings(max_examples=count(8, 300), deadline=None)
def test_cut_at_every_position_it_reads_the_same(sampling: SamplingParams, prompt: list[int]) -> None:
    async def outputs(cut: int | None) -> list[object]:
        client = MortalClient(hashing)
        requests = requests_over(client)
        fitted = pipeline.engine_params(sampling, len(prompt), ByteTokenizer(), MAX_LEN)
        task = asyncio.create_task(read(requests, EngineCoreRequest("r", prompt, sampling_params=fitted)))
        await drive(client, [task], [] if cut is None else [cut])
        assert client.generation == (cut is not None)
        assert nothing_left(requests)
        return task.result()

    async def test() -> None:
        whole = await outputs(None)
        for cut in range(len(whole)):
            assert await outputs(cut) == whole

    run(test)


texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)
stops = st.lists(st.sampled_from(["é", "☃a", "aa", "🙂", "é☃", "a"]), max_size=2)


@given(
    asked=st.lists(st.tuples(texts, samplings, stops, st.booleans(), st.integers(1, 3)), min_size=1, max_size=5),
    deaths=st.lists(st.integers(0, 40), max_size=4, unique=True),
    blocks=st.integers(15, 40),
)
@settings(max_examples=count(15, 1000), deadline=None)
def test_texts_are_those_of_an_undisturbed_run(
    asked: list[tuple[str, SamplingParams, list[str], bool, int]], deaths: list[int], blocks: int
) -> None:
    """Several requests of several choices with stop strings, in a cache that preempts, and several deaths."""

    async def final(llm: AsyncLLM, prompt: str, params: SamplingParams) -> RequestOutput:
        outputs = [output async for output in llm.generate(prompt, params)]
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
        return outputs[-1]

    async def results(deaths: list[int]) -> list[RequestOutput]:
        client = MortalClient(lambda: hashing(blocks, seqs=6, budget=9))
        llm = llm_over(client)
        tasks = []
        for prompt, params, stop, include, n in asked:
            changed = msgspec.structs.replace(params, stop=stop, include_stop_str_in_output=include, n=n, logprobs=None)
            tasks.append(asyncio.create_task(final(llm, prompt, changed)))
        await drive(client, tasks, deaths)
        assert nothing_left(llm._requests)
        return [msgspec.structs.replace(output, request_id="") for output in only_task(tasks)]

    async def test() -> None:
        assert await results(deaths) == await results([])

    run(test)


@pytest.mark.parametrize("kind", list(OutputKind))
def test_each_kind_of_output(kind: OutputKind) -> None:
    params = SamplingParams(max_tokens=12, seed=3, n=2, ignore_eos=True, allowed_token_ids=LETTERS, output_kind=kind)

    async def results(deaths: list[int]) -> list[object]:
        client = MortalClient(hashing)
        llm = llm_over(client)

        async def collect() -> list[object]:
            return [
                (choice.index, choice.text, choice.token_ids, choice.finish_reason, output.finished)
                async for output in llm.generate("abc", params)
                for choice in output.outputs
            ]

        task = asyncio.create_task(collect())
        await drive(client, [task], deaths)
        return task.result()

    async def test() -> None:
        whole = await results([])
        assert (len(whole) == 2) == (kind is OutputKind.FINAL_ONLY)
        assert await results([3, 4, 9]) == whole

    run(test)


def test_usage_counts_nothing_twice() -> None:
    async def test() -> None:
        client = MortalClient(hashing)
        llm = llm_over(client)
        generation = llm.submit("r", [[1, 2, 3], [4, 5]], SamplingParams(max_tokens=9, n=2, ignore_eos=True))

        async def collect() -> None:
            async for _ in generation:
                pass

        task = asyncio.create_task(collect())
        await drive(client, [task], [2, 6])
        usage = generation.usage()
        assert (usage.prompt_tokens, usage.completion_tokens) == (5, 36)
        assert llm.metrics.generation_tokens == 36
        assert llm.metrics.replayed == 8

    run(test)


def test_without_a_seed_one_is_drawn_for_all_attempts() -> None:
    async def test() -> None:
        client = MortalClient(hashing)
        llm = llm_over(client)
        generation = llm.submit("r", [[1]], SamplingParams(max_tokens=6, ignore_eos=True))
        task = asyncio.create_task(anext(generation))
        await drive(client, [task])
        client.die()
        client.replace()
        task = asyncio.create_task(anext(generation))
        await drive(client, [task])
        await generation.aclose()
        first, second = (request.sampling_params for request in client.sent)
        assert first is not None and second is not None
        assert first.seed is not None and first.seed == second.seed
        other = llm.submit("r", [[1]], SamplingParams(max_tokens=6))
        assert client.sent[-1].sampling_params != first
        await other.aclose()

    run(test)


def test_a_reader_who_asks_late_gets_all_and_is_sent_again_only_then() -> None:
    async def test() -> None:
        client = MortalClient(hashing)
        requests = requests_over(client)
        params = SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=True)
        stream = requests.generate(EngineCoreRequest("r", [1, 2], sampling_params=params))
        for _ in range(3):
            client.step()
        client.die()
        client.replace()
        await settle()
        assert len(client.sent) == 1
        got = [await anext(stream), *stream.pending()]
        assert len(got) == 3
        task = asyncio.create_task(anext(stream))  # type: ignore[arg-type]
        await drive(client, [task])
        resumed = client.sent[1]
        assert resumed.prompt_token_ids == [1, 2, *[output.new_token_ids[0] for output in got]]
        assert resumed.sampling_params is not None and resumed.sampling_params.extra_args == {RESUMED_TOKENS: 3}
        await stream.aclose()

    run(test)


def test_what_an_engine_says_after_its_death_is_nobodys() -> None:
    async def test() -> None:
        client = MortalClient(hashing)
        requests = requests_over(client)
        params = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
        task = asyncio.create_task(read(requests, EngineCoreRequest("r", [1, 2], sampling_params=params)))
        await settle()
        client.harness.step()
        late = [routed.message for routed in client.harness.messages]
        client.die()
        client.replace()
        await settle()
        for message in late:
            client.session.receive(message)
        assert client.session.late_outputs == 1
        await drive(client, [task])
        assert len(task.result()) == 4

    run(test)


def echo_request(**params: Any) -> EngineCoreRequest:
    return EngineCoreRequest("r", [1, 2], sampling_params=SamplingParams(max_tokens=3, **params))


def test_an_engine_that_cannot_continue_can_start_again() -> None:
    async def test() -> None:
        client = MortalClient(EchoEngine)
        requests = requests_over(client)
        task = asyncio.create_task(read(requests, echo_request()))
        await drive(client, [task], [0])
        assert len(task.result()) == 3

        stream = requests.generate(echo_request())
        client.step()
        await anext(stream)
        client.die()
        with pytest.raises(RequestFailedError, match=r"1 tokens.*does not know how to continue") as raised:
            await anext(stream)
        assert isinstance(raised.value.__cause__, EngineDeadError)
        assert nothing_left(requests)

    run(test)


@pytest.mark.parametrize("policy", [REPLAY, DeathPolicy()])
def test_new_requests_wait_for_the_restart(policy: DeathPolicy) -> None:
    async def test() -> None:
        client = MortalClient(hashing)
        requests = requests_over(client, policy)
        client.die()
        task = asyncio.create_task(read(requests, echo_request()))
        await settle()
        assert not task.done()
        client.replace()
        await drive(client, [task])
        assert len(task.result()) == 3

    run(test)


def test_running_requests_fail_where_that_is_the_policy() -> None:
    async def test() -> None:
        client = MortalClient(hashing)
        requests = requests_over(client, DeathPolicy())
        task = asyncio.create_task(read(requests, echo_request()))
        await settle()
        client.die()
        await settle()
        with pytest.raises(EngineDeadError):
            task.result()

    run(test)


def test_a_request_that_waited_fails_like_any_other() -> None:
    async def test() -> None:
        client = MortalClient(hashing)
        requests = requests_over(client, DeathPolicy())
        client.die()
        task = asyncio.create_task(read(requests, echo_request()))
        await settle()
        client.replace()
        await settle()
        assert len(client.sent) == 1
        client.die()
        await settle()
        with pytest.raises(EngineDeadError):
            task.result()

    run(test)


@pytest.mark.parametrize("running", [True, False])
def test_patience_ends(running: bool) -> None:
    async def test() -> None:
        client = MortalClient(hashing)
        requests = requests_over(client, DeathPolicy(on_engine_death="replay", restart_wait=0.01))
        if not running:
            client.die()
        task = asyncio.create_task(read(requests, echo_request()))
        await settle()
        if running:
            client.die()
        with pytest.raises(EngineDeadError, match=r"within 0.01 s.*engine 0 ended with -9"):
            await task
        assert nothing_left(requests)

    run(test)


def test_without_patience_nothing_waits() -> None:
    async def test() -> None:
        client = MortalClient(hashing)
        requests = requests_over(client, DeathPolicy(on_engine_death="replay", restart_wait=0))
        client.die()
        with pytest.raises(EngineDeadError):
            requests.generate(echo_request())
        assert nothing_left(requests)

    run(test)


def test_when_the_restart_is_given_up_all_who_wait_are_told() -> None:
    async def test() -> None:
        client = MortalClient(hashing)
        requests = requests_over(client)
        client.die()
        task = asyncio.create_task(read(requests, echo_request()))
        await settle()
        client.give_up()
        with pytest.raises(EngineDeadError, match="ended with -9"):
            await task
        with pytest.raises(EngineDeadError):
            requests.generate(echo_request())
        assert nothing_left(requests)

    run(test)


@pytest.mark.parametrize("delivered", [0, 1])
def test_aborted_while_it_waits(delivered: int) -> None:
    async def test() -> None:
        client = MortalClient(hashing)
        llm = llm_over(client)
        generation = llm.submit("r", [[1], [2]], SamplingParams(max_tokens=30, ignore_eos=True))

        async def collect() -> list[str | None]:
            return [piece.finish_reason async for piece in generation]

        task = asyncio.create_task(collect())
        await settle()
        for _ in range(delivered):
            client.step()
        await settle()
        client.die()
        await settle()
        assert llm.abort_all() == 1
        await settle()
        assert [reason for reason in task.result() if reason] == ["abort", "abort"]
        assert nothing_left(llm._requests)

    run(test)


def test_aborted_before_its_reader_heard_of_the_death() -> None:
    async def test() -> None:
        client = MortalClient(hashing)
        llm = llm_over(client)
        generation = llm.submit("r", [[1]], SamplingParams(max_tokens=30, ignore_eos=True))
        client.die()
        llm.abort_all()
        assert (await anext(generation)).finish_reason == "abort"
        client.replace()
        await settle()
        assert len(client.sent) == 1

    run(test)


@pytest.mark.parametrize("where", ["running", "waiting for the engine", "waiting for its turn"])
@pytest.mark.parametrize("how", ["cancelled", "closed", "lost"])
def test_a_reader_who_leaves_leaves_nothing(how: str, where: str) -> None:
    async def test() -> None:
        client = MortalClient(hashing)
        requests = requests_over(client)
        if where == "waiting for its turn":
            requests.quarantine.enter("other")
            requests.quarantine._tried = "other"
        if where == "waiting for the engine":
            client.die()
        stream = requests.generate(echo_request())
        task = asyncio.create_task(anext(stream))  # type: ignore[arg-type]
        await settle()
        if how == "closed":
            await stream.aclose()
            with pytest.raises(StopAsyncIteration):
                await task
        else:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        if how == "lost":
            if where == "waiting for the engine":
                client.replace()
            requests.quarantine.leave("other")
            requests.generate(msgspec.structs.replace(echo_request(), request_id="lost"))
        del stream, task
        gc.collect()
        await settle()
        requests.quarantine.leave("other")
        assert nothing_left(requests)
        assert len(client.session) == 0

    run(test)


def test_a_second_reader_is_refused_and_the_first_goes_on() -> None:
    async def test() -> None:
        client = MortalClient(hashing)
        requests = requests_over(client)
        client.die()
        stream = requests.generate(echo_request())
        task = asyncio.create_task(anext(stream))  # type: ignore[arg-type]
        await settle()
        with pytest.raises(UsageError):
            await anext(stream)
        client.replace()
        await drive(client, [task])
        assert len(task.result().new_token_ids) == 1
        await stream.aclose()

    run(test)


class Poisonable(HashingExecutor):
    """Dies of sequences that begin with 13."""

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        if any(s.token_ids[0] == 13 and s.num_computed_tokens == 0 for s in plan.sequences):
            raise MemoryError("poisoned")
        return super().execute(plan)


def test_a_poisonous_request_is_found_and_nobody_else_is_hurt() -> None:
    async def test() -> None:
        client = MortalClient(lambda: hashing(kind=Poisonable))
        llm = llm_over(client)
        params = SamplingParams(max_tokens=15, ignore_eos=True, temperature=0.0)

        async def ask(prompt: list[int]) -> list[int]:
            async for output in llm.generate(prompt, params):
                last = output
            return last.outputs[0].token_ids

        innocent = [asyncio.create_task(ask([number, 5])) for number in range(8)]
        for _ in range(4):
            await settle()
            client.step()
        poison = asyncio.create_task(ask([13, 5]))
        late = [asyncio.create_task(ask([number, 6])) for number in range(4)]
        tasks = [*innocent, poison, *late]
        for _ in range(300):
            await settle()
            try:
                client.step()
            except MemoryError:
                client.die(death(1))
                await settle()
                client.replace()
        assert all(task.done() for task in tasks)
        with pytest.raises(RequestFailedError, match=r"3 times .* nothing else explains"):
            poison.result()
        for task in [*innocent, *late]:
            assert len(task.result()) == 15
        assert client.generation == 3, "two deaths made it a suspect, the third one convicted it"
        assert llm.metrics.quarantined == 1
        assert nothing_left(llm._requests)

    run(test)
