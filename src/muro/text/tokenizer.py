"""Text <-> token ids: the `Tokenizer` contract, Hugging Face's `tokenizer.json`, and plain bytes.

Decoding here is of whole sequences; `detokenizer.py` streams. Templates are `chat.py`'s, length limits the caller's.

Formats: `tokenizer.json` is the `tokenizers` library's; `tokenizer_config.json`, `generation_config.json` and
`config.json` are as Hugging Face's `transformers` writes them; of them only the named fields below are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from muro.errors import ConfigError, InvalidRequestError, MissingExtraError

if TYPE_CHECKING:
    import tokenizers

T = TypeVar("T")


class Tokenizer(Protocol):
    """What the rest needs of a tokenizer. Implementations are safe to call from several threads."""

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included; a model's logits may be wider (padding)."""

    @property
    def bos_token_id(self) -> int | None:
        """Begin-of-sequence id; whether `encode` adds it is the tokenizer's business."""

    @property
    def eos_token_id(self) -> int | None:
        """The main end-of-sequence id: `_eos_token_id` on the wire."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """All ids that end a generation, the main one first; the others are stop ids on the wire."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that `decode` leaves out with `skip_special`."""

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """What chat templates may name: `bos_token`, `eos_token`, ... to their text."""

    @property
    def byte_table(self) -> Mapping[int, bytes] | None:
        """Bytes of every id, if decoding is: join them and read as UTF-8, U+FFFD for what is not. Else None."""

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Token ids of `text`, with the tokenizer's own begin and end tokens if `add_special`.

        Raises:
            InvalidRequestError: the text holds a lone surrogate, so it is not Unicode text.
        """

    def fewest_tokens(self, text: str) -> int:
        """How many tokens `text` is at least, told without tokenising it, so that an absurd one costs nothing."""

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of a whole sequence; ids outside the vocabulary yield nothing."""

    def token(self, token_id: int) -> str | None:
        """The vocabulary's own spelling of an id, None outside the vocabulary."""


class ByteTokenizer:
    """One id per UTF-8 byte, then begin (256) and end (257) of sequence, which `encode` never adds.

    For engines that come without a model directory. No text can spell a special token.
    """

    vocab_size = 258
    bos_token_id = 256
    eos_token_id = 257
    eos_token_ids = (257,)
    special_ids = frozenset({256, 257})
    special_tokens: Mapping[str, str] = {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}

    def __init__(self) -> None:
        self.byte_table: Mapping[int, bytes] = {i: bytes((i,)) for i in range(256)} | {256: b"<|bos|>", 257: b"<|eos|>"}

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """See `Tokenizer.encode`; `add_special` adds nothing."""
        return list(_utf8(text))

    def fewest_tokens(self, text: str) -> int:
        """See `Tokenizer.fewest_tokens`."""
        return len(text)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """See `Tokenizer.decode`."""
        skipped = self.special_ids if skip_special else ()
        table = self.byte_table
        return b"".join([table.get(i, b"") for i in ids if i not in skipped]).decode("utf-8", "replace")

    def token(self, token_id: int) -> str | None:
        """See `Tokenizer.token`; a byte is spelt `<0xE2>`."""
        if token_id in self.special_ids:
            return self.byte_table[token_id].decode()
        return f"<0x{token_id:02X}>" if token_id in self.byte_table else None


