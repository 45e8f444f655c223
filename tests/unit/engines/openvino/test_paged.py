import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from muro.engines.openvino import graph, paged
from muro.engines.openvino.paged import to_paged
from muro.errors import ConfigError
from muro.models.checkpoint import open_checkpoint
from tests.support.openvino_models import family


def decoder(name: str = "llama-plain", weights: str = "f32") -> ov.Model:
    model = family(name)
    assert model.config.decoder is not None
    return graph.build_decoder(model.config.decoder, open_checkpoint(model), weights)


def windows(model: ov.Model) -> list[int]:
    attention = [node for node in model.get_ops() if node.get_type_name() == "PagedAttentionExtension"]
    nodes = [node.input_value(paged._WINDOW_INPUT).get_node() for node in attention]
    return [int(node.get_data()) for node in nodes]


def test_canary_the_private_transformation_does_what_we_rely_on() -> None:
    """If this fails after an update of openvino, `to_paged` and `executor.py` must follow."""
    model = decoder()
    assert {port.any_name for port in model.inputs} == {"input_ids", "attention_mask", "position_ids", "beam_idx"}
    to_paged(model)
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
        "pooled": (1, small),
    }
    attention = [node for node in model.get_ops() if node.get_type_name() == "PagedAttentionExtension"]
    assert len(attention) == 2
    assert not [node for node in model.get_ops() if node.get_type_name() in ("ReadValue", "Assign")]
    # The input that becomes the sliding window is a scalar that says "none".
    window = attention[0].input_value(paged._WINDOW_INPUT).get_node()
    assert window.get_type_name() == "Constant" and window.get_data().tolist() == 0


def test_windows_go_to_their_layers() -> None:
    model = decoder("mistral-sliding")
    to_paged(model, (32, None))
    assert windows(model) == [32, 0]
    with pytest.raises(ConfigError, match="3 layers, the graph has 2"):
        to_paged(decoder("mistral-sliding"), (32, None, 32))


def test_windows_that_are_lost_are_noticed() -> None:
    with pytest.raises(ConfigError, match="did not find in the graph"):
        to_paged(decoder(), None)


def other(*names: str) -> ov.Model:
    parameters = [opset13.parameter([-1, -1], np.int64, name=name) for name in names]
    for name, parameter in zip(names, parameters, strict=True):
        parameter.output(0).set_names({name})
    total = parameters[0]
    for parameter in parameters[1:]:
        total = opset13.add(total, parameter)
    return ov.Model([opset13.result(total)], parameters, "other")


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["x"], "reads x, not input_ids"),
        (["inputs_embeds", "attention_mask"], "reads attention_mask, inputs_embeds, not input_ids"),
        (["input_ids", "token_type_ids"], "nobody can give: token_type_ids"),
        (["input_ids", "attention_mask"], "keeps no keys and values"),
        (["input_ids", "past_key_values.0.key"], "as inputs instead of keeping them"),
        (["input_ids", "key_cache.0"], "as inputs instead of keeping them"),
    ],
)
def test_a_graph_that_is_no_stateful_decoder_is_refused(names: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        to_paged(other(*names))


def test_attention_that_the_transformation_does_not_know_is_refused() -> None:
    model = decoder()
    for node in model.get_ops():
        if node.get_type_name() == "ScaledDotProductAttention":
            node.output(0).replace(opset13.multiply(node.input_value(0), opset13.constant(np.float32(1))).output(0))
    with pytest.raises(ConfigError):
        to_paged(model)


def test_what_follows_the_head_is_kept() -> None:
    """Then the rows are chosen behind it, and there are no hidden states."""
    model = decoder()
    result = model.outputs[0].get_node()
    result.input(0).replace_source_output(opset13.tanh(result.input_value(0)).output(0))
    to_paged(model)
    names = {port.any_name for port in model.inputs}
    assert "sampled" in names and "pooled" not in names
    assert [port.get_names() for port in model.outputs] == [{"logits"}]
