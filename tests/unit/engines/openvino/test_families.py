"""Every family of decoders against independent float implementations: golden files, and a slow one in numpy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muro.core.plan import SequencePlan
from muro.engines.openvino.executor import OpenVINOExecutor, create_executor
from muro.engines.openvino.options import OpenVINOOptions
from muro.errors import ConfigError
from muro.models.checkpoint import open_checkpoint
from muro.models.config import ModelDir, open_model
from muro.models.prepare import from_gguf
from tests.support.checkpoints import write_checkpoint
from tests.support.counts import half
from tests.support.gguf_files import write_family_gguf
from tests.support.openvino_models import FAMILIES, NAMES, compiled_from, executor, family, golden, log_softmax, step
from tests.support.reference_decoder import logits

TABLE = [5, 3, 1, 7]  # blocks in no order
MARGIN = TOLERANCE = 0.02


def rows(model: OpenVINOExecutor, ids: list[int], chunk: int) -> np.ndarray:
    """Log-probabilities at every position, computed `chunk` tokens at a time."""
    parts = [
        step(model, SequencePlan("a", ids[start : start + chunk], start, TABLE, len(ids[start : start + chunk]))).copy()
        for start in range(0, len(ids), chunk)
    ]
    return log_softmax(np.concatenate(parts))


@pytest.mark.parametrize("chunk", [100, 33, 7, 1])
@pytest.mark.parametrize("weights", ["f32", "f16"])
@pytest.mark.parametrize("name", NAMES)
def test_golden_logits_whole_and_chunked(name: str, weights: str, chunk: int) -> None:
    """Argmax wherever the margin exceeds 0.02, log-probabilities within 0.02, at every recorded position."""
    model = executor(name, weights)
    compared = 0
    for case in golden(name):
        found = rows(model, case["ids"], chunk)
        for position, (argmax, margin) in enumerate(zip(case["argmax"], case["margin"], strict=True)):
            if margin > MARGIN:
                assert found[position].argmax() == argmax, (len(case["ids"]), position)
        for position, expected in case["rows"].items():
            assert np.abs(found[int(position)] - expected).max() < TOLERANCE, (len(case["ids"]), position)
            compared += 1
    assert compared == 10


GGUF = {
    "llama-plain": "llama",
    "llama3-rope-scaling": "llama",
    "mistral-sliding": "llama",
    "qwen2-bias": "qwen2",
    "qwen3-qknorm": "qwen3",
}


@pytest.mark.parametrize("name", NAMES)
def test_golden_logits_from_gguf(tmp_path: Path, name: str) -> None:
    """The same weights in a GGUF file, from which everything else is prepared."""
    window = 32 if name == "mistral-sliding" else None
    from_gguf(write_family_gguf(tmp_path / "model.gguf", FAMILIES / name, GGUF[name], window=window), tmp_path)
    model = open_model(tmp_path)
    assert model.weights[0].suffix == ".gguf"
    for chunk in half((100, 7)):
        for case in golden(name):
            found = rows(loaded(model), case["ids"], chunk)
            for position, expected in case["rows"].items():
                assert np.abs(found[int(position)] - expected).max() < TOLERANCE, (len(case["ids"]), position)


def test_sequences_with_windows_do_not_disturb_each_other() -> None:
    """Decoding far behind its window, a chunk that reaches across it, and a new prompt, in one step."""
    cases = golden("mistral-sliding")
    long, other = cases[3], cases[2]
    model = executor("mistral-sliding", "f32")
    step(
        model,
        SequencePlan("a", long["ids"][:69], 0, [8, 6, 9], 0),
        SequencePlan("b", long["ids"][:20], 0, [0, 1, 2], 0),
    )
    together = step(
        model,
        SequencePlan("a", long["ids"][69:], 69, [8, 6, 9], 1),
        SequencePlan("b", long["ids"][20:36], 20, [0, 1, 2], 1),
        SequencePlan("c", other["ids"], 0, [3, 4], 1),
    )
    expected = [long["rows"]["69"], long["rows"]["35"], other["rows"]["32"]]
    assert np.abs(log_softmax(together) - expected).max() < TOLERANCE


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama with all biases": ("Llama", {"biases": "q k v o gate up down", "attention_bias": True, "mlp_bias": True}),
    "llama with heads of their own": ("Llama", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "mistral without a window": ("Mistral", {"sliding_window": None}),
    "mistral with a window that ends within a block": ("Mistral", {"sliding_window": 37}),
    "qwen2 with a window in its upper layers": (
        "Qwen2",
        {"biases": "q k v", "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "qwen3 with a window in its lower layer": (
        "Qwen3",
        {
            "norms": "q k",
            "use_sliding_window": True,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "qwen3 with biases": ("Qwen3", {"norms": "q k", "biases": "q k v o", "attention_bias": True}),
    "stored without a prefix": ("Qwen3", {"norms": "q k", "prefix": "", "tie_word_embeddings": True}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_against_numpy(tmp_path: Path, variant: str) -> None:
    architecture, changes = VARIANTS[variant]
    weights = write_checkpoint(tmp_path, f"{architecture}ForCausalLM", **changes)
    model = open_model(tmp_path)
    ids = np.random.default_rng(1).integers(0, 96, 70).tolist()
    expected = log_softmax(logits(model.config, weights, ids))
    for chunk in half((70, 32, 1)):
        found = rows(loaded(model), ids, chunk)
        np.testing.assert_allclose(found, expected, atol=TOLERANCE, err_msg=str(chunk))


def loaded(model: ModelDir) -> OpenVINOExecutor:
    return create_executor(compiled_from(model), model.config, OpenVINOOptions(cache_memory_mb=1))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "llama3-rope-scaling"])
def test_the_numpy_decoder_is_right_itself(name: str) -> None:
    model = family(name)
    checkpoint = open_checkpoint(model)
    weights = {tensor: checkpoint.read(tensor) for tensor in checkpoint.unread()}
    for case in golden(name):
        found = log_softmax(logits(model.config, weights, case["ids"]))
        for position, expected in case["rows"].items():
            np.testing.assert_allclose(found[int(position)], expected, atol=1e-3)


@pytest.mark.parametrize(
    ("architecture", "changes", "says"),
    [
        ("Qwen2ForCausalLM", {}, r"no tensor model\.layers\.0\.self_attn\.q_proj\.bias"),
        ("Qwen3ForCausalLM", {}, r"no tensor model\.layers\.0\.self_attn\.q_norm\.weight"),
        ("MistralForCausalLM", {"biases": "q k v"}, r"no place for: .*k_proj\.bias.* and 1 more"),
        ("LlamaForCausalLM", {"norms": "q k"}, r"no place for: model\.layers\.0\.self_attn\.k_norm\.weight"),
    ],
)
def test_weights_that_are_not_the_familys(
    tmp_path: Path, architecture: str, changes: dict[str, Any], says: str
) -> None:
    write_checkpoint(tmp_path, architecture, **changes)
    with pytest.raises(ConfigError, match=says):
        compiled_from(open_model(tmp_path))


@pytest.mark.parametrize(("key", "value"), [("head_dim", 8), ("intermediate_size", 40), ("num_key_value_heads", 4)])
def test_weights_of_another_shape_than_the_configuration_says(tmp_path: Path, key: str, value: int) -> None:
    write_checkpoint(tmp_path / "right", "LlamaForCausalLM")
    write_checkpoint(tmp_path / "wrong", "LlamaForCausalLM", **{key: value})
    (tmp_path / "wrong" / "config.json").replace(tmp_path / "right" / "config.json")
    with pytest.raises(ConfigError, match="should have the shape"):
        compiled_from(open_model(tmp_path / "right"))
