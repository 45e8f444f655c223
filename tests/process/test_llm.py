"""LLM and AsyncLLM as their users know them, over the echo engine in a process of its own."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import muro
from muro.errors import EngineDeadError, InvalidRequestError, PromptTooLongError, UnsupportedOptionError
from muro.wire.request import OutputKind


@pytest.fixture(scope="module")
def llm() -> Iterator[muro.LLM]:
    with muro.LLM(engine="echo", max_model_len=5000) as made:
        yield made


def texts(outputs: list[muro.RequestOutput]) -> list[list[str]]:
    return [[choice.text for choice in output.outputs] for output in outputs]


def test_prompts_and_choices_in_their_order(llm: muro.LLM) -> None:
    outputs = llm.generate(["abc", "def"], muro.SamplingParams(max_tokens=5, n=2))
    assert texts(outputs) == [["abcab", "abcab"], ["defde", "defde"]]
    first = outputs[0]
    assert (first.prompt, first.prompt_token_ids, first.finished) == ("abc", [97, 98, 99], True)
    choice = first.outputs[1]
    assert (choice.index, choice.token_ids, choice.finish_reason) == (1, [97, 98, 99, 97, 98], "length")


def test_one_prompt_in_each_form(llm: muro.LLM) -> None:
    params = muro.SamplingParams(max_tokens=2)
    for prompt in ("ab", [97, 98], {"prompt": "ab"}, {"prompt_token_ids": [97, 98]}):
        assert texts(llm.generate(prompt, params)) == [["ab"]]
    assert llm.generate([], params) == []


def test_parameters_for_each_prompt(llm: muro.LLM) -> None:
    params = [muro.SamplingParams(max_tokens=1), muro.SamplingParams(max_tokens=100, stop=["f d"])]
    outputs = llm.generate(["abc", "def "], params)
    assert texts(outputs) == [["a"], ["de"]]
    assert outputs[1].outputs[0].stop_reason == "f d"
    with pytest.raises(InvalidRequestError, match="2 sampling parameters for 1 prompts"):
        llm.generate(["abc"], params)


def test_chats(llm: muro.LLM) -> None:
    message: Any = {"role": "user", "content": "hi"}
    params = muro.SamplingParams(max_tokens=8)
    assert texts(llm.chat([message], params)) == [["user: hi"]]
    outputs = llm.chat([[message], [message]], params)
    assert texts(outputs) == [["user: hi"], ["user: hi"]]
    assert outputs[0].prompt == "user: hi\nassistant: "


@pytest.mark.parametrize(
    "prompts",
    [5, None, [5.0], [None], {"x": 1}, {"prompt": 5}, {"prompt_token_ids": "hi"}, {"prompt_token_ids": [1.5]},
     [["a"]], [[1], ["a"]], b"hi", [b"hi"], object(), {"hi"}, iter(["a"]), [True], [[1], [True]]],
)  # fmt: skip
def test_what_is_no_prompt(llm: muro.LLM, prompts: Any) -> None:
    with pytest.raises(InvalidRequestError, match="a prompt is a text, a list of token ids") as caught:
        llm.generate(prompts)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("params", [5, "hi", {"max_tokens": 2}, [5], [{"max_tokens": 2}], [None], object()])
def test_what_are_no_sampling_parameters(llm: muro.LLM, params: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"sampling parameters are a muro\.SamplingParams, not"):
        llm.generate("a", params)


@pytest.mark.parametrize("messages", [5, None, "hi", {"role": "user", "content": "x"}, [5], ["hi"], [], iter([])])
def test_what_are_no_messages(llm: muro.LLM, messages: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"messages(\[0\])? must"):
        llm.chat(messages)


def test_log_probabilities_of_an_engine_that_samples() -> None:
    params = muro.SamplingParams(
        max_tokens=4, temperature=0.0, presence_penalty=0.5, logprobs=2, prompt_logprobs=0, n=2, logit_bias={101: 1.0}
    )
    with muro.LLM(engine="sim", options={"step_us": 0}) as llm:
        (output,) = llm.generate("abc", params)
    assert output.prompt_logprobs is not None
    assert [row and list(row) for row in output.prompt_logprobs] == [None, [98], [99]]
    for choice in output.outputs:
        assert choice.logprobs is not None
        assert [next(iter(row)) for row in choice.logprobs] == choice.token_ids
        assert all(row[token].rank == 1 for row, token in zip(choice.logprobs, choice.token_ids, strict=True))
        assert "".join(
            row[i].decoded_token or "" for row, i in zip(choice.logprobs, choice.token_ids, strict=True)
        ) == (choice.text)
        assert choice.cumulative_logprob == pytest.approx(0.0, abs=1e-3)


def test_an_engine_without_a_distribution_gives_no_log_probabilities(llm: muro.LLM) -> None:
    (output,) = llm.generate("a", muro.SamplingParams(logprobs=1))
    assert (output.outputs[0].logprobs, output.prompt_logprobs) == (None, None)


def test_what_outputs_do_not_carry_is_refused_by_name(llm: muro.LLM) -> None:
    with pytest.raises(UnsupportedOptionError, match="flat_logprobs"):
        llm.generate("a", muro.SamplingParams(logprobs=1, flat_logprobs=True))


def test_a_wrong_prompt_leaves_nothing_behind(llm: muro.LLM) -> None:
    with pytest.raises(PromptTooLongError):
        llm.generate(["abc", "x" * 5000])
    assert texts(llm.generate("abc", muro.SamplingParams(max_tokens=3))) == [["abc"]]


def test_many(llm: muro.LLM) -> None:
    outputs = llm.generate([f"{number} " for number in range(500)], muro.SamplingParams(max_tokens=20))
    assert texts(outputs) == [[(f"{number} " * 20)[:20]] for number in range(500)]


def test_an_interrupted_call_leaves_the_next_one_alone() -> None:
    """Ctrl-C in a notebook: the old requests are gone, the next call gets its own results."""
    with muro.LLM(engine="paced", options={"step_ms": 5}) as llm:
        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                llm.generate(["a", "b"], muro.SamplingParams(max_tokens=10_000))
        finally:
            signal.signal(signal.SIGINT, previous)
            timer.join()
        assert texts(llm.generate(["cd", "ef"], muro.SamplingParams(max_tokens=3))) == [["cdc"], ["efe"]]


def test_several_engines() -> None:
    with muro.LLM(engine="echo", connect=muro.ConnectConfig(num_engines=2)) as llm:
        outputs = llm.generate([f"{number} " for number in range(20)], muro.SamplingParams(max_tokens=5))
        assert texts(outputs) == [[(f"{number} " * 20)[:5]] for number in range(20)]


def test_a_dead_engine_is_told() -> None:
    with muro.LLM(engine="faulty", options={"step_ms": 1}) as llm:
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            llm.generate("abc", muro.SamplingParams(max_tokens=5, extra_args={"fault": "step:signal=SIGKILL"}))
        with pytest.raises(EngineDeadError):
            llm.generate("abc")


@pytest.mark.cases
@pytest.mark.parametrize(
    ("ending", "code"), [("", 0), ("sys.exit(3)", 3), ("raise ValueError('mine')", 1), ("llm.close()", 0)]
)
def test_a_script_ends_as_it_wants(ending: str, code: int) -> None:
    """FC-28, FC-49: no guard, no complaint, the script's own exit status."""
    script = (
        "import sys, muro\n"
        "llm = muro.LLM(engine='echo')\n"
        "print(llm.generate('abc', muro.SamplingParams(max_tokens=3))[0].outputs[0].text)\n" + ending
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=False)
    assert (ended.returncode, ended.stdout) == (code, "abc\n")
    assert ended.stderr == "" or (
        ended.stderr.rstrip().endswith("ValueError: mine") and ended.stderr.count("Error") == 1
    )


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (OutputKind.CUMULATIVE, lambda seen: seen[-1] == "abcabc" and "abcabc".startswith(tuple(seen))),
        (OutputKind.DELTA, lambda seen: "".join(seen) == "abcabc"),
        (OutputKind.FINAL_ONLY, lambda seen: seen == ["abcabc"]),
    ],
)
def test_outputs_as_they_come(kind: OutputKind, shown: Any) -> None:
    async def test() -> None:
        async with await muro.AsyncLLM.start(engine="echo") as llm:
            params = muro.SamplingParams(max_tokens=6, output_kind=kind)
            seen = [output.outputs[0].text async for output in llm.generate("abc", params, "mine")]
            assert shown(seen)

    asyncio.run(test())


