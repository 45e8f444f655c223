"""A user's requests through each pair; the demo model answers, greedily unless the case is about chance."""

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.interop.vllm.worlds import CONTEXT, MODEL_NAME, Kind, World, events
from tests.support.deadline import until

pytestmark = pytest.mark.timeout(1800)
PROMPT = "The capital of France is"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "capital": {"type": "boolean"}},
    "required": ["city", "capital"],
    "additionalProperties": False,
}
ODD: tuple[dict[str, Any], ...] = (
    {"temperature": 1e30}, {"temperature": 2, "top_k": 10**9}, {"temperature": 1, "min_p": 1.0},
    {"temperature": 1, "seed": 2**63 - 1}, {"temperature": 1, "seed": -(2**63)}, {"top_p": 1e-30, "temperature": 1},
    {"presence_penalty": 2, "frequency_penalty": -2, "repetition_penalty": 1e-9, "temperature": 1},
    {"prompt": [2**31 - 1]}, {"prompt": [2**63]}, {"prompt": [49_152]}, {"prompt": [-1]},
    {"logit_bias": {"49152": 1}}, {"logit_bias": {"0": 1e30}}, {"stop_token_ids": [2**31]},
    {"allowed_token_ids": [49_152]}, {"allowed_token_ids": []}, {"bad_words": ["\x00"]}, {"min_tokens": 5},
    {"logprobs": 10**6}, {"prompt_logprobs": 10**6}, {"cache_salt": "x"}, {"priority": 5},
    {"repetition_detection": {"max_pattern_size": 10**6, "min_pattern_size": 0, "min_count": 0}},
    {"structured_outputs": {"regex": "a{1,5000}"}}, {"structured_outputs": {"regex": "(?=a)b"}},
    {"structured_outputs": {"regex": "("}}, {"structured_outputs": {"choice": []}},
    {"structured_outputs": {"choice": ["a", "b"]}}, {"structured_outputs": {"grammar": "root ::= nothing"}},
    {"structured_outputs": {"grammar": 'start: "a" | "b"'}}, {"structured_outputs": {"json": {"$ref": "#/nothing"}}},
    {"structured_outputs": {"json": {"type": "integer", "minimum": 5, "maximum": 3}}},
    {"structured_outputs": {"json": {"$defs": {"n": {"items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"}}},
    {"structured_outputs": {"structural_tag": "{}"}}, {"structured_outputs": {"regex": "a", "choice": ["a"]}},
)  # fmt: skip


@pytest.fixture
def http(served: World) -> Iterator[httpx.Client]:
    with served.http() as http:
        yield http
    until(served.is_idle, within=30, what="the engine has nothing left to do")


def post(http: httpx.Client, path: str, status: int = 200, **body: Any) -> Any:
    answer = http.post(path, json={"model": MODEL_NAME, "temperature": 0, **body})
    assert answer.status_code == status, answer.text
    return answer.json()


def complete(http: httpx.Client, status: int = 200, **body: Any) -> Any:
    return post(http, "/v1/completions", status, **{"prompt": PROMPT, "max_tokens": 16, **body})


def chat(http: httpx.Client, **body: Any) -> Any:
    return post(http, "/v1/chat/completions", **{"messages": QUESTION, "max_tokens": 32, **body})


def stream(http: httpx.Client, path: str = "/v1/completions", **body: Any) -> Iterator[Any]:
    """The events of a stream; leaving off early hangs up."""
    what = {"model": MODEL_NAME, "temperature": 0, "stream": True, "max_tokens": 16, **body}
    with http.stream("POST", path, json=what) as response:
        assert response.status_code == 200, response.read()
        yield from events(response.iter_lines())


def endless(http: httpx.Client) -> Iterator[Any]:
    return stream(http, prompt=PROMPT, max_tokens=CONTEXT - 64, ignore_eos=True)


@pytest.mark.row("completion")
def test_completion(http: httpx.Client) -> None:
    (choice,) = complete(http)["choices"]
    assert "Paris" in choice["text"] and choice["finish_reason"] == "length"


@pytest.mark.row("completion, streamed")
def test_streamed_completion(http: httpx.Client) -> None:
    chunks = [event["choices"][0] for event in stream(http, prompt=PROMPT)]
    assert "".join(chunk["text"] for chunk in chunks) == complete(http)["choices"][0]["text"]
    assert [chunk["finish_reason"] for chunk in chunks if chunk.get("finish_reason")] == ["length"]
    assert len(chunks) > 8, "one after the other"


@pytest.mark.row("chat")
def test_chat(http: httpx.Client) -> None:
    (choice,) = chat(http)["choices"]
    assert "Paris" in choice["message"]["content"] and choice["finish_reason"] == "stop"


@pytest.mark.row("chat, streamed")
def test_streamed_chat(http: httpx.Client) -> None:
    found = list(stream(http, "/v1/chat/completions", messages=QUESTION, max_tokens=32))
    said = "".join(event["choices"][0]["delta"].get("content") or "" for event in found if event["choices"])
    assert said == chat(http)["choices"][0]["message"]["content"]


@pytest.mark.row("usage")
def test_usage(http: httpx.Client) -> None:
    usage = complete(http, max_tokens=7)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (5, 7, 12)
    *_, last = stream(http, prompt=PROMPT, max_tokens=7, stream_options={"include_usage": True})
    assert last["usage"]["prompt_tokens"] == 5 and last["usage"]["completion_tokens"] == 7


@pytest.mark.row("log-probabilities")
def test_logprobs(http: httpx.Client) -> None:
    found = complete(http, max_tokens=4, logprobs=3)["choices"][0]["logprobs"]
    assert len(found["tokens"]) == len(found["token_logprobs"]) == len(found["top_logprobs"]) == 4
    for token, own, top in zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True):
        assert own <= 0 and top[token] == pytest.approx(own) == pytest.approx(max(top.values())), (
            "greedy takes the best"
        )
    content = chat(http, max_tokens=4, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert len(content) == 4 and all(len(position["top_logprobs"]) == 2 for position in content)


@pytest.mark.row("log-probabilities")
def test_logprobs_of_the_prompt(http: httpx.Client) -> None:
    found = complete(http, max_tokens=1, prompt_logprobs=1)["choices"][0]["prompt_logprobs"]
    assert len(found) == 5 and found[0] is None and all(found[1:])


@pytest.mark.row("stop strings")
def test_stop_string(http: httpx.Client) -> None:
    (whole,) = complete(http, max_tokens=24)["choices"]
    word = whole["text"].split()[3]
    (choice,) = complete(http, max_tokens=CONTEXT - 64, stop=[word])["choices"]
    assert choice["finish_reason"] == "stop" and choice["text"] == whole["text"].partition(word)[0]


@pytest.mark.row("seeds")
def test_seeds(http: httpx.Client) -> None:
    texts = [complete(http, temperature=1.5, seed=seed)["choices"][0]["text"] for seed in (1, 1, 2, 3)]
    assert texts[0] == texts[1] and len(set(texts)) == 3


@pytest.mark.row("structured output")
def test_structured_output(http: httpx.Client) -> None:
    # A model as small as this one may go on with blanks for ever where they are allowed.
    wanted = {"json": SCHEMA, "disable_any_whitespace": True}
    (choice,) = chat(http, structured_outputs=wanted, max_tokens=100)["choices"]
    found = json.loads(choice["message"]["content"])
    assert found.keys() == {"city", "capital"} and isinstance(found["capital"], bool)
    assert len(set(complete(http, structured_outputs={"regex": "[ab]{8}"})["choices"][0]["text"]) - set("ab")) == 0


@pytest.mark.row("structured output")
def test_a_response_format(http: httpx.Client) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
    (choice,) = chat(http, response_format=wanted, max_tokens=12)["choices"]
    assert choice["message"]["content"].lstrip().startswith("{")


@pytest.mark.row("structured output")
def test_a_grammar_that_is_none_costs_its_request(served: World, http: httpx.Client) -> None:
    # vLLM's engine would end with it: every front-end tries it first.
    body = {"model": MODEL_NAME, "prompt": PROMPT, "structured_outputs": {"regex": "(unclosed"}}
    # vLLM's front-end answers with 400 and then stumbles over its own error, which costs the connection.
    with served.http() as own:
        assert own.post("/v1/completions", json=body).status_code == 400
    assert complete(http)["choices"]


@pytest.mark.row("32 streams at once")
def test_many_at_once(served: World, http: httpx.Client) -> None:
    def one(number: int) -> tuple[str, int]:
        with served.http() as own:
            found = list(stream(own, prompt=f"{number} plus {number} is", max_tokens=24, ignore_eos=True))
        return "".join(e["choices"][0]["text"] for e in found), sum(
            bool(e["choices"][0].get("finish_reason")) for e in found
        )

    with ThreadPoolExecutor(32) as pool:
        together = list(pool.map(one, range(32)))
    assert all(text and ends == 1 for text, ends in together)


@pytest.mark.row("client disconnect")
def test_a_user_who_leaves_ends_the_request_in_the_engine(served: World, http: httpx.Client) -> None:
    going = endless(http)
    next(going)
    until(lambda: not served.is_idle(), within=15, what="the request is seen to run")
    going.close()
    until(served.is_idle, within=15, what="nothing runs any more")


@pytest.mark.row("pause, resume")
def test_pause_holds_new_requests_back(served: World, http: httpx.Client) -> None:
    assert http.post("/pause", params={"mode": "wait"}).status_code == 200
    assert http.get("/is_paused").json()["is_paused"] is True
    with ThreadPoolExecutor(1) as pool, served.http() as own:
        held = pool.submit(complete, own)
        assert http.post("/resume").status_code == 200
        assert "Paris" in held.result(60)["choices"][0]["text"]
    assert http.get("/is_paused").json()["is_paused"] is False


@pytest.mark.row("abort")
def test_a_pause_that_aborts(http: httpx.Client) -> None:
    going = endless(http)
    next(going)
    assert http.post("/pause", params={"mode": "abort"}).status_code == 200
    *_, last = going
    assert last["choices"][0]["finish_reason"] == "abort"
    assert http.post("/resume").status_code == 200


@pytest.mark.row("pause, resume")
def test_frozen_requests_go_on(http: httpx.Client) -> None:
    whole = complete(http, max_tokens=48, ignore_eos=True)["choices"][0]["text"]
    going = stream(http, prompt=PROMPT, max_tokens=48, ignore_eos=True)
    text = next(going)["choices"][0]["text"]
    assert http.post("/pause", params={"mode": "keep", "clear_cache": "false"}).status_code == 200
    assert http.post("/resume").status_code == 200
    assert text + "".join(event["choices"][0]["text"] for event in going) == whole


@pytest.mark.row("sleep, wake up")
def test_sleep_at_level_0(http: httpx.Client) -> None:
    answer = http.post("/sleep", params={"level": 0})
    assert answer.status_code == 200, answer.text
    assert http.get("/is_sleeping").json()["is_sleeping"] is True
    assert http.post("/wake_up").status_code == 200
    assert http.get("/is_sleeping").json()["is_sleeping"] is False
    assert "Paris" in complete(http)["choices"][0]["text"]


@pytest.mark.row("prefix cache reset")
def test_prefix_cache_reset(http: httpx.Client) -> None:
    text = complete(http, prompt=PROMPT * 20)["choices"][0]["text"]
    assert http.post("/reset_prefix_cache").status_code == 200
    assert complete(http, prompt=PROMPT * 20)["choices"][0]["text"] == text


@pytest.mark.row("over-long prompt")
def test_over_long_prompt(http: httpx.Client) -> None:
    found = complete(http, 400, prompt="one " * (CONTEXT + 10))
    assert str(CONTEXT) in json.dumps(found)


@pytest.mark.row("more sampling")
def test_sampling_options(kind: Kind, http: httpx.Client) -> None:
    plain = complete(http)["choices"][0]["text"]
    assert complete(http, logit_bias={"7042": -100})["choices"][0]["text"] != plain or "Paris" not in plain
    assert complete(http, temperature=1.0, top_k=1)["choices"][0]["text"] == plain
    found = complete(http, temperature=1.5, n=3, seed=7)["choices"]
    assert len({choice["text"] for choice in found}) > 1 and [choice["index"] for choice in found] == [0, 1, 2]


@pytest.mark.row("odd requests")
def test_no_odd_request_ends_the_engine(kind: Kind, http: httpx.Client) -> None:
    """Each is answered or refused by our door: what vLLM's engine is given and cannot do ends it."""
    if not kind.front_is_ours:
        pytest.skip("vLLM's own door decides")
    for odd in ODD:
        answer = http.post("/v1/completions", json={"model": MODEL_NAME, "prompt": PROMPT, "max_tokens": 4, **odd})
        assert answer.status_code in (200, 400), (odd, answer.text)
        assert "Paris" in complete(http)["choices"][0]["text"], odd


@pytest.mark.row("engine shutdown")
def test_an_engine_that_is_asked_to_stop(served: World) -> None:
    """The last one: nothing serves any more."""
    served.ended = True
    with served.http() as http:
        going = endless(http)
        next(going)
        os.kill(served.engine.process.pid if served.engine else served.engine_pid(), signal.SIGTERM)
        *_, last = going
    assert last["choices"][0]["finish_reason"] == "abort" if "choices" in last else last["error"]
    if served.engine is not None:
        assert served.engine.wait(60) in (0, -signal.SIGTERM, 128 + signal.SIGTERM)
