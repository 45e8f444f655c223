"""What a user asks of a model: answers, whole and streamed, and everything that shapes them."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest

from tests.interop.asking import FOREVER, User, messages, reasons, spoken
from tests.interop.pair import Pair
from tests.interop.peers import RUST, RUST_NEW, RUST_OLD, SMG
from tests.interop.table import case, limit
from tests.support.deadline import until

pytestmark = [pytest.mark.timeout(600), pytest.mark.model]

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
CAPITAL = "What is the capital of France?"


@pytest.fixture
def user(modelled: Pair) -> Iterator[User]:
    """Somebody who asks the demo model."""
    with modelled.http() as http:
        yield User(modelled.front.peer, http)
    until(modelled.is_idle, what="the engine has nothing left to do")


@pytest.fixture
def tester(echoing: Pair) -> Iterator[User]:
    """Somebody who asks an engine whose answers he knows."""
    with echoing.http() as http:
        yield User(echoing.front.peer, http)
    until(echoing.is_idle, what="the engine has nothing left to do")


@case("completion")
def test_completion(user: User) -> None:
    answer = user.complete("The capital of France is", max_tokens=8)
    (choice,) = answer["choices"]
    assert "Paris" in choice["text"] and choice["finish_reason"] == "length"
    assert user.text("The capital of France is", max_tokens=8) == choice["text"], "greedy"


@pytest.mark.smoke
@case("completion")
def test_completion_word_by_word(tester: User) -> None:
    (choice,) = tester.complete(max_tokens=6)["choices"]
    assert choice["text"] == "one two threeone two three" and choice["finish_reason"] == "length"


@pytest.mark.smoke
@case("completion, streamed")
def test_completion_streamed(tester: User) -> None:
    with tester.stream(max_tokens=6) as stream:
        events = stream.rest()
    texts = [spoken(event["choices"][0]) for event in events if event["choices"]]
    assert "".join(texts) == "one two threeone two three"
    assert len(list(filter(None, texts))) == 6, "a token at a time"
    assert reasons(events) == ["length"] and stream.closed_properly


@case("completion, streamed")
def test_completion_streamed_as_whole(user: User) -> None:
    with user.stream(prompt="The capital of France is", max_tokens=24) as stream:
        events = stream.rest()
    text = "".join(spoken(event["choices"][0]) for event in events if event["choices"])
    assert text == user.text("The capital of France is", max_tokens=24)


@pytest.mark.smoke
@case("chat")
def test_chat_uses_the_template(tester: User) -> None:
    said = [{"role": "system", "content": "hello there"}]
    (choice,) = tester.chat(messages=said, max_tokens=64)["choices"]
    assert "system\nhello there" in spoken(choice), "the words of the chat template, said back"


@case("chat")
def test_chat(user: User) -> None:
    (choice,) = user.chat(CAPITAL, max_tokens=32)["choices"]
    assert "Paris" in spoken(choice) and choice["finish_reason"] == "stop", "it stops at the end of its turn"


@case("chat, streamed")
def test_chat_streamed(user: User) -> None:
    with user.stream("chat/completions", messages=messages(CAPITAL), max_tokens=32) as stream:
        events = stream.rest()
    text = "".join(spoken(event["choices"][0]) for event in events if event["choices"])
    (choice,) = user.chat(CAPITAL, max_tokens=32)["choices"]
    assert text == spoken(choice) and reasons(events) == ["stop"] and stream.closed_properly


@case("usage counts")
@pytest.mark.parametrize("tokens", [1, 2, 100])
def test_usage(tester: User, tokens: int) -> None:
    usage = tester.complete(max_tokens=tokens)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, tokens, 3 + tokens)


@case("usage counts")
def test_usage_of_a_stream(tester: User) -> None:
    with tester.stream(max_tokens=6, stream_options={"include_usage": True}) as stream:
        *_, last = stream
    usage = last["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 6, 9)


@case("logprobs", *RUST)
def test_logprobs_of_a_completion(user: User) -> None:
    (choice,) = user.complete("The capital of France is", max_tokens=4, logprobs=2)["choices"]
    said = choice["logprobs"]
    assert "".join(said["tokens"]) == choice["text"]
    for token, value, top in zip(said["tokens"], said["token_logprobs"], said["top_logprobs"], strict=True):
        assert value == max(top.values()) <= 0 and token in top and 2 <= len(top) <= 3, "greedy takes the likeliest"


@case("logprobs", RUST_NEW, SMG)
def test_logprobs_of_a_chat(user: User) -> None:
    for entry in logprobs_of_a_chat(user):
        assert len(entry["top_logprobs"]) == 2


@limit("logprobs", RUST_OLD, reason="vllm-rs 0.25.1 lists the token itself once more before the likeliest of a chat")
def test_logprobs_of_a_chat_with_one_too_many(user: User) -> None:
    for entry in logprobs_of_a_chat(user):
        first, *likeliest = entry["top_logprobs"]
        assert first["token"] == entry["token"] and first in likeliest and len(likeliest) == 2


def logprobs_of_a_chat(user: User) -> list[Any]:
    """For each token, the two likeliest among them."""
    (choice,) = user.chat(CAPITAL, max_tokens=4, logprobs=True, top_logprobs=2)["choices"]
    content: list[Any] = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == spoken(choice)
    for entry in content:
        assert entry["logprob"] == max(top["logprob"] for top in entry["top_logprobs"]) <= 0
    return content


@limit("logprobs", SMG, reason="SMG gives logprobs with chats alone: a completion that asks for them comes without")
def test_no_logprobs_of_a_completion(user: User) -> None:
    (choice,) = user.complete("The capital of France is", max_tokens=4, logprobs=2)["choices"]
    assert choice["text"] and not choice.get("logprobs")


@limit("logprobs of the prompt", SMG, reason="SMG has no logprobs of prompts: it answers without")
def test_no_logprobs_of_the_prompt(user: User) -> None:
    (choice,) = user.complete("The capital of France is", max_tokens=1, prompt_logprobs=1)["choices"]
    assert choice["text"] and not choice.get("prompt_logprobs")


@case("logprobs of the prompt", *RUST)
def test_logprobs_of_the_prompt(user: User) -> None:
    answer = user.complete("The capital of France is", max_tokens=1, prompt_logprobs=1)
    (choice,) = answer["choices"]
    first, *others = choice["prompt_logprobs"]
    assert first is None and len(others) == answer["usage"]["prompt_tokens"] - 1
    entries = [entry for position in others for entry in position.values()]
    # vllm-rs 0.25.1 writes numbers, later ones what vLLM's own front-end writes.
    assert all((entry["logprob"] if isinstance(entry, dict) else entry) <= 0 for entry in entries) and entries


@case("stop strings")
def test_stop_string(tester: User) -> None:
    """Found by the front-end, which then aborts the request in the engine."""
    (choice,) = tester.complete(max_tokens=FOREVER, stop=["two"])["choices"]
    assert choice["text"] == "one " and choice["finish_reason"] == "stop"


@case("seeds")
def test_seeds(user: User) -> None:
    def draw(seed: int) -> str:
        return user.text("Once upon a time", max_tokens=16, temperature=1.0, top_p=1.0, seed=seed)

    first = draw(7)
    assert draw(7) == first and len({draw(seed) for seed in range(8, 12)} | {first}) > 1


@case("structured output")
def test_structured_output_by_schema(user: User) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    (choice,) = user.chat("Tell me of a person named Ann, 31.", max_tokens=200, response_format=form)["choices"]
    jsonschema.validate(json.loads(spoken(choice)), PERSON)
    assert choice["finish_reason"] == "stop"


@case("structured output", *RUST)
@pytest.mark.parametrize(
    ("wanted", "form"), [({"choice": ["red", "green"]}, "red|green"), ({"regex": "[0-9]{3}"}, "[0-9]{3}")]
)
def test_structured_output(user: User, wanted: dict[str, Any], form: str) -> None:
    (choice,) = user.chat("Pick.", max_tokens=16, structured_outputs=wanted)["choices"]
    assert re.fullmatch(form, spoken(choice))


@case("structured output", SMG)
def test_structured_output_by_pattern(user: User) -> None:
    """What it calls the same."""
    (choice,) = user.chat("Pick.", max_tokens=16, regex="[0-9]{3}")["choices"]
    assert re.fullmatch("[0-9]{3}", spoken(choice))


@case("32 streams at once")
def test_streams_at_once(echoing: Pair, tester: User) -> None:
    def stream(number: int) -> str:
        with echoing.http() as http, User(tester.peer, http).stream(prompt=f"number {number}", max_tokens=200) as it:
            events = it.rest()
        assert reasons(events) == ["length"]
        return "".join(spoken(event["choices"][0]) for event in events if event["choices"])

    with ThreadPoolExecutor(32) as pool:
        for number, text in enumerate(pool.map(stream, range(32))):
            assert text.startswith(f"number {number}number {number}n"), "its own words and nobody else's"


@case("32 streams at once")
def test_streams_of_a_model_at_once(modelled: Pair, user: User) -> None:
    def stream(number: int) -> str:
        with modelled.http() as http, User(user.peer, http).stream(prompt=f"{number} plus 1 is", max_tokens=16) as it:
            events = it.rest()
        assert reasons(events) in (["length"], ["stop"])
        return "".join(spoken(event["choices"][0]) for event in events if event["choices"])

    with ThreadPoolExecutor(32) as pool:
        assert all(pool.map(stream, range(32)))


@case("over-long prompt", *RUST)
def test_a_prompt_that_is_too_long(tester: User) -> None:
    """Refused by the front-end, which knows the engine's length; the engine never hears of it."""
    answer = tester.post("completions", prompt="word " * 9000, max_tokens=1)
    assert answer.status_code == 400 and "8192" in answer.text
    assert tester.text(max_tokens=3) == "one two three"


@case("over-long prompt", SMG)
def test_a_prompt_that_is_too_long_for_the_engine(tester: User) -> None:
    """This front-end asks the engine, which refuses it."""
    answer = tester.post("completions", prompt="word " * 9000, max_tokens=1)
    print(answer.status_code, answer.text)
    assert answer.status_code >= 400
    assert tester.text(max_tokens=3) == "one two three"
