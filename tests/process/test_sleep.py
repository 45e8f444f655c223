"""The demo model asleep: what its process really gives back, measured, and that it is the same model afterwards."""

import pstats
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import muro
from muro.config import home
from muro.errors import CallFailedError
from muro.models.pull import pull
from muro.wire import ops
from tests.support.asking import ask

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(600)]

MB = 1e6
OPTIONS = {"cache_memory_mb": 256, "max_num_seqs": 8, "max_num_batched_tokens": 256}
PROMPT = [(7 * i) % 4000 + 100 for i in range(500)]


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    demo = pull("demo", home())
    with muro.connect(engine="openvino", model=str(demo), options=OPTIONS) as made:
        yield made


def resident(client: Any) -> float:
    """Of the engine's process, as the system counts it."""
    pid = client.engines()[0].pid
    assert pid is not None
    size: int = psutil.Process(pid).memory_info().rss
    return size / MB


def tokens(client: Any, name: str) -> list[int]:
    stream = client.generate(ask(name, 8, PROMPT[:50], temperature=0.0))
    return [token for item in stream for token in item.new_token_ids]


def fill_the_cache(client: Any) -> None:
    """With 2,000 tokens of different prompts, 46 MB of keys and values; more resident memory where pages are large."""
    for number in range(4):
        list(client.generate(ask(f"fill{number}", 1, [number + 200, *PROMPT], temperature=0.0)))


def test_what_each_level_gives_back(client: Any, record_property: Any) -> None:
    expected = tokens(client, "before")
    fill_the_cache(client)
    full = resident(client)
    client.call(ops.SLEEP, 1, "wait")
    level1 = resident(client)
    assert client.call(ops.WAKE_UP) is True
    assert tokens(client, "between") == expected
    awake = resident(client)
    client.call(ops.SLEEP, 2, "wait")
    level2 = resident(client)
    (told,) = client.call(ops.COLLECTIVE_RPC, "memory")
    assert abs(told["resident"] / MB - level2) < 30 and not told["weights_loaded"]
    assert client.call(ops.WAKE_UP, ["weights"]) is False
    assert client.call(ops.IS_SLEEPING) is True
    assert client.call(ops.WAKE_UP, ["kv_cache"]) is True
    assert tokens(client, "after") == expected
    back = resident(client)
    figures = {"full": full, "level1": level1, "awake": awake, "level2": level2, "back": back}
    for name, value in figures.items():
        record_property(name, round(value))
    print("resident MB:", {name: round(value) for name, value in figures.items()})
    assert full - level1 > 25, figures
    assert level1 - level2 > 100, figures
    assert level2 < 250, figures
    assert back < full + 60, figures


def test_who_comes_while_it_sleeps_is_served_when_it_wakes(client: Any) -> None:
    client.call(ops.SLEEP, 2, "abort")
    answers: list[list[int]] = []
    waiting = threading.Thread(target=lambda: answers.append(tokens(client, "early")))
    waiting.start()
    waiting.join(1.0)
    assert waiting.is_alive() and not answers
    client.call(ops.WAKE_UP, None)
    waiting.join(60)
    assert answers == [tokens(client, "late")]


def test_frozen_streams_go_on(client: Any) -> None:
    expected = tokens(client, "whole")
    stream = client.generate(ask("frozen", 8, PROMPT, temperature=0.0))
    got = list(next(stream).new_token_ids)
    client.call(ops.SLEEP, 2, "keep")
    client.call(ops.WAKE_UP)
    got += [token for item in stream for token in item.new_token_ids]
    assert got == expected


def test_other_operations(client: Any) -> None:
    assert client.call(ops.GET_SUPPORTED_TASKS) == ["generate"]
    (group,) = client.call(ops.GET_KV_CACHE_GROUP_METADATA)
    assert group.kind == "full_attention"
    client.call(ops.EXECUTE_DUMMY_BATCH)
    (runtime,) = client.call(ops.COLLECTIVE_RPC, "runtime", None, [], {})
    assert runtime["INFERENCE_NUM_THREADS"] and runtime["openvino"]
    with pytest.raises(CallFailedError, match="no worker method 'shutdown'; this engine offers: memory, runtime"):
        client.call(ops.COLLECTIVE_RPC, "shutdown")
    client.call(ops.SET_WEIGHT_VERSION, "mine")
    assert client.call(ops.GET_WEIGHT_VERSION) == "mine"
    assert client.call(ops.LIST_LORAS) == [] and client.call(ops.REMOVE_LORA, 1) is False
    with pytest.raises(CallFailedError, match="no LoRA adapters"):
        client.call(ops.PIN_LORA, 1)
    with pytest.raises(CallFailedError, match="copy the model directory"):
        client.call(ops.SAVE_SHARDED_STATE, "/tmp/nowhere")


def test_a_profile_of_the_loop(client: Any) -> None:
    client.call(ops.PROFILE, True, "sleep-test")
    tokens(client, "profiled")
    client.call(ops.PROFILE, False)
    pid = client.engines()[0].pid
    (path,) = Path(home() / "profiles").glob(f"sleep-test-{pid}-*.prof")
    shown = pstats.Stats(str(path)).get_stats_profile().func_profiles
    path.unlink()
    assert "infer" in "".join(shown) and "schedule" in shown
