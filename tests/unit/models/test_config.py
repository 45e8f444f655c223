import json
import os
from pathlib import Path
from typing import Any

import pytest

from muro.errors import ConfigError
from muro.models.config import RopeScaling, open_model, read_config

FAMILIES = Path(__file__).parents[2] / "data" / "families"
PLAIN: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}


def write(directory: Path, **changes: Any) -> Path:
    (directory / "config.json").write_text(json.dumps(PLAIN | changes))
    return directory


def test_what_is_left_out_follows_from_the_rest(tmp_path: Path) -> None:
    config = read_config(write(tmp_path))
    assert (config.num_key_value_heads, config.head_dim, config.rope_theta) == (4, 16, 10000.0)
    assert config.eos_token_ids == () and not config.tie_word_embeddings


@pytest.mark.parametrize(
    ("family", "architecture", "window"),
    [
        ("llama-plain", "llama", None),
        ("llama3-rope-scaling", "llama", None),
        ("mistral-sliding", "mistral", 32),
        ("qwen2-bias", "qwen2", None),
        ("qwen3-qknorm", "qwen3", None),
    ],
)
def test_families(family: str, architecture: str, window: int | None) -> None:
    model = open_model(FAMILIES / family)
    assert (model.config.architecture, model.config.sliding_window) == (architecture, window)
    assert model.config.eos_token_ids == (2,)
    assert [file.name for file in model.weights] == ["model.safetensors"]


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_both_spellings_of_rotary_scaling(tmp_path: Path, key: str) -> None:
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 64}
    config = read_config(write(tmp_path, **{key: rope}, rope_theta=5e5))
    assert config.rope_theta == 5e5
    assert config.rope_scaling == RopeScaling(rope_type="llama3", factor=8.0, original_max_position_embeddings=64)


def test_all_end_tokens_those_for_generation_first(tmp_path: Path) -> None:
    write(tmp_path, eos_token_id=[2, 5])
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 7, "bos_token_id": 1}')
    config = read_config(tmp_path)
    assert config.eos_token_ids == (7, 2, 5)
    assert config.bos_token_id == 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM is not supported"),
        ({"architectures": []}, "none named"),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, "'yarn' is not supported"),
        ({"rope_scaling": {"type": "linear", "factor": "big"}}, "factor"),
        ({"hidden_act": "gelu"}, "'gelu' is not supported"),
        ({"quantization_config": {"quant_method": "awq"}}, "'awq' are not supported"),
        ({"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]}, "several kinds"),
        ({"num_key_value_heads": 3}, "multiple"),
        ({"num_hidden_layers": 0}, "positive"),
        ({"vocab_size": "many"}, "vocab_size"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_config(write(tmp_path, **changes))


def test_a_window_over_all_layers_and_none(tmp_path: Path) -> None:
    write(tmp_path, sliding_window=8, layer_types=["full_attention"] * 2)
    assert read_config(tmp_path).sliding_window is None
    write(tmp_path, sliding_window=8, use_sliding_window=False)
    assert read_config(tmp_path).sliding_window is None
    write(tmp_path, sliding_window=8, layer_types=["sliding_attention"] * 2)
    assert read_config(tmp_path).sliding_window == 8


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="muro pull demo"):
        open_model(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"config\.json"):
        open_model(tmp_path)
    write(tmp_path)
    with pytest.raises(ConfigError, match="no weights"):
        open_model(tmp_path)


def test_the_fingerprint_follows_configuration_and_weights(tmp_path: Path) -> None:
    write(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"1234")
    first = open_model(tmp_path).fingerprint()
    assert open_model(tmp_path).fingerprint() == first
    os.utime(weights, ns=(1, 1))
    second = open_model(tmp_path).fingerprint()
    write(tmp_path, rope_theta=2.0)
    assert len({first, second, open_model(tmp_path).fingerprint()}) == 3
