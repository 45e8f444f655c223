"""What callers may ask of the sampler over HTTP, with the simulator, which samples; and what an echo refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.support.server import Server

PROMPT = "abc € xyz"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    options = ("--engine-option", "tokens=sampled", "--scheduling-policy", "priority")
    with Server("--engine", "sim", *options) as running:
        yield running.ready()


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with server.http() as client:
        yield client


def complete(http: httpx.Client, **body: Any) -> dict[str, Any]:
    body = {"prompt": PROMPT, "max_tokens": 4, "seed": 7, **body}
    answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    if not body.get("stream"):
        return answer.json()  # type: ignore[no-any-return]
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line and line != "data: [DONE]"]
    return {"events": events}


def text(answer: dict[str, Any]) -> str:
    return "".join(choice["text"] for choice in answer["choices"])


def test_log_probabilities_of_a_completion(http: httpx.Client) -> None:
    (choice,) = complete(http, logprobs=2)["choices"]
    said = choice["logprobs"]
    assert "".join(said["tokens"]) == choice["text"]
    assert said["text_offset"] == [0, 1, 2, 3]
    for token, logprob, top in zip(said["tokens"], said["token_logprobs"], said["top_logprobs"], strict=True):
        assert top[token] == logprob and 2 <= len(top) <= 3
        assert list(top.values()) == sorted(top.values(), reverse=True)
    assert choice == {**complete(http)["choices"][0], "logprobs": said}, "asking changes no token"


def test_the_prompt_is_echoed_and_scored(http: httpx.Client) -> None:
    (scored,) = complete(http, echo=True, logprobs=1, max_tokens=0)["choices"]
    assert (scored["text"], scored["finish_reason"]) == (PROMPT, "length")
    said = scored["logprobs"]
    assert len(said["tokens"]) == len(PROMPT.encode())
    assert said["tokens"][3:8] == [" ", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", " "]
    assert said["text_offset"] == [0, 1, 2, 3, 4, 4, 4, 5, 6, 7, 8]
    assert said["token_logprobs"][0] is said["top_logprobs"][0] is None
    (whole,) = complete(http, echo=True, logprobs=1)["choices"]
    assert whole["text"] == PROMPT + complete(http)["choices"][0]["text"]
    for name, values in said.items():
        assert whole["logprobs"][name][: len(values)] == values
    assert whole["logprobs"]["text_offset"][-1] == len(whole["text"]) - 1
    assert complete(http, echo=True, max_tokens=0)["usage"]["completion_tokens"] == 0
    assert text(complete(http, prompt=[97, 98], echo=True, max_tokens=0)) == "ab"


@pytest.mark.parametrize("asked", [{}, {"logprobs": 1}, {"echo": True}, {"echo": True, "logprobs": 0, "n": 3}])
@pytest.mark.parametrize("limit", [0, 5])
def test_a_stream_says_what_the_whole_answer_says(http: httpx.Client, asked: dict[str, Any], limit: int) -> None:
    if limit == 0 and not asked.get("echo"):
        return
    asked = {"prompt": [PROMPT, "xy"], "max_tokens": limit, **asked}
    wholes = complete(http, **asked)["choices"]
    parts = complete(http, stream=True, **asked)["events"]
    for whole in wholes:
        mine = [c for event in parts for c in event["choices"] if c["index"] == whole["index"]]
        assert "".join(c["text"] for c in mine) == whole["text"]
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == [whole["finish_reason"]]
        said: dict[str, list[Any]] = {}
        for name, values in ((n, v) for c in mine if c["logprobs"] for n, v in c["logprobs"].items()):
            said.setdefault(name, []).extend(values)
        assert (said or None) == whole["logprobs"]


def test_log_probabilities_of_a_chat(server: Server) -> None:
    messages: Any = [{"role": "user", "content": "hi"}]
    asked: Any = {"model": "sim", "messages": messages, "max_tokens": 3, "seed": 1, "logprobs": True}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        whole = client.chat.completions.create(**asked, top_logprobs=2, extra_body={"prompt_logprobs": 1})
        chunks = list(client.chat.completions.create(**asked, top_logprobs=2, stream=True))
        bare = client.chat.completions.create(**asked)
    said = whole.choices[0].logprobs
    assert said is not None and said.content is not None
    assert "".join(entry.token for entry in said.content) == whole.choices[0].message.content
    assert [len(entry.top_logprobs) for entry in said.content] == [2, 2, 2]
    assert all(entry.bytes == list(entry.token.encode()) for entry in said.content)
    streamed = [e for c in chunks if c.choices[0].logprobs for e in c.choices[0].logprobs.content or []]
    assert streamed == said.content
    assert bare.choices[0].logprobs is not None and bare.choices[0].logprobs.content is not None
    assert [entry.top_logprobs for entry in bare.choices[0].logprobs.content] == [[], [], []]
    prompt: Any = whole.model_extra and whole.model_extra["prompt_logprobs"]
    assert prompt[0] is None and whole.usage is not None and len(prompt) == whole.usage.prompt_tokens


def test_log_probabilities_of_the_prompt(http: httpx.Client) -> None:
    one, two = complete(http, prompt_logprobs=0, n=2)["choices"]
    assert one["prompt_logprobs"] == two["prompt_logprobs"] and one["logprobs"] is None
    ids = [int(token) for row in one["prompt_logprobs"][1:] for token in row]
    assert ids == list(PROMPT.encode())[1:]
    assert all(entry["rank"] >= 1 for row in one["prompt_logprobs"][1:] for entry in row.values())


def test_the_sampler_does_as_it_is_told(http: httpx.Client) -> None:
    assert text(complete(http, logit_bias={"117": 100})) == "uuuu"
    assert text(complete(http, logit_bias={"117": 100}, frequency_penalty=2.0, presence_penalty=2.0)) == "uuuu"
    assert set(text(complete(http, allowed_token_ids=[115, 117]))) <= {"s", "u"}
    greedy = text(complete(http, temperature=0, max_tokens=20))
    assert greedy[0] not in text(complete(http, temperature=0, bad_words=[greedy[0]], max_tokens=20))
    assert text(complete(http, temperature=0, repetition_penalty=5.0, max_tokens=20)) != greedy
    stop = complete(http, temperature=0, stop_token_ids=[ord(greedy[3])], max_tokens=20)["choices"][0]
    assert (stop["finish_reason"], stop["stop_reason"]) == ("stop", ord(greedy[3]))
    more = complete(http, temperature=0, stop_token_ids=[ord(greedy[3])], min_tokens=10, max_tokens=20)["choices"][0]
    assert len(more["text"]) >= 10


def test_priority_and_cache_salt(http: httpx.Client) -> None:
    def cached(**body: Any) -> int:
        usage = complete(http, prompt="shared " * 40, max_tokens=1, **body)["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]  # type: ignore[no-any-return]

    assert cached(priority=-5) == 0
    assert cached() > 200
    assert cached(cache_salt="mine") == 0
    assert cached(cache_salt="mine") > 200


@pytest.mark.parametrize(
    ("option", "value"),
    [("logprobs", 21), ("prompt_logprobs", 21), ("logit_bias", {"999999": 1}), ("thinking_token_budget", 3)],
)
def test_what_the_engine_refuses_is_named(http: httpx.Client, option: str, value: Any) -> None:
    answer = http.post("/v1/completions", json={"prompt": "a", option: value})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == option


@pytest.mark.parametrize(
    ("rank", "status"),
    [("0", 200), ("00000", 200), ("1", 400), ("-1", 400), ("99999", 400), ("9" * 5000, 400), ("x", 400), ("", 400)],
)
def test_fc41_the_engine_may_be_chosen(http: httpx.Client, rank: str, status: int) -> None:
    headers = {"X-data-parallel-rank": rank}
    answer = http.post("/v1/completions", json={"prompt": "abc", "max_tokens": 2}, headers=headers)
    assert answer.status_code == status, answer.text
    if status == 400:
        message = answer.json()["error"]["message"]
        assert "engine" in message and message.endswith(" 0"), "it names those that there are"
