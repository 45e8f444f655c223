import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from muro.engine.interface import EngineCore
from muro.engine.loader import load_engine
from muro.errors import ConfigError, MissingExtraError
from muro.models.checkpoint import open_checkpoint
from muro.models.pooling import write_pooling
from muro.wire.request import EngineCoreRequest, PoolingParams, SamplingParams
from tests.support.openvino_models import FAMILIES, family, golden
from tests.support.reference_decoder import hidden_states


def quiet(phase: str, percent: float) -> None:
    """Nobody watches."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MURO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(shutil.copytree(FAMILIES / "llama-plain", tmp_path / "model"))


def test_it_goes_on_as_the_reference_does(model: str) -> None:
    """Greedy choice at every position of the reference, fed as prompts of growing length, all at once."""
    case = golden("llama-plain")[2]
    sure = [position for position, margin in enumerate(case["margin"]) if margin > 0.5]
    assert len(sure) > 5
    options = {"weights": "f16", "cache_memory_mb": "2", "threads": "1", "max_num_batched_tokens": "70"}
    engine = load_engine("openvino", model=model, options=options, report=quiet)
    assert greedy(engine, case["ids"], sure) == {position: case["argmax"][position] for position in sure}
    engine.shutdown()


@pytest.mark.parametrize(
    "more",
    [{"enable_prefix_caching": False}, {"async_scheduling": True}, {"max_num_seqs": 2, "max_num_batched_tokens": 3}],
)
def test_windows_hold_however_steps_are_made(tmp_path: Path, more: dict[str, object]) -> None:
    """A prompt far longer than the window, twice, so that the second finds its beginning in the cache."""
    directory = str(shutil.copytree(FAMILIES / "mistral-sliding", tmp_path / "windowed"))
    case = golden("mistral-sliding")[3]
    sure = [position for position, margin in enumerate(case["margin"]) if margin > 0.1 and position > 32]
    options = {"weights": "f32", "cache_memory_mb": 1, "threads": 1, **more}
    engine = load_engine("openvino", model=directory, options=options, report=quiet)
    for _ in range(2):
        assert greedy(engine, case["ids"], sure) == {position: case["argmax"][position] for position in sure}
    engine.shutdown()


def greedy(engine: EngineCore, ids: list[int], positions: list[int]) -> dict[int, int]:
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    for position in positions:
        request = EngineCoreRequest(str(position), ids[: position + 1], sampling_params=params)
        engine.add_request(str(position), engine.preprocess(request))
    tokens = {}
    while engine.has_work():
        for output in engine.step(lambda: ()).outputs:
            tokens[int(output.request_id)] = output.new_token_ids[0]
    return tokens


@pytest.mark.parametrize("name", ["mistral-sliding", "qwen3-qknorm"])
@pytest.mark.parametrize("kind", ["mean", "last"])
def test_embeddings(tmp_path: Path, name: str, kind: str) -> None:
    """In chunks; the model directory says how."""
    directory = shutil.copytree(FAMILIES / name, tmp_path / "model")
    write_pooling(directory, kind)
    options = {"weights": "f32", "cache_memory_mb": 1, "threads": 1, "max_num_seqs": 4, "max_num_batched_tokens": 16}
    engine = load_engine("openvino", model=str(directory), options=options, report=quiet)
    assert engine.info().supported_tasks == ("generate", "embed")
    model = family(name)
    checkpoint = open_checkpoint(model)
    weights = {tensor: checkpoint.read(tensor) for tensor in checkpoint.unread()}
    for number, case in enumerate(golden(name)):
        request = EngineCoreRequest(str(number), case["ids"], pooling_params=PoolingParams(task="embed"))
        engine.add_request(str(number), engine.preprocess(request))
    while engine.has_work():
        for output in engine.step(lambda: ()).outputs:
            states = hidden_states(model.config, weights, golden(name)[int(output.request_id)]["ids"])
            expected = states.mean(axis=0) if kind == "mean" else states[-1]
            assert output.pooling_output is not None
            found = output.pooling_output.numpy()
            np.testing.assert_allclose(found, expected / np.linalg.norm(expected), atol=2e-3)
    engine.shutdown()


def test_it_says_how_far_loading_is(model: str, home: Path) -> None:
    said: list[tuple[str, float]] = []
    options = {"cache_memory_mb": 1, "max_model_len": 100, "max_num_seqs": 3}
    engine = load_engine("openvino", model=model, options=options, report=lambda *what: said.append(what))
    assert [percent for _, percent in said] == sorted(percent for _, percent in said)
    assert [phase for phase, _ in said[:3]] == ["opening weights", "converting weights", "converting weights"]
    assert said[-1][1] < 100
    assert (engine.info().max_model_len, engine.info().max_num_seqs, engine.info().block_size) == (100, 3, 32)
    assert list((home / "openvino").glob("model-*-int8"))
    engine.shutdown()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"weights": "int3"}, "weights"),
        ({"chache": "u8"}, "no option chache"),
        ({"max_model_len": 1000}, "made for 512"),
        ({"max_num_seqs": 300}, "max_num_batched_tokens"),
    ],
)
def test_options_that_are_wrong(model: str, options: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_engine("openvino", model=model, options=options, report=quiet)


def test_no_model() -> None:
    with pytest.raises(ConfigError, match="muro pull demo"):
        load_engine("openvino", model=None, options={}, report=quiet)
    with pytest.raises(ConfigError, match="nowhere is no directory"):
        load_engine("openvino", model="nowhere", options={}, report=quiet)


def test_openvino_is_not_installed(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "openvino"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("compiled", "executor", "graph"):
        monkeypatch.delitem(sys.modules, f"muro.engines.openvino.{name}", raising=False)

    class NotThere:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name.partition(".")[0] == "openvino":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [NotThere(), *sys.meta_path])
    with pytest.raises(MissingExtraError, match=r"muro\[openvino\]"):
        load_engine("openvino", model=model, options={}, report=quiet)