def test_what_an_engine_refuses_is_raised() -> None:
    async def test() -> None:
        async with await muro.AsyncLLM.start(engine="faulty") as llm:
            params = muro.SamplingParams(extra_args={"fault": "preprocess:refuse"})
            with pytest.raises(InvalidRequestError, match="refusal"):
                async for _ in llm.generate("abc", params):
                    pass
            with pytest.raises(UnsupportedOptionError, match="flat_logprobs"):
                _ = [o async for o in llm.generate("a", muro.SamplingParams(flat_logprobs=True))]
            with pytest.raises(InvalidRequestError, match="temperature"):
                async for _ in llm.generate("abc", muro.SamplingParams(temperature=-1.0)):
                    pass

    asyncio.run(test())


def test_the_same_id_twice_at_once() -> None:
    """FC-14 for users of the library."""

    async def test() -> None:
        async with await muro.AsyncLLM.start(engine="echo") as llm:

            async def ask(prompt: str) -> str:
                text = ""
                async for output in llm.generate(prompt, muro.SamplingParams(max_tokens=500), "mine"):
                    assert output.request_id == "mine"
                    text = output.outputs[0].text
                return text

            assert await asyncio.gather(ask("a"), ask("b")) == ["a" * 500, "b" * 500]

    asyncio.run(test())


def test_a_start_can_be_cancelled() -> None:
    async def test() -> None:
        starting = asyncio.create_task(muro.AsyncLLM.start(engine="faulty", options={"fault": "loading:hang"}))
        await asyncio.sleep(0.3)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(test())
