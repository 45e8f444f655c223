"""run_coordinator: the whole life of a coordinator process, from its settings to its exit code.

`child.boot` calls it in a spawned child. Signals are taken over first and given back last, as in an engine's process.
"""

from __future__ import annotations

import logging

import msgspec

from muro.child.context import ChildContext
from muro.child.logs import set_level
from muro.child.signals import StopSignals
from muro.config import CoordinatorConfig
from muro.coordinator.service import Coordinator
from muro.errors import ConfigError
from muro.observe.log import TOLD
from muro.transport.wakeup import Wakeup
from muro.wire.failure import ExitCode, FailureRecord
from muro.wire.progress import SERVING

log = logging.getLogger(__name__)

_RELAYING = b"relaying"


def run_coordinator(context: ChildContext) -> int:
    """Target of a spawned child: run the coordinator of `context.payload`; returns the exit code."""
    config = msgspec.convert(context.payload, CoordinatorConfig)
    set_level(config.log_level)
    with Wakeup() as stop, StopSignals(stop.set):
        coordinator = Coordinator(config, stop, lambda: context.page.turns_to(_RELAYING, 0))
        code, phase = ExitCode.STARTUP_FAILED, "start"
        try:
            coordinator.open()
            context.page.set_phase(SERVING)
            code, phase = ExitCode.ENGINE_FAILED, "serving"
            coordinator.run()
            code = ExitCode.STOPPED
        except Exception as error:
            log.error("the coordinator failed: %s", error, exc_info=not isinstance(error, ConfigError), extra=TOLD)
            context.report_failure(FailureRecord.of(phase, error))
            code = ExitCode.CONFIG if isinstance(error, ConfigError) else code
        finally:
            coordinator.close()
    return code
