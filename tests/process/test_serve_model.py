"""The demo model behind HTTP, asked by the official client."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from muro.config import home
from muro.models.pull import pull
from tests.support.counts import count
from tests.support.server import Server

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(str(pull("demo", home()))) as running:
        yield running.ready(within=300)


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_the_capital_of_france(client: openai.OpenAI) -> None:
    model = client.models.list().data[0].id
    whole = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=30, temperature=0)
    answer = whole.choices[0].message.content
    assert answer is not None
    assert "Paris" in answer
    assert whole.choices[0].finish_reason == "stop"
    chunks = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=30, temperature=0, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answer


def test_sixteen_streams_at_once(client: openai.OpenAI) -> None:
    model = client.models.list().data[0].id

    def ask(seed: int) -> str:
        chunks = client.chat.completions.create(
            model=model, messages=QUESTION, max_tokens=24, temperature=0.7, seed=seed % 4, stream=True
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(16)))
    assert all(answers)
    assert answers[:4] == answers[4:8] == answers[8:12] == answers[12:]  # a seed decides, whatever else runs


def test_memory(server: Server) -> None:
    assert psutil.Process(server.process.pid).memory_info().rss < 200e6
    assert psutil.Process(server.engine_pid).memory_info().rss < 900e6


def test_what_is_written_scores_as_it_was_written(server: Server) -> None:
    """Log-probabilities of an output, and of the same tokens as a prompt that is echoed."""
    prompt = "<|im_start|>user\nName a café in Zürich.<|im_end|>\n<|im_start|>assistant\n"
    with server.http() as http:

        def complete(**body: Any) -> Any:
            answer = http.post("/v1/completions", json={"temperature": 0, "logprobs": 1, **body}, timeout=120)
            return answer.json()["choices"][0]

        written = complete(prompt=prompt, max_tokens=20)
        said = written["logprobs"]
        assert "".join(said["tokens"]) == written["text"]
        assert all(
            written["text"][at:].startswith(t) for at, t in zip(said["text_offset"], said["tokens"], strict=True)
        )
        tokens = http.post("/tokenize", json={"prompt": prompt}).json()["tokens"]
        ids = complete(prompt=prompt, max_tokens=20, return_tokens_as_token_ids=True)["logprobs"]["tokens"]
        more = [int(token.removeprefix("token_id:")) for token in ids]
        scored = complete(prompt=[*tokens, *more], max_tokens=0, echo=True)
    assert scored["text"] == prompt + written["text"]
    assert scored["logprobs"]["tokens"][len(tokens) :] == said["tokens"]
    again = scored["logprobs"]["token_logprobs"][len(tokens) :]
    assert again == pytest.approx(said["token_logprobs"], abs=0.1)
    assert scored["logprobs"]["text_offset"][len(tokens)] == len(prompt)


TEMPLATE = """\
{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if tools %}Tools: {{ tools | tojson }}
{% endif %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""The model's own, but for a system message that it adds, and the tools, which its own does not know."""


@pytest.mark.slow
def test_calls_that_must_be_made_fit_their_tool(tmp_path: Path) -> None:
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"$ref": "#/$defs/Unit"}},
        "required": ["city", "unit"],
        "additionalProperties": False,
        "$defs": {"Unit": {"enum": ["C", "F"]}},
    }
    question = [{"role": "user", "content": "How is the weather in Paris?"}]
    tools = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
    asked: Any = {"model": "", "messages": question, "tools": tools, "temperature": 0, "max_tokens": 100}
    asked["parallel_tool_calls"] = False
    template = tmp_path / "chat.jinja"
    template.write_text(TEMPLATE)
    with Server(str(pull("demo", home())), "--chat-template", str(template)) as server:
        base_url = f"{server.ready(within=300).url}/v1"
        with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
            choices = ("required", {"type": "function", "function": {"name": "weather"}})
            for choice in choices[: count(1, 2)]:
                (whole,) = client.chat.completions.create(**asked, tool_choice=choice).choices
                stream = client.chat.completions.create(**asked, tool_choice=choice, stream=True)
                chunks = [chunk.choices[0] for chunk in stream]
                calls = [call.function for chunk in chunks for call in chunk.delta.tool_calls or [] if call.function]
                assert [call.name for call in calls if call.name] == ["weather"]
                text = "".join(call.arguments or "" for call in calls)
                assert [call.function.arguments for call in whole.message.tool_calls or []] == [text]
                assert whole.finish_reason == chunks[-1].finish_reason == "tool_calls"
                arguments = json.loads(text)
                assert set(arguments) == {"city", "unit"} and arguments["unit"] in ("C", "F")