class HuggingFaceTokenizer:
    """A `tokenizers.Tokenizer` with what its model directory says about special ids. Made by `load_tokenizer`."""

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        *,
        special_tokens: Mapping[str, str] | None = None,
        eos_token_ids: Sequence[int] = (),
    ) -> None:
        self._inner = inner
        self.special_tokens: Mapping[str, str] = dict(special_tokens or {})
        self.vocab_size: int = inner.get_vocab_size(with_added_tokens=True)
        self.bos_token_id = self._id_of("bos_token")
        eos = self._id_of("eos_token")
        main = () if eos is None else (eos,)
        self.eos_token_ids = tuple(dict.fromkeys([*main, *eos_token_ids]))
        self.eos_token_id = self.eos_token_ids[0] if self.eos_token_ids else None
        added = inner.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.byte_table = _byte_table(inner)
        # Elsewhere one token may stand for any length: a normaliser shortens text, unknown characters are fused.
        table = None if inner.normalizer else self.byte_table
        self._longest = max(map(len, table.values())) if table else 0

    def _id_of(self, role: str) -> int | None:
        token = self.special_tokens.get(role)
        return None if token is None else self._inner.token_to_id(token)

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """See `Tokenizer.encode`. Lets go of the interpreter lock while it works."""
        try:
            # Not `encode`: that one holds the lock, for a second or more per megabyte of text, and is slower.
            return self._inner.encode_batch_fast([text], add_special_tokens=add_special)[0].ids
        except TypeError:  # what the library raises on a lone surrogate
            _utf8(text)
            raise

    def fewest_tokens(self, text: str) -> int:
        """See `Tokenizer.fewest_tokens`; 0 where the vocabulary sets no bound."""
        return -(-len(text) // self._longest) if self._longest else 0

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """See `Tokenizer.decode`."""
        return self._inner.decode([i for i in ids if i >= 0], skip_special_tokens=skip_special)

    def token(self, token_id: int) -> str | None:
        """See `Tokenizer.token`."""
        return self._inner.id_to_token(token_id) if token_id >= 0 else None


class _AddedToken(msgspec.Struct):
    content: str


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


class TokenizerConfig(msgspec.Struct):
    """The fields of `tokenizer_config.json` that are read."""

    bos_token: str | _AddedToken | None = None
    eos_token: str | _AddedToken | None = None
    unk_token: str | _AddedToken | None = None
    pad_token: str | _AddedToken | None = None
    sep_token: str | _AddedToken | None = None
    cls_token: str | _AddedToken | None = None
    chat_template: str | list[_NamedTemplate] | None = None

    def special_tokens(self) -> dict[str, str]:
        """`bos_token`, ... to their text, those that are set."""
        named = {name: getattr(self, name) for name in self.__struct_fields__ if name.endswith("_token")}
        return {k: v.content if isinstance(v, _AddedToken) else v for k, v in named.items() if v is not None}

    def default_template(self) -> str | None:
        """The chat template, of several the one called "default"."""
        if isinstance(self.chat_template, list):
            return next((t.template for t in self.chat_template if t.name == "default"), None)
        return self.chat_template


class _EosIds(msgspec.Struct):
    """The one field read of `generation_config.json` and `config.json`."""

    eos_token_id: int | list[int] | None = None

    def ids(self) -> list[int]:
        if self.eos_token_id is None:
            return []
        return self.eos_token_id if isinstance(self.eos_token_id, list) else [self.eos_token_id]


def read_tokenizer_config(model_dir: Path) -> TokenizerConfig:
    """`tokenizer_config.json` of a model directory, all defaults if there is none.

    Raises:
        ConfigError: the file cannot be read or has wrong types.
    """
    return _read(model_dir / "tokenizer_config.json", TokenizerConfig) or TokenizerConfig()


def load_tokenizer(model_dir: str | Path | None) -> Tokenizer:
    """The tokenizer of a model directory; plain bytes without one.

    The main end token is `eos_token` of `tokenizer_config.json`; `eos_token_id` of `generation_config.json` (else of
    `config.json`) adds more.

    Raises:
        ConfigError: `tokenizer.json` is missing, or a file cannot be read.
        MissingExtraError: the library `tokenizers` is not installed.
    """
    if model_dir is None:
        return ByteTokenizer()
    model_dir = Path(model_dir)
    path = model_dir / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(f"{model_dir} has no tokenizer.json; it is needed to turn text into tokens")
    try:
        import tokenizers
    except ImportError:
        raise MissingExtraError("reading tokenizer.json", "text") from None
    try:
        inner = tokenizers.Tokenizer.from_file(str(path))
    except Exception as err:  # the library raises plain Exception
        raise ConfigError(f"{path} is not a tokenizer that the `tokenizers` library can read: {err}") from err
    # A truncation or padding left in the file by training would silently change prompts.
    inner.no_truncation()
    inner.no_padding()
    eos = _read(model_dir / "generation_config.json", _EosIds) or _EosIds()
    if not eos.ids():
        eos = _read(model_dir / "config.json", _EosIds) or eos
    special = read_tokenizer_config(model_dir).special_tokens()
    return HuggingFaceTokenizer(inner, special_tokens=special, eos_token_ids=eos.ids())


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as err:
        raise ConfigError(f"{path} cannot be read: {err}") from err


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as err:
        what = f"the text is not valid Unicode: lone surrogate at character {err.start}"
        raise InvalidRequestError(what, param="prompt") from None


def _byte_table(inner: tokenizers.Tokenizer) -> dict[int, bytes] | None:
    """Bytes of each id, for tokenizers whose only decoder is ByteLevel (GPT-2, Llama 3, Qwen, SmolLM, ...).

    ByteLevel writes each byte as a printable character; a token with any other character (an added one, say, with a
    space in it) stands for its own UTF-8. That is how the library's decoder reads them, token by token.
    """
    decoder = inner.decoder
    if decoder is None or type(decoder).__name__ != "ByteLevel":
        return None
    chars = _byte_chars()
    table = {}
    for token, token_id in inner.get_vocab(with_added_tokens=True).items():
        try:
            table[token_id] = bytes([chars[c] for c in token])
        except KeyError:
            table[token_id] = token.encode()
    return table


def _byte_chars() -> dict[str, int]:
    """ByteLevel's alphabet: printable Latin-1 stands for itself, the other 68 bytes for U+0100 onwards, in order."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(itself)]
    return {chr(b): b for b in itself} | {chr(256 + i): b for i, b in enumerate(others)}
