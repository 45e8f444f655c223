"""run_engine_core: the whole life of an engine process, from its settings to its exit code.

A plain callable: `child.boot` calls it in a spawned child, the command line calls `run_headless` for an engine
that dials a front-end elsewhere, and it may be the target of a multiprocessing process.

Signals are taken over first and given back last: while the process cleans up, further ones are counted and
cut nothing short. (vLLM restores the handlers before it cleans up.)
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from muro.child.context import ChildContext
from muro.child.logs import set_level
from muro.child.signals import StopSignals
from muro.config import EngineConfig
from muro.process.life import Life
from muro.transport.context import flush
from muro.transport.page import ProgressPage
from muro.wire.failure import FailureRecord

LAST_WORDS_TIMEOUT = 5.0
"""Seconds that closed sockets get to say what they still have to say."""


def run_engine_core(context: ChildContext) -> int:
    """Target of a spawned child: run the engine of `context.payload`; returns the exit code."""
    config = msgspec.convert(context.payload, EngineConfig)
    set_level(config.log_level)
    return run(config, context.page, context.report_failure)


def run_headless(config: EngineConfig) -> int:
    """Run one engine in this process: it dials `config.handshake_address`; returns the exit code."""
    page = ProgressPage.create()
    try:
        return run(config, page, lambda record: None)  # there is no parent, and what goes wrong is logged
    finally:
        page.close()


def run(config: EngineConfig, page: ProgressPage, report_failure: Callable[[FailureRecord], None]) -> int:
    """Start, run and end one engine in the main thread."""
    life = Life(config, page, report_failure)
    with StopSignals(life.ask_to_stop):
        code = life.run()
        flush(LAST_WORDS_TIMEOUT)
    return code
