import math

import msgspec
import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from muro.engines.openvino import graph
from muro.engines.openvino.weights import open_checkpoint
from muro.errors import ConfigError, InternalError
from muro.models.config import RopeScaling
from tests.support.openvino_models import family


def decoder(name: str = "llama-plain", weights: str = "f32") -> ov.Model:
    model = family(name)
    return graph.build_decoder(model.config, open_checkpoint(model), weights)


def test_canary_the_private_transformation_does_what_we_rely_on() -> None:
    """If this fails after an update of openvino, `to_paged` and `executor.py` must follow."""
    model = decoder()
    assert {port.any_name for port in model.inputs} == {"input_ids", "attention_mask", "position_ids", "beam_idx"}
    graph.to_paged(model)
    inputs = {port.any_name: (port.partial_shape.rank.get_length(), port.element_type) for port in model.inputs}
    caches = {name: inputs.pop(name) for name in list(inputs) if "cache" in name}
    assert sorted(caches) == ["key_cache.0", "key_cache.1", "value_cache.0", "value_cache.1"]
    small, large = ov.Type.i32, ov.Type.i64
    assert inputs == {
        "input_ids": (1, large),
        "position_ids": (1, large),
        "past_lens": (1, small),
        "subsequence_begins": (1, small),
        "block_indices": (1, small),
        "block_indices_begins": (1, small),
        "max_context_len": (0, small),
        "sampled": (1, small),
    }
    attention = [node for node in model.get_ops() if node.get_type_name() == "PagedAttentionExtension"]
    assert len(attention) == 2
    assert not [node for node in model.get_ops() if node.get_type_name() in ("ReadValue", "Assign")]
    # The input that becomes the sliding window is a scalar that says "none".
    window = attention[0].input_value(graph._SLIDING_WINDOW_INPUT).get_node()
    assert window.get_type_name() == "Constant" and window.get_data().tolist() == 0


def test_the_cpu_plugin_fuses_what_it_should() -> None:
    model = decoder("llama-plain", "int8")
    graph.to_paged(model)
    compiled = ov.Core().compile_model(model, "CPU", {"KV_CACHE_PRECISION": "f16", "INFERENCE_PRECISION_HINT": "f32"})
    types = [node.get_rt_info()["layerType"].value for node in compiled.get_runtime_model().get_ops()]
    # Per layer: rotary embedding of q and k; q+k+v, output, gate, up and down; and the head.
    assert types.count("RoPE") == 4
    assert types.count("RMS") == 5
    assert types.count("FullyConnectedCompressed") + types.count("FullyConnected") == 11
    assert sum(kind.startswith("PagedAttention") for kind in types) == 2, sorted(set(types))


def test_a_model_that_is_no_decoder_is_refused() -> None:
    parameter = opset13.parameter([1, 2], np.float32, name="x")
    model = ov.Model([opset13.result(opset13.relu(parameter))], [parameter], "other")
    with pytest.raises(InternalError):
        graph.to_paged(model)


def test_a_missing_tensor_is_named() -> None:
    model = family("llama-plain")
    deeper = msgspec.structs.replace(model.config, num_hidden_layers=3)
    with pytest.raises(ConfigError, match=r"model\.layers\.2\."):
        graph.build_decoder(deeper, open_checkpoint(model), "f32")


def test_rotary_frequencies() -> None:
    config = msgspec.structs.replace(family("llama-plain").config, rope_theta=10000.0, head_dim=8)
    plain = graph.rotary_frequencies(config)
    np.testing.assert_allclose(plain, [1, 0.1, 0.01, 0.001], rtol=1e-6)
    linear = msgspec.structs.replace(config, rope_scaling=RopeScaling(rope_type="linear", factor=4.0))
    np.testing.assert_allclose(graph.rotary_frequencies(linear), plain / 4, rtol=1e-6)
    # Turns within the original context: 100, 10, 1, 0.1; kept from 4 on, stretched up to 1, interpolated between.
    original = round(100 * 2 * math.pi)
    scaling = RopeScaling(rope_type="llama3", factor=8.0, original_max_position_embeddings=original)
    llama3 = graph.rotary_frequencies(msgspec.structs.replace(config, rope_scaling=scaling))
    np.testing.assert_allclose(llama3[[0, 1, 3]], plain[[0, 1, 3]] / [1, 1, 8], rtol=1e-6)
    assert plain[2] / 8 <= llama3[2] < plain[2] / 7.9
