"""Logging in a child: everything goes to its log, and what the parent wants to have goes to the parent, too.

The way to the parent is a socket that keeps records whole. It never blocks: what finds no room is dropped and counted,
and the next record that gets through says how many were. See `observe.log` for what is sent, `launch.logs` for the
other end.
"""

from __future__ import annotations

import logging
import os
import sys

from muro.observe.log import Thresholds, encode

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class ForwardHandler(logging.Handler):
    """Sends records to the parent.

    Args:
        descriptor: a socket of packets that does not block.
        thresholds: the parent's.
        process_name: what the parent calls this process.
    """

    def __init__(self, descriptor: int, thresholds: Thresholds, process_name: str) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._thresholds = thresholds
        self._process_name = process_name
        self._wanted: dict[str, int] = {}
        self.dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        if not self._is_wanted(record):
            return
        try:
            os.write(self._descriptor, encode(record, self._process_name, self.dropped))
            self.dropped = 0
        except OSError:  # no room, or nobody reads any more
            self.dropped += 1
        except Exception:
            self.handleError(record)

    def _is_wanted(self, record: logging.LogRecord) -> bool:
        level = self._wanted.get(record.name)
        if level is None:
            level = self._wanted[record.name] = self._thresholds.of(record.name)
        return record.levelno >= level and not getattr(record, "muro_told", False)


def configure(descriptor: int, thresholds: Thresholds, process_name: str) -> None:
    """Set this process's logging up, before anything else can log."""
    here = logging.StreamHandler(sys.stderr)
    here.setFormatter(logging.Formatter(FORMAT))
    root = logging.getLogger()
    root.addHandler(here)
    root.addHandler(ForwardHandler(descriptor, thresholds, process_name))
    root.setLevel(thresholds.root)
    for name, level in thresholds.loggers.items():
        logger = logging.getLogger(name)
        if level < logger.getEffectiveLevel():  # only so that they are made; the handler knows what is wanted
            logger.setLevel(level)


def set_level(name: str) -> None:
    """What the child's own log shall hold at least, by the name of a level; the parent gets no more for it."""
    root = logging.getLogger()
    root.setLevel(min(root.level, logging.getLevelNamesMapping().get(name.upper(), logging.INFO)))
