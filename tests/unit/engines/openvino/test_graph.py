import math
from pathlib import Path

import msgspec
import numpy as np
import openvino as ov
import pytest

from muro.engines.openvino import graph
from muro.engines.openvino.paged import to_paged
from muro.errors import ConfigError
from muro.models.checkpoint import open_checkpoint
from muro.models.config import DecoderConfig, RopeScaling, open_model
from tests.support.checkpoints import write_checkpoint, write_tensors
from tests.support.openvino_models import family


def decoder_config() -> DecoderConfig:
    config = family("llama-plain").config.decoder
    assert config is not None
    return config


def decoder(name: str = "llama-plain", weights: str = "f32") -> ov.Model:
    model = family(name)
    assert model.config.decoder is not None
    return graph.build_decoder(model.config.decoder, open_checkpoint(model), weights)


def test_the_cpu_plugin_fuses_what_it_should() -> None:
    model = decoder("llama-plain", "int8")
    to_paged(model)
    compiled = ov.Core().compile_model(model, "CPU", {"KV_CACHE_PRECISION": "f16", "INFERENCE_PRECISION_HINT": "f32"})
    types = [node.get_rt_info()["layerType"].value for node in compiled.get_runtime_model().get_ops()]
    # Per layer: rotary embedding of q and k; q+k+v, output, gate, up and down; and the head.
    assert types.count("RoPE") == 4
    assert types.count("RMS") == 5
    assert types.count("FullyConnectedCompressed") + types.count("FullyConnected") == 11
    assert sum(kind.startswith("PagedAttention") for kind in types) == 2, sorted(set(types))


def test_a_missing_tensor_is_named() -> None:
    model = family("llama-plain")
    deeper = msgspec.structs.replace(decoder_config(), num_hidden_layers=3)
    with pytest.raises(ConfigError, match=r"model\.layers\.2\."):
        graph.build_decoder(deeper, open_checkpoint(model), "f32")


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("model.embed_tokens.weight", (96 * 32,), r"embed_tokens.weight should have the shape \(3072, 32\)"),
        ("model.embed_tokens.weight", (96, 32, 1), "embed_tokens.weight should have the shape"),
        ("lm_head.weight", (32, 96), r"lm_head.weight should have the shape \(32, 32\)"),
        ("model.embed_tokens.weight", (48, 32), "48 rows of embed_tokens and 96 rows of lm_head"),
        ("model.embed_tokens.weight", (), r"embed_tokens.weight should have the shape \(0, 32\)"),
    ],
)
def test_tables_of_tokens_must_fit(tmp_path: Path, name: str, shape: tuple[int, ...], says: str) -> None:
    weights = write_checkpoint(tmp_path, "LlamaForCausalLM")
    weights[name] = np.resize(weights[name], shape)
    write_tensors(tmp_path / "model.safetensors", weights)
    model = open_model(tmp_path)
    assert model.config.decoder is not None
    with pytest.raises(ConfigError, match=says):
        graph.build_decoder(model.config.decoder, open_checkpoint(model), "int8")


def test_rotary_frequencies() -> None:
    config = msgspec.structs.replace(decoder_config(), rope_theta=10000.0, head_dim=8)
    plain = graph.rotary_frequencies(config)
    np.testing.assert_allclose(plain, [1, 0.1, 0.01, 0.001], rtol=1e-6)
    linear = msgspec.structs.replace(config, rope_scaling=RopeScaling(rope_type="linear", factor=4.0))
    np.testing.assert_allclose(graph.rotary_frequencies(linear), plain / 4, rtol=1e-6)
    factors = msgspec.structs.replace(config, rope_scaling=RopeScaling(rope_type="factors", factors=(1, 2, 4, 8)))
    np.testing.assert_allclose(graph.rotary_frequencies(factors), plain / [1, 2, 4, 8], rtol=1e-6)
    # Turns within the original context: 100, 10, 1, 0.1; kept from 4 on, stretched up to 1, interpolated between.
    original = round(100 * 2 * math.pi)
    scaling = RopeScaling(rope_type="llama3", factor=8.0, original_max_position_embeddings=original)
    llama3 = graph.rotary_frequencies(msgspec.structs.replace(config, rope_scaling=scaling))
    np.testing.assert_allclose(llama3[[0, 1, 3]], plain[[0, 1, 3]] / [1, 1, 8], rtol=1e-6)
    assert plain[2] / 8 <= llama3[2] < plain[2] / 7.9
