"""From a stateful decoder, ours or one that was exported elsewhere, to paged attention.

`to_paged` lets OpenVINO's own transformation replace state and attention by block tables, sets the windows of
layers that have one, and asks for the outputs that the executor reads.

Inputs afterwards, T tokens of S sequences: `input_ids` [T], `position_ids` [T] (int64); `past_lens` [S],
`subsequence_begins` [S + 1], `block_indices` [B], `block_indices_begins` [S + 1], `max_context_len` [], `sampled` [R]
and `pooled` [P] (int32); `key_cache.N`, `value_cache.N` per layer. Outputs, float32: `logits` of the R tokens at the
positions `sampled` of the T, and `hidden`, what the head is computed from, of the P tokens at the positions `pooled`.

A window is a number of tokens, the position itself included, at the eleventh input of each attention node: so it was
found to be by comparison with reference models, whole prompts, chunks and single tokens alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

from muro.errors import ConfigError

# OpenVINO ships no types.
Node = Any

_STATEFUL_INPUTS = frozenset({"input_ids", "attention_mask", "position_ids", "beam_idx"})
_PAGED_INPUTS = frozenset(
    {
        "input_ids",
        "position_ids",
        "past_lens",
        "subsequence_begins",
        "block_indices",
        "block_indices_begins",
        "max_context_len",
    }
)
_KEY_CACHE_INPUT = 3  # of the attention node
_WINDOW_INPUT = 10
_AFTER_THE_HEAD = frozenset({"Convert", "Reshape", "Squeeze", "Unsqueeze"})


def to_paged(model: ov.Model, windows: tuple[int | None, ...] | None = ()) -> None:
    """Turn a stateful decoder to paged attention, in place; see above.

    Args:
        model: `input_ids` and more [batch, tokens] -> logits; keys and values are its state.
        windows: as in `ModelConfig.windows`; empty: none has to be set.

    Raises:
        ConfigError: the decoder is not stateful, or the transformation does not know it.
    """
    # A private module; a test watches that it does what is said here.
    from openvino._offline_transformations import paged_attention_transformation

    _check_stateful(model)
    try:
        paged_attention_transformation(model)
    except RuntimeError as error:
        raise ConfigError(f"OpenVINO {ov.__version__} cannot turn this model to paged attention: {error}") from error
    names = {_name(port) for port in model.inputs}
    others = {name for name in names - _PAGED_INPUTS if not name.startswith(("key_cache.", "value_cache."))}
    if missing := _PAGED_INPUTS - names:
        raise ConfigError(f"with paged attention the model does not read {', '.join(sorted(missing))}")
    if others:
        raise ConfigError(f"with paged attention the model wants inputs that nobody can give: {_listed(others)}")
    _choose_rows(model)
    _set_windows(model, windows)
    model.validate_nodes_and_infer_types()


def _check_stateful(model: ov.Model) -> None:
    names = {_name(port) for port in model.inputs}
    advice = "export it as a stateful decoder of text (optimum-cli export openvino --task text-generation-with-past)"
    if any(name.startswith(("past_key_values", "past.", "key_cache.")) for name in names):
        raise ConfigError(f"the model takes keys and values as inputs instead of keeping them as its state; {advice}")
    if "input_ids" not in names:
        raise ConfigError(f"the model reads {_listed(names)}, not input_ids; {advice}")
    if others := names - _STATEFUL_INPUTS:
        raise ConfigError(f"the model wants inputs that nobody can give: {_listed(others)}; {advice}")
    if not any(node.get_type_name() == "ReadValue" for node in model.get_ops()):
        raise ConfigError(f"the model keeps no keys and values as its state; {advice}")


def _choose_rows(model: ov.Model) -> None:
    """Compute the head for the wanted tokens only, it is the largest matrix; give out what it is computed from."""
    output = next((port for port in model.outputs if "logits" in port.get_names()), model.outputs[0])
    output.get_tensor().set_names({"logits"})
    result = output.get_node()
    head = result.input_value(0).get_node()
    while head.get_type_name() in _AFTER_THE_HEAD:
        head = head.input_value(0).get_node()
    sampled = _rows_input("sampled")
    if head.get_type_name() == "MatMul":
        hidden = head.input_value(0)
        head.input(0).replace_source_output(opset13.gather(hidden, sampled, _axis()).output(0))
        pooled = _rows_input("pooled")
        chosen = opset13.gather(hidden, pooled, _axis())
        chosen.output(0).set_names({"hidden"})
        model.add_parameters([pooled])
        model.add_results([opset13.result(chosen)])
    else:
        # Something follows the head, such as a bound on the logits. Then it is computed for all tokens.
        logits = opset13.gather(result.input_value(0), sampled, _axis())
        result.input(0).replace_source_output(logits.output(0))
    model.add_parameters([sampled])


def _set_windows(model: ov.Model, windows: tuple[int | None, ...] | None) -> None:
    attentions = [node for node in model.get_ops() if node.get_type_name() == "PagedAttentionExtension"]
    if windows is None:
        # It is for the transformation to find them in an architecture that we do not know.
        if not any(_window(node) for node in attentions):
            raise ConfigError(
                "by its config.json the model sees through a sliding window, "
                f"which OpenVINO {ov.__version__} did not find in the graph; it would be computed wrongly"
            )
        return
    if windows and len(windows) != len(attentions):
        raise ConfigError(f"config.json speaks of {len(windows)} layers, the graph has {len(attentions)}")
    for node in attentions:
        layer = int(_name(node.input_value(_KEY_CACHE_INPUT)).rpartition(".")[2])
        if windows and (window := windows[layer]) is not None:
            node.input(_WINDOW_INPUT).replace_source_output(opset13.constant(np.int32(window)).output(0))


def _window(attention: Node) -> bool:
    """Whether the transformation has set a window: a number that is not zero, or something computed."""
    node = attention.input_value(_WINDOW_INPUT).get_node()
    return node.get_type_name() != "Constant" or bool(np.any(node.get_data()))


def _rows_input(name: str) -> Node:
    parameter = opset13.parameter([-1], np.int32, name=name)
    parameter.output(0).set_names({name})
    return parameter


def _axis() -> Node:
    return opset13.constant(np.array(0, dtype=np.int64))


def _name(port: Node) -> str:
    names: set[str] = port.get_names()
    return min(names) if names else port.get_node().get_friendly_name()


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
