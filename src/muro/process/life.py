"""The life of an engine process: one front-end after the other, with the same engine.

Every front-end gets an `EngineCoreProc` of its own, so nothing of one reaches the next. The engine is loaded for
the first and kept for those that follow, if `process.rejoin` says so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from muro.config import EngineConfig
from muro.engine.interface import EngineCore, Report
from muro.engine.loader import load_engine
from muro.errors import ConfigError, RemoteProtocolError, StartupError
from muro.observe.log import TOLD
from muro.process.last_limit import LIMIT, end_within
from muro.process.proc import EngineCoreProc
from muro.process.rejoin import Rejoin
from muro.transport.page import ProgressPage
from muro.transport.pump import Pump
from muro.transport.wakeup import Wakeup
from muro.wire.failure import ExitCode, FailureRecord

log = logging.getLogger(__name__)


class Life:
    """One engine process.

    Args:
        config: settings of the engine.
        page: where progress is shown to the parent.
        report_failure: takes what goes wrong, for the parent.
    """

    def __init__(
        self, config: EngineConfig, page: ProgressPage, report_failure: Callable[[FailureRecord], None]
    ) -> None:
        self._config = config
        self._page = page
        self._report_failure = report_failure
        self._rejoin = Rejoin(config.rejoin and not config.local)
        self._stop = Wakeup()
        self._asked = False
        self._engine: EngineCore | None = None
        self._proc: EngineCoreProc | None = None

    def ask_to_stop(self) -> None:
        """Record that a stop is wanted and wake whoever waits; safe in a signal handler."""
        self._asked = True
        self._stop.set()
        if self._proc is not None:
            self._proc.ask_to_stop()

    def run(self) -> ExitCode:
        """Serve until asked to stop, or until something goes wrong; what does is reported once."""
        with self._stop:
            while True:
                began = time.monotonic()
                code = self._serve_one()
                if code is not ExitCode.LOST_PARENT or self._asked:
                    break
                pause = self._rejoin.lost(time.monotonic() - began)
                if pause is None:
                    log.error("the front-end has gone, and with it this engine (--rejoin makes it stay)")
                    return code
                log.warning("the front-end has gone; dialling %s again", self._config.handshake_address)
                self._wait(pause)
            if self._engine is not None:  # asked to stop between two front-ends
                self._engine.shutdown()
        return ExitCode.STOPPED if code is ExitCode.LOST_PARENT else code

    def _serve_one(self) -> ExitCode:
        """Start, run, close, for one front-end."""
        proc = self._proc = EngineCoreProc(self._config, self._load, self._page)
        if self._asked:  # before there was anything that could have been told
            proc.ask_to_stop()
        code = ExitCode.STARTUP_FAILED
        try:
            if proc.start():
                code = ExitCode.ENGINE_FAILED
                proc.run()
            code = ExitCode.LOST_PARENT if proc.lost else ExitCode.STOPPED
        except BaseException as error:
            code = self._failed(proc, error, code)
        return self._close(proc, code)

    def _failed(self, proc: EngineCoreProc, error: BaseException, code: ExitCode) -> ExitCode:
        if self._rejoin.wanted and proc.phase == "handshake" and isinstance(error, RemoteProtocolError):
            log.warning("the front-end broke the handshake: %s", error)
            return ExitCode.LOST_PARENT
        # A wrong setting, or a front-end that does not come, says all in its message; all else is found by a traceback.
        waited_in_vain = isinstance(error, StartupError) and error.__cause__ is None
        log.error(
            "the engine failed in phase %r: %s",
            proc.phase,
            error,
            exc_info=not (isinstance(error, ConfigError) or waited_in_vain),
            extra=TOLD,
        )
        self._report_failure(FailureRecord.of(proc.phase, error))
        proc.announce_death()
        if isinstance(error, ConfigError) and code is ExitCode.STARTUP_FAILED:
            code = ExitCode.CONFIG
        if self._config.headless:
            end_within(LIMIT, code)
        return code

    def _close(self, proc: EngineCoreProc, code: ExitCode) -> ExitCode:
        keep = code is ExitCode.LOST_PARENT and self._rejoin.wanted
        try:
            proc.close(keep_engine=keep)
        except BaseException as error:
            log.exception("the engine failed while it shut down", extra=TOLD)
            self._report_failure(FailureRecord.of(proc.phase, error))
            code = ExitCode.ENGINE_FAILED if code in (ExitCode.STOPPED, ExitCode.LOST_PARENT) else code
        if not keep:
            self._engine = None
        return code

    def _load(self, report: Report) -> EngineCore:
        config = self._config
        if self._engine is None:
            self._engine = load_engine(config.engine, model=config.model, options=config.options, report=report)
        return self._engine

    def _wait(self, seconds: float) -> None:
        """Wait so long, or until asked to stop."""
        pump = Pump()
        pump.add(self._stop.fileno(), lambda: None)
        pump.poll(int(seconds * 1000))
