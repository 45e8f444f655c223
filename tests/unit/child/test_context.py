import os
from collections.abc import Iterator

import msgspec
import pytest

from muro.child.context import ChildConfig, open_context, read_failure
from muro.transport.page import ProgressPage
from muro.wire.failure import FailureRecord


@pytest.fixture
def record_file() -> Iterator[int]:
    descriptor = os.memfd_create("record")
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def page() -> Iterator[ProgressPage]:
    page = ProgressPage.create()
    yield page
    page.close()


def config(record_file: int, page_fd: int) -> ChildConfig:
    return ChildConfig(
        target="module:function",
        name="engine 0",
        parent_pid=os.getppid(),
        lifeline_fd=-1,
        failure_fd=record_file,
        page_fd=page_fd,
        log_fd=2,
        report_fd=-1,
        tree="0123",
        sys_path=["/"],
        payload={"engine": "echo"},
    )


def test_open_context(record_file: int, page: ProgressPage) -> None:
    values = msgspec.to_builtins(config(record_file, os.dup(page.fileno())))
    context = open_context(values)
    assert context.payload == {"engine": "echo"}
    context.page.set_phase("loading", 30)
    assert page.read().phase == "loading"
    assert page.read().percent == 30
    assert page.read().pid == os.getpid()
    context.page.close()


def test_a_wrong_configuration_is_refused(record_file: int, page: ProgressPage) -> None:
    values = msgspec.to_builtins(config(record_file, page.fileno()))
    del values["parent_pid"]
    with pytest.raises(msgspec.ValidationError, match="parent_pid"):
        open_context(values)


def test_the_first_failure_stays(record_file: int, page: ProgressPage) -> None:
    context = open_context(msgspec.to_builtins(config(record_file, os.dup(page.fileno()))))
    assert read_failure(record_file) is None
    context.report_failure(FailureRecord.of("loading", ValueError("the cause")))
    context.report_failure(FailureRecord.of("exit", RuntimeError("a consequence, and a much longer text")))
    record = read_failure(record_file)
    assert record is not None
    assert (record.phase, record.kind, record.message) == ("loading", "ValueError", "the cause")
    context.page.close()


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"phase": 1}', b"\xff\xfe", b"\0" * 100])
def test_half_a_record_is_none(record_file: int, data: bytes) -> None:
    os.write(record_file, data)
    assert read_failure(record_file) is None
