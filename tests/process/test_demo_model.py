"""The demo model against an independent float32 implementation: text to tokens, and tokens to log-probabilities.

The model is fetched once and kept where `muro pull demo` keeps it. Its reference is fed at each step, so that one
near-tie decided differently does not put all that follows beyond comparison.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from muro.config import home
from muro.core.executor import Executor
from muro.engines.openvino.compiled import compile_model
from muro.engines.openvino.executor import create_executor
from muro.engines.openvino.options import OpenVINOOptions
from muro.models.config import open_model
from muro.models.pull import pull, pulled
from muro.text.chat import load_chat_template
from muro.text.tokenizer import load_tokenizer
from tests.support.openvino_models import log_softmax, part, step

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def demo() -> Path:
    return pull("demo", home())


def load(demo: Path, weights: str, cache: str) -> Executor:
    model = open_model(demo)
    options = OpenVINOOptions(weights=weights, cache=cache, cache_memory_mb=32)
    return create_executor(compile_model(model, options, home(), lambda *_: None), model.config, options)


def test_it_is_found_by_its_name(demo: Path) -> None:
    assert pulled("demo", home()) == demo


def test_tokens_and_chats(demo: Path) -> None:
    golden = json.loads((GOLDEN / "tokenizer.json").read_text())
    tokenizer, template = load_tokenizer(demo), load_chat_template(demo)
    assert template is not None
    for case in golden["encode"]:
        assert tokenizer.encode(case["text"]) == case["ids"], case["text"]
    for case in golden["chat"]:
        text = template.render(case["messages"], add_generation_prompt=True)
        assert text == case["text"]
        assert tokenizer.encode(text, add_special=False) == case["ids"]
    assert tokenizer.eos_token_ids == (golden["meta"]["eos_token_id"],)
    assert tokenizer.bos_token_id == golden["meta"]["bos_token_id"]


def compare(model: Executor) -> tuple[list[float], float]:
    """Margins of the steps where another token is best, and the largest difference of a log-probability."""
    missed, worst = [], 0.0
    table = list(range(8))
    for case in json.loads((GOLDEN / "greedy.json").read_text())["cases"]:
        ids, end = case["prompt_ids"] + case["output_ids"], len(case["prompt_ids"])
        start = 0
        for reference in case["steps"]:
            logits = log_softmax(step(model, part(ids, start, end, table)))[0]
            start, end = end, end + 1
            if logits.argmax() != reference["token"]:
                missed.append(reference["margin"])
            worst = max(worst, *(abs(logits[token] - value) for token, value in reference["top5"]))
    return missed, worst


@pytest.mark.slow
def test_f16_is_the_reference(demo: Path) -> None:
    missed, worst = compare(load(demo, "f16", "f16"))
    assert all(margin <= 0.02 for margin in missed)
    assert worst <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["f16", "u8"])
def test_int8_differs_at_near_ties_only(demo: Path, cache: str) -> None:
    missed, worst = compare(load(demo, "int8", cache))
    assert all(margin < 0.5 for margin in missed)
    assert len(missed) < 23  # of 230
    assert np.isfinite(worst)
