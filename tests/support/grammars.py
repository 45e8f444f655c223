"""Grammars over a vocabulary of bytes, as an engine without a model has it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np

from muro.core.grammar import GrammarState, Workshop, grammar_spec
from muro.core.grammar.library import Compiler, Mask, Matcher
from muro.core.options import SchedulerConfig
from muro.core.stepper import StepperEngine
from muro.engines.grammars import BYTES
from muro.testing.hashing import HashingExecutor
from muro.wire.request import StructuredOutputsParams
from tests.support.deadline import until
from tests.support.lagging import LaggingExecutor

VOCAB = len(BYTES)
EOS = 257


@cache
def compiler() -> Compiler:
    return Compiler(BYTES, VOCAB)


def matcher(**options: object) -> Matcher:
    return compiler().compile(grammar_spec(StructuredOutputsParams(**options)))  # type: ignore[arg-type]


def state(*, start: int = 0, eos: int | None = EOS, after: tuple[int, ...] = (), **options: object) -> GrammarState:
    return GrammarState(matcher(**options).copy, start, VOCAB, eos, after)


def ids(mask: Mask | None) -> set[int]:
    """The ids in a mask."""
    assert mask is not None
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def allowed(grammar: GrammarState, text: str) -> str:
    """What may come after a text, as characters; "$" for the end."""
    found = ids(grammar.mask(list(text.encode())))
    return "".join(sorted("$" if i == EOS else chr(i) for i in found))


@contextmanager
def engine_with_grammars(
    wanted: Iterable[StructuredOutputsParams] = (),
    *,
    blocks: int = 400,
    seqs: int = 8,
    budget: int = 64,
    ahead: bool = False,
    thinking: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
) -> Iterator[StepperEngine]:
    """An engine over a model that hashes, with the grammars compiled that are `wanted`."""
    executor = HashingExecutor(num_blocks=blocks, block_size=4, vocab_size=VOCAB, max_model_len=1000)
    config = SchedulerConfig(
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        async_scheduling=ahead,
        thinking_start_token_ids=thinking[0],
        thinking_end_token_ids=thinking[1],
    )
    workshop = Workshop(compiler)
    engine = StepperEngine(LaggingExecutor(executor) if ahead else executor, config, grammars=workshop)
    try:
        compilations = [workshop.order(grammar_spec(params)) for params in wanted]
        until(lambda: all(one.over() for one in compilations))
        yield engine
    finally:
        engine.shutdown()
