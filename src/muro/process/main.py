"""run_engine_core: the whole life of an engine process, from its settings to its exit code.

A plain callable: `child.boot` calls it in a spawned child, the command line calls `run_headless` for an engine
that dials a front-end elsewhere, and it may be the target of a multiprocessing process.

Signals are taken over first and given back last: while the process cleans up, further ones are counted and
cut nothing short. (vLLM restores the handlers before it cleans up.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from muro.child.context import ChildContext
from muro.child.signals import StopSignals
from muro.config import EngineConfig
from muro.engine.interface import EngineCore, Report
from muro.engine.loader import load_engine
from muro.errors import ConfigError
from muro.process.proc import EngineCoreProc
from muro.transport.page import ProgressPage
from muro.transport.sockets import flush
from muro.wire.failure import ExitCode, FailureRecord

log = logging.getLogger(__name__)

LAST_WORDS_TIMEOUT = 5.0
"""Seconds that closed sockets get to say what they still have to say."""


def run_engine_core(context: ChildContext) -> int:
    """Target of a spawned child: run the engine of `context.payload`; returns the exit code."""
    config = msgspec.convert(context.payload, EngineConfig)
    logging.basicConfig(level=config.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return run(config, context.page, context.report_failure)


def run_headless(config: EngineConfig) -> int:
    """Run one engine in this process: it dials `config.handshake_address`; returns the exit code."""
    page = ProgressPage.create()
    try:
        return run(config, page, _log_failure)
    finally:
        page.close()


def run(config: EngineConfig, page: ProgressPage, report_failure: Callable[[FailureRecord], None]) -> int:
    """Start, run and end one engine in the main thread."""

    def load(report: Report) -> EngineCore:
        return load_engine(config.engine, model=config.model, options=config.options, report=report)

    proc = EngineCoreProc(config, load, page)
    signals = StopSignals(proc.ask_to_stop)
    signals.install()
    try:
        code = _live(proc, report_failure)
        flush(LAST_WORDS_TIMEOUT)
        return code
    finally:
        signals.restore()


def _live(proc: EngineCoreProc, report_failure: Callable[[FailureRecord], None]) -> ExitCode:
    """Start, run, close; what goes wrong is reported once and decides the exit code."""
    code = ExitCode.STARTUP_FAILED
    try:
        if proc.start():
            code = ExitCode.ENGINE_FAILED
            proc.run()
        code = ExitCode.STOPPED
    except BaseException as error:
        # A wrong setting says all in its message; anything else is to be found by its traceback.
        log.error("the engine failed in phase %r: %s", proc.phase, error, exc_info=not isinstance(error, ConfigError))
        report_failure(FailureRecord.of(proc.phase, error))
        if isinstance(error, ConfigError) and code is ExitCode.STARTUP_FAILED:
            code = ExitCode.CONFIG
        proc.announce_death()
    try:
        proc.close()
    except BaseException as error:
        log.exception("the engine failed while it shut down")
        report_failure(FailureRecord.of(proc.phase, error))
        if code is ExitCode.STOPPED:
            code = ExitCode.ENGINE_FAILED
    return code


def _log_failure(record: FailureRecord) -> None:
    log.error("the engine failed in phase %r: %s: %s", record.phase, record.kind, record.message)
