"""What a child is given by its parent, and where it leaves word of a failure.

Values and descriptors only: `launch.spawn` fills them in, `child.boot` opens them and hands a `ChildContext`
to the target. No signals and no threads here.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from muro.errors import RemoteProtocolError
from muro.observe.log import Thresholds
from muro.transport.page import ProgressPage
from muro.wire.failure import MAX_RECORD_BYTES, FailureRecord


class ChildConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of one child; travels as JSON through an inherited descriptor."""

    target: str
    """What to call, as "module:function"."""
    name: str
    """In people's words, for instance "engine 0 (echo)"."""
    parent_pid: int
    lifeline_fd: int
    """Read end of the silent pipe whose closing ends the child."""
    failure_fd: int
    """Memory file for one `FailureRecord`."""
    page_fd: int
    """Memory file with the progress page."""
    log_fd: int
    """Another descriptor of the memory file behind standard output and error."""
    records_fd: int = -1
    """Socket for log records that the parent wants to have."""
    thresholds: Thresholds = Thresholds()
    """Which ones those are."""
    report_fd: int
    """Pipe on which the child's warden reports; the child itself closes it."""
    tree: str
    """Token in the environment of the child and of all that it starts."""
    sys_path: list[str]
    payload: dict[str, Any]
    """The target's own settings; opaque here."""
    lent: dict[str, int] = {}
    """Further descriptors that were inherited, by name; the target's."""


class ChildContext:
    """Given to the target of a child process."""

    def __init__(self, config: ChildConfig, page: ProgressPage) -> None:
        self.config = config
        self.page = page

    @property
    def payload(self) -> dict[str, Any]:
        """The target's own settings, as plain JSON values."""
        return self.config.payload

    def report_failure(self, record: FailureRecord) -> None:
        """Leave word for the parent. The first record stays: what fails later is usually a consequence."""
        if os.fstat(self.config.failure_fd).st_size == 0:
            os.pwrite(self.config.failure_fd, record.encode(), 0)


def open_context(config: dict[str, Any]) -> ChildContext:
    """Make the context of a child from its decoded configuration; maps the progress page."""
    settings = msgspec.convert(config, ChildConfig)
    return ChildContext(settings, ProgressPage.attach(settings.page_fd))


def read_failure(descriptor: int) -> FailureRecord | None:
    """The failure record in a memory file, or None if there is none, or none that is whole."""
    data = os.pread(descriptor, MAX_RECORD_BYTES, 0)
    if not data:
        return None
    try:
        return FailureRecord.decode(data)
    except RemoteProtocolError:
        return None
