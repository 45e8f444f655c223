import shutil
import sys
from pathlib import Path

import pytest

from muro.engine.loader import load_engine
from muro.errors import ConfigError, MissingExtraError
from muro.wire.request import EngineCoreRequest, SamplingParams
from tests.support.openvino_models import FAMILIES, golden


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
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    for position in sure:
        request = EngineCoreRequest(
            request_id=str(position), prompt_token_ids=case["ids"][: position + 1], sampling_params=params
        )
        engine.add_request(str(position), engine.preprocess(request))
    tokens = {}
    while engine.has_work():
        for output in engine.step(lambda: ()).outputs:
            tokens[int(output.request_id)] = output.new_token_ids[0]
    assert tokens == {position: case["argmax"][position] for position in sure}
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
