"""What an engine of a model directory compiles grammars with: the model's tokenizer, and a trial beforehand."""

from __future__ import annotations

from pathlib import Path

from muro.core.grammar.library import Compiler, Vocabulary, is_installed
from muro.core.grammar.spec import grammar_spec
from muro.core.grammar.workshop import Compilation, Workshop
from muro.engines.trial import Trials
from muro.errors import ConfigError
from muro.wire.request import StructuredOutputsParams

TOKENIZER = "tokenizer.json"
BYTES: tuple[bytes, ...] = (*(bytes((i,)) for i in range(256)), b"", b"")
"""Plain bytes, and two ids that begin and end a text: the vocabulary of an engine without a model."""


def workshop(directory: Path | None, vocab_size: int) -> Workshop:
    """Compiles grammars for a model; reads and starts nothing before the first one.

    Args:
        directory: of the model, with a `tokenizer.json`; None: plain bytes.
        vocab_size: width of the logits.
    """
    missing = None
    if not is_installed():
        missing = "structured_outputs needs an optional dependency on the engine's side: pip install 'muro[structured]'"
    elif directory is not None and not (directory / TOKENIZER).is_file():
        missing = f"structured_outputs is not supported by this engine: the model has no {TOKENIZER}"
    trials = Trials()
    return Workshop(lambda: Compiler(_vocabulary(directory), vocab_size), trial=trials, missing=missing)


class Checker:
    """Tells whether grammars compile, for a front-end whose engines are not ours. Close it."""

    def __init__(self) -> None:
        self._workshop = workshop(None, len(BYTES))

    def order(self, wanted: StructuredOutputsParams) -> Compilation:
        """Begin to compile. Raises InvalidRequestError for what is no grammar."""
        return self._workshop.order(grammar_spec(wanted))

    def close(self) -> None:
        """Compile nothing more."""
        self._workshop.close()


def checker() -> Checker | None:
    """None if the library is missing."""
    return Checker() if is_installed() else None


def _vocabulary(directory: Path | None) -> Vocabulary:
    if directory is None:
        return BYTES
    try:
        return (directory / TOKENIZER).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{directory / TOKENIZER} cannot be read: {error}") from None
