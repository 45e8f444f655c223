"""Log records on their way from a child to its parent, and which of them the parent wants to have.

A child's records are logged in the parent as if they had been made there: by the same logger, at the same level, with
the child's name as `processName`; so they meet the levels, handlers and formats that the program has chosen, and
`logging.disable`. What the parent would not show is not even sent (`Thresholds`).

Pure but for looking at `logging`'s own state; who moves the bytes is not known here.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

MAX_RECORD_BYTES: Final = 32 << 10
_MAX_LOGGERS: Final = 2000
_MAX_NAME: Final = 200

TOLD: Final = {"muro_told": True}
"""As `extra` of a record: the parent learns of it otherwise, and needs not hear it twice."""


class Thresholds(msgspec.Struct, frozen=True):
    """From which level on a program's loggers let records through: its settings at one moment."""

    root: int = logging.WARNING
    disabled: int = 0
    """Up to this level nothing gets through (`logging.disable`)."""
    loggers: dict[str, int] = {}
    """Loggers with a level of their own."""

    @classmethod
    def now(cls) -> Thresholds:
        """Those of this process."""
        root = logging.getLogger()
        known = list(root.manager.loggerDict.copy().items())[:_MAX_LOGGERS]
        levels = {name: one.level for name, one in known if isinstance(one, logging.Logger) and one.level}
        return cls(root.level, root.manager.disable, levels)

    def of(self, name: str) -> int:
        """The lowest level that gets through a logger."""
        while name and name not in self.loggers:
            name = name.rpartition(".")[0]
        return max(self.disabled + 1, self.loggers.get(name, self.root) if name else self.root)


class LogWord(msgspec.Struct, frozen=True):
    """One record, as it travels."""

    name: str
    level: int
    message: str
    created: float
    process: int
    process_name: str
    thread_name: str
    path: str
    line: int
    function: str
    error: str | None = None
    """The traceback, as text."""
    dropped: int = 0
    """Records before this one that found no room."""

    def record(self) -> logging.LogRecord:
        """The record, as the parent logs it."""
        made = logging.makeLogRecord(
            {
                "name": self.name,
                "msg": self.message,
                "levelno": self.level,
                "levelname": logging.getLevelName(self.level),
                "pathname": self.path,
                "filename": self.path.rpartition("/")[2],
                "module": self.path.rpartition("/")[2].removesuffix(".py"),
                "lineno": self.line,
                "funcName": self.function,
                "created": self.created,
                "msecs": self.created % 1 * 1000,
                "process": self.process,
                "processName": self.process_name,
                "threadName": self.thread_name,
            }
        )
        made.exc_text = self.error
        return made


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LogWord)


def encode(record: logging.LogRecord, process_name: str, dropped: int = 0) -> bytes:
    """A record as at most `MAX_RECORD_BYTES` bytes; what is too long is cut."""
    error = record.exc_text
    if record.exc_info and not error:
        error = logging.Formatter().formatException(record.exc_info)
    if record.processName not in (None, "MainProcess"):
        process_name = f"{process_name}, {record.processName}"
    return _encoder.encode(
        LogWord(
            name=_cut(record.name, _MAX_NAME),
            level=record.levelno,
            message=_cut(record.getMessage(), MAX_RECORD_BYTES // 4),
            created=record.created,
            process=record.process or 0,
            process_name=_cut(process_name, _MAX_NAME),
            thread_name=_cut(record.threadName or "", _MAX_NAME),
            path=_cut(record.pathname, 5 * _MAX_NAME),
            line=record.lineno,
            function=_cut(record.funcName or "", _MAX_NAME),
            error=None if error is None else _cut(error, MAX_RECORD_BYTES // 2),
            dropped=dropped,
        )
    )


def decode(data: bytes) -> LogWord:
    """What `encode` made. Raises msgspec.DecodeError."""
    return _decoder.decode(data)


def _cut(text: str, size: int) -> str:
    """Text of at most so many bytes: its beginning and its end."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) > size:
        data = data[: size // 2 - 8] + b" [...] " + data[8 - size // 2 :]
    return data.decode("utf-8", "replace")
