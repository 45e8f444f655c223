import json
import os
from pathlib import Path
from typing import Any

import pytest

from muro.errors import ConfigError
from muro.models.config import DecoderConfig, RopeScaling, open_model, read_config

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


def decoder(directory: Path) -> DecoderConfig:
    config = read_config(directory).decoder
    assert config is not None
    return config


def test_what_is_left_out_follows_from_the_rest(tmp_path: Path) -> None:
    config = decoder(write(tmp_path))
    assert (config.num_key_value_heads, config.head_dim, config.rope_theta) == (4, 16, 10000.0)
    assert read_config(tmp_path).eos_token_ids == () and not config.tie_word_embeddings


def test_what_is_left_out_is_the_familys(tmp_path: Path) -> None:
    wide = {"num_attention_heads": 32, "hidden_size": 256}
    assert read_config(write(tmp_path, architectures=["MistralForCausalLM"], **wide)).windows == (4096, 4096)
    assert decoder(write(tmp_path, architectures=["Qwen3ForCausalLM"], **wide)).head_dim == 128
    assert read_config(tmp_path).windows == (None, None)


@pytest.mark.parametrize(
    ("family", "name", "window"),
    [
        ("llama-plain", "llama", None),
        ("llama3-rope-scaling", "llama", None),
        ("mistral-sliding", "mistral", 32),
        ("qwen2-bias", "qwen2", None),
        ("qwen3-qknorm", "qwen3", None),
    ],
)
def test_families(family: str, name: str, window: int | None) -> None:
    model = open_model(FAMILIES / family)
    config = model.config.decoder
    assert config is not None
    assert (config.family, model.config.windows) == (name, (window, window))
    assert (config.qkv_bias, config.output_bias, config.qk_norm) == (name == "qwen2", False, name == "qwen3")
    assert model.config.eos_token_ids == (2,)
    assert [file.name for file in model.weights] == ["model.safetensors"]


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_both_spellings_of_rotary_scaling(tmp_path: Path, key: str) -> None:
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 64}
    config = decoder(write(tmp_path, **{key: rope}, rope_theta=5e5))
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
        ({"layer_types": ["full_attention", "chunked_attention"]}, "found 2 of chunked_attention, full_attention"),
        ({"layer_types": ["full_attention"]}, "must name 2 layers"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": -1}, "sliding_window is -1"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, r"each kind of layer \(full_attention\)"),
        ({"max_position_embeddings": 0}, "positive"),
        ({"num_key_value_heads": 3}, "multiple"),
        ({"num_hidden_layers": 0}, "positive"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers"),
        ({"head_dim": 10**12}, "head_dim"),
        ({"head_dim": -16}, "head_dim"),
        ({"head_dim": 15}, "15 elements"),
        ({"num_attention_heads": 128}, "0 elements"),
        ({"num_key_value_heads": -2}, "positive"),
        ({"rope_theta": -1.0}, "rope_theta is -1.0"),
        ({"rope_parameters": {"rope_theta": "x"}}, "rope_theta is x"),
        ({"rope_parameters": {"rope_theta": [1]}}, r"rope_theta is \[1\]"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factors must be positive"),
        ({"rope_scaling": {"type": "factors", "factors": [1.0] * 5}}, "5 factors for 8 rotary pairs"),
        ({"rope_scaling": {"type": "factors", "factors": [1.0] * 7 + [0.0]}}, "factors must be positive"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_config(write(tmp_path, **changes))


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_what_is_nested_without_end_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path)
    (tmp_path / name).write_text('{"a":' * 100_000)
    with pytest.raises(ConfigError, match=f"{name} cannot be read"):
        read_config(tmp_path)


FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("architecture", "changes", "windows"),
    [
        ("Llama", {"sliding_window": 8}, (None, None)),
        ("Mistral", {"sliding_window": 8}, (8, 8)),
        ("Mistral", {"sliding_window": None}, (None, None)),
        ("Mistral", {"sliding_window": 8, "layer_types": [FULL, SLIDING]}, (None, 8)),
        ("Qwen2", {"sliding_window": 8}, (None, None)),
        ("Qwen2", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}, (None, 8)),
        ("Qwen2", {"sliding_window": 8, "use_sliding_window": True}, (None, None)),  # max_window_layers is 28
        ("Qwen3", {"sliding_window": 8, "use_sliding_window": True, "layer_types": [SLIDING, FULL]}, (8, None)),
    ],
)
def test_windows_of_layers(
    tmp_path: Path, architecture: str, changes: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    write(tmp_path, architectures=[f"{architecture}ForCausalLM"], **changes)
    assert read_config(tmp_path).windows == windows


def test_a_graph_that_lies_ready_may_have_any_architecture(tmp_path: Path) -> None:
    write(tmp_path, architectures=["MambaForCausalLM"], rope_scaling={"type": "yarn"}, hidden_size=-1)
    (tmp_path / "openvino_model.xml").touch()
    config = open_model(tmp_path).config
    assert (config.vocab_size, config.decoder, config.windows) == (100, None, ())
    write(tmp_path, architectures=["Gemma3ForCausalLM"], sliding_window=512)
    assert open_model(tmp_path).config.windows is None
    write(tmp_path, architectures=["MistralForCausalLM"], sliding_window=512)
    assert open_model(tmp_path).config.windows == (512, 512)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="muro pull demo"):
        open_model(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"config\.json"):
        open_model(tmp_path)
    write(tmp_path)
    with pytest.raises(ConfigError, match="no weights"):
        open_model(tmp_path)


@pytest.mark.parametrize("target", ["nowhere", "model.safetensors", "/dev/zero", "/"])
def test_weights_that_are_no_file_are_refused(tmp_path: Path, target: str) -> None:
    write(tmp_path)
    (tmp_path / "model.safetensors").symlink_to(target)
    with pytest.raises(ConfigError, match=r"model\.safetensors is no file"):
        open_model(tmp_path)


def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    write(tmp_path)
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match="is no file"):
        open_model(tmp_path)
    (tmp_path / "config.json").unlink()
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ConfigError, match=r"no config\.json"):
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
