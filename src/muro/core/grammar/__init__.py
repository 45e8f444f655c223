"""Structured output: what a grammar allows next. A room of its own within `core`: it knows tokens, no requests.

`spec` says what one request wants (with `schema` and `tags` for two of its forms), `library` is the only file that
knows `llguidance`, `workshop` compiles off the loop thread, `state` follows the tokens of one request.
"""

from muro.core.grammar.spec import GrammarSpec, grammar_spec
from muro.core.grammar.state import GrammarState
from muro.core.grammar.workshop import Compilation, Workshop

__all__ = ["Compilation", "GrammarSpec", "GrammarState", "Workshop", "grammar_spec"]
