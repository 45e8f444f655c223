"""An engine that logs and fails on command."""

import logging
import os

from muro.engine.interface import Report
from muro.testing.faulty import FaultyEngine, FaultyOptions

log = logging.getLogger("tests.chatty")


def chatty(options: FaultyOptions, report: Report) -> FaultyEngine:
    log.warning("loaded with MURO_CPUS=%s", os.environ.get("MURO_CPUS"))
    return FaultyEngine(options, report)
