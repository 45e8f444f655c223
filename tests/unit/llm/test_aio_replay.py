"""aio_replay.py: every token once, whatever dies in between; nobody waits for ever, and nothing is left."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muro.llm import pipeline
from muro.llm.aio import AsyncLLM
from muro.llm.outputs import CompletionOutput, RequestOutput
from muro.text.tokenizer import ByteTokenizer
from muro.wire.request import RESUMED_TOKENS, EngineCoreRequest, OutputKind, RepetitionDetection, SamplingParams
from tests.support.counts import count
from tests.support.mortal import MortalClient
from tests.support.replaying import (
    LETTERS,
    MAX_LEN,
    drive,
    hashing,
    llm_over,
    nothing_left,
    only_task,
    read,
    requests_over,
    run,
    settle,
)  # fmt: skip

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
    presence_penalty=st.sampled_from([0.0, 0.0, 1.0, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3]),
    logit_bias=st.none() | st.dictionaries(st.sampled_from(LETTERS), st.floats(-2, 2), max_size=2),
    bad_words_token_ids=st.none() | st.lists(st.lists(st.sampled_from(LETTERS), min_size=1, max_size=2), max_size=3),
    repetition_detection=st.none() | st.builds(RepetitionDetection, st.integers(1, 3), st.just(1), st.integers(2, 3)),
)


@pytest.mark.timeout(600)
@given(sampling=samplings, prompt=st.lists(tokens, min_size=1, max_size=8), prompt_logprobs=st.sampled_from([None, 1]))
@settings(max_examples=count(4, 300), deadline=None)
def test_cut_at_every_position_it_reads_the_same(
    sampling: SamplingParams, prompt: list[int], prompt_logprobs: int | None
) -> None:
    sampling.prompt_logprobs = prompt_logprobs

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


@pytest.mark.timeout(600)
@given(
    asked=st.lists(st.tuples(texts, samplings, stops, st.booleans(), st.integers(1, 3)), min_size=1, max_size=5),
    deaths=st.lists(st.integers(0, 40), max_size=4, unique=True),
    blocks=st.integers(15, 40),
)
@settings(max_examples=count(8, 1000), deadline=None)
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
            changed = msgspec.structs.replace(params, stop=stop, include_stop_str_in_output=include, n=n)
            tasks.append(asyncio.create_task(final(llm, prompt, changed)))
        await drive(client, tasks, deaths)
        assert nothing_left(llm._requests)
        # Which of two choices finds the other one's prompt in the cache depends on who was sent first.
        return [msgspec.structs.replace(o, request_id="", num_cached_tokens=None) for o in only_task(tasks)]

    async def test() -> None:
        assert await results(deaths) == await results([])

    run(test)


@pytest.mark.parametrize("kind", list(OutputKind))
def test_each_kind_of_output(kind: OutputKind) -> None:
    params = SamplingParams(
        max_tokens=12, seed=3, n=2, ignore_eos=True, allowed_token_ids=LETTERS, output_kind=kind, logprobs=1,
        prompt_logprobs=0,
    )  # fmt: skip

    def said(choice: CompletionOutput) -> object:
        if not choice.token_ids:  # the other choice, which has said nothing yet
            return None
        assert choice.logprobs is not None
        assert [next(iter(row)) for row in choice.logprobs] == choice.token_ids
        return choice.logprobs, choice.cumulative_logprob

    def told_of_the_prompt(output: RequestOutput) -> bool:
        assert [row and list(row) for row in output.prompt_logprobs or ()] == [None, [98], [99]]
        return True

    async def results(deaths: list[int]) -> list[object]:
        client = MortalClient(hashing)
        llm = llm_over(client)

        async def collect() -> list[object]:
            return [
                (choice.index, choice.text, choice.token_ids, choice.finish_reason, output.finished, said(choice))
                async for output in llm.generate("abc", params)
                for choice in output.outputs
                if told_of_the_prompt(output)
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
