"""The demo model behind HTTP, asked by the official client."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import psutil
import pytest

from muro.config import home
from muro.models.pull import pull
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
