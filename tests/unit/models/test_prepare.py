import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from muro.errors import ConfigError
from muro.models import prepare
from muro.models.config import RopeScaling, open_model
from muro.models.pooling import read_pooling
from muro.models.prepare import from_gguf
from muro.text.chat import load_chat_template
from muro.text.tokenizer import load_tokenizer
from tests.support.gguf_files import TEMPLATE, TOKENS, write_tiny_gguf


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    from_gguf(write_tiny_gguf(tmp_path / "tiny.gguf"), tmp_path)
    return tmp_path


def test_the_directory_describes_the_model(prepared: Path) -> None:
    model = open_model(prepared)
    config = model.config.decoder
    assert config is not None
    assert [file.name for file in model.weights] == ["tiny.gguf"]
    assert (config.hidden_size, config.num_attention_heads, config.num_key_value_heads) == (32, 4, 2)
    assert (config.head_dim, config.intermediate_size, config.num_hidden_layers) == (8, 24, 1)
    assert (model.config.vocab_size, model.config.max_position_embeddings) == (len(TOKENS), 64)
    assert config.rms_norm_eps == 1e-5  # not the nearest float32
    assert config.tie_word_embeddings
    assert (model.config.bos_token_id, model.config.eos_token_ids) == (1, (2,))


def test_the_files_are_those_that_other_front_ends_read(prepared: Path) -> None:
    raw = json.loads((prepared / "config.json").read_text())
    assert raw["architectures"] == ["LlamaForCausalLM"] and raw["model_type"] == "llama"
    assert json.loads((prepared / "generation_config.json").read_text())["eos_token_id"] == 2
    tokenizer = json.loads((prepared / "tokenizer_config.json").read_text())
    assert (tokenizer["bos_token"], tokenizer["eos_token"], tokenizer["unk_token"]) == (
        "<|start|>",
        "<|end|>",
        "<|unk|>",
    )
    assert tokenizer["chat_template"] == TEMPLATE == (prepared / "chat_template.jinja").read_text()
    assert tokenizer["added_tokens_decoder"]["2"]["content"] == "<|end|>"


def test_the_text_room_reads_them(prepared: Path) -> None:
    tokenizer = load_tokenizer(prepared)
    assert tokenizer.eos_token_ids == (2,)
    assert load_chat_template(prepared) is not None


def test_tokens_of_text_digits_and_specials(prepared: Path) -> None:
    tokenizer = Tokenizer.from_file(str(prepared / "tokenizer.json"))
    ids = tokenizer.encode("<|start|>hello w12<|end|>").ids
    assert [TOKENS[i] for i in ids] == ["<|start|>", "hello", "Ġw", "1", "2", "<|end|>"]
    assert tokenizer.decode(ids) == "hello w12"


def test_a_tokenizer_that_begins_every_text(tmp_path: Path) -> None:
    gguf = write_tiny_gguf(tmp_path / "tiny.gguf", pre="gpt-2", extra={"tokenizer.ggml.add_bos_token": True})
    from_gguf(gguf, tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert [TOKENS[i] for i in tokenizer.encode("hello")] == ["<|start|>", "hello"]
    assert [TOKENS[i] for i in tokenizer.encode("hello", add_special=False)] == ["hello"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"architecture": "falcon"}, "'falcon'"),
        ({"tokenizer": "t5"}, "'t5'"),
        ({"tokenizer": "llama"}, "without a score"),
        ({"pre": "deepseek-coder"}, "'deepseek-coder'"),
        ({"merges": ["h e l"]}, "damaged"),
        ({"merges": ["h Ωmega"]}, "do not fit"),
        ({"extra": {"llama.rope.scaling.type": "yarn"}}, "rotary"),
    ],
)
def test_what_we_do_not_know_is_refused_by_name(tmp_path: Path, changes: dict, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        from_gguf(write_tiny_gguf(tmp_path / "tiny.gguf", **changes), tmp_path)


@pytest.mark.parametrize("content", [b"", b"no gguf at all", b"GGUF" + bytes(60)])
def test_a_damaged_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"tiny\.gguf"):
        from_gguf(path, tmp_path)


def test_a_cut_file(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[:-4000])
    with pytest.raises(ConfigError, match=r"tiny\.gguf"):
        from_gguf(path, tmp_path)


def test_how_a_model_for_embeddings_pools(tmp_path: Path) -> None:
    from_gguf(write_tiny_gguf(tmp_path / "tiny.gguf", extra={"llama.pooling_type": 3}), tmp_path)
    assert read_pooling(tmp_path) == "last"
    plain = tmp_path / "plain"
    plain.mkdir()
    from_gguf(write_tiny_gguf(plain / "tiny.gguf"), plain)
    assert read_pooling(plain) is None


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.5},
            RopeScaling(rope_type="linear", factor=2.5),
        ),
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 1.0}, None),
        (
            {"llama.rope.scale_linear": 2.0, "llama.rope.scaling.type": "linear"},
            RopeScaling(rope_type="linear", factor=2.0),
        ),
    ],
)
def test_rotary_scaling(tmp_path: Path, extra: dict[str, Any], expected: RopeScaling | None) -> None:
    from_gguf(write_tiny_gguf(tmp_path / "tiny.gguf", extra=extra), tmp_path)
    decoder = open_model(tmp_path).config.decoder
    assert decoder is not None and decoder.rope_scaling == expected


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"llama.rope.dimension_count": 4}, "differ in size"),
        ({"llama.rope.scaling.type": "linear"}, "'linear' are not supported"),
    ],
)
def test_shapes_that_cannot_be_run(tmp_path: Path, extra: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        from_gguf(write_tiny_gguf(tmp_path / "tiny.gguf", extra=extra), tmp_path)


def test_windows_of_families_that_have_none_in_gguf(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'qwen2' with sliding windows"):
        from_gguf(
            write_tiny_gguf(tmp_path / "tiny.gguf", architecture="qwen2", extra={"qwen2.attention.sliding_window": 8}),
            tmp_path,
        )


@pytest.mark.parametrize("wrong", ["text", 0, -1, 2**63, [1, 2], ["a", "b"], 2.5, None])
@pytest.mark.parametrize(
    "key",
    [
        "general.architecture", "llama.context_length", "llama.embedding_length", "llama.block_count",
        "llama.feed_forward_length", "llama.attention.head_count", "llama.attention.head_count_kv",
        "llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base", "llama.pooling_type",
        "tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type",
        "tokenizer.ggml.merges", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.unknown_token_id",
        "tokenizer.chat_template",
    ],
)  # fmt: skip
def test_a_value_of_another_kind_is_refused_or_goes(
    tmp_path: Path, tiny: tuple[dict[str, Any], Any], monkeypatch: pytest.MonkeyPatch, key: str, wrong: Any
) -> None:
    metadata, tensors = tiny
    monkeypatch.setattr(prepare, "read_metadata", lambda _: ({**metadata, key: wrong}, tensors))
    with contextlib.suppress(ConfigError):  # and nothing else
        prepare.from_gguf(tmp_path / "tiny.gguf", tmp_path)
        (tmp_path / "tiny.gguf").touch()
        open_model(tmp_path)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Any]:
    return prepare.read_metadata(write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))
