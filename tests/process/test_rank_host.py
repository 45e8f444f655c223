"""The host of a rank and its handle, with a real engine's process between them; the cluster is a call."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import version

import msgspec
import pytest

from muro.cluster.handle import RankHandle
from muro.cluster.host import RankHost
from muro.cluster.report import Order
from muro.errors import ConfigError
from muro.observe.log import Thresholds
from tests.support.children import TARGETS
from tests.support.deadline import until


class SamePlace:
    """A `cluster.place.Place`: the host is called as a function, in the caller's thread."""

    words, where = "a place here", "localhost"

    def __init__(self) -> None:
        self.host = RankHost()

    def ask(self) -> None:
        pass

    def is_given(self, timeout: float) -> bool:
        return True

    def occupy(self) -> None:
        pass

    def call(self, method: str, *arguments: bytes) -> bytes:
        return getattr(self.host, method)(*arguments) or b""

    def answer(self, call: bytes, timeout: float) -> bytes:
        return call

    def leave(self) -> None:
        pass


def order(target: str, name: str = "engine 4", **payload: object) -> Order:
    return Order(
        version=version("muro"),
        target=f"{TARGETS}:{target}",
        payload=payload,
        title=[],
        env={},
        name=name,
        generation=0,
        thresholds=Thresholds.now(),
    )


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def started(stack: ExitStack, order: Order) -> RankHandle:
    handle = RankHandle(order, SamePlace()).open()
    stack.callback(handle.close)
    return handle


def test_a_kill_is_told_with_its_status_phase_and_log(stack: ExitStack) -> None:
    handle = started(stack, order("die_by", signal=int(signal.SIGKILL), phase="loading"))
    assert handle.wait(10) and handle.poll() == -signal.SIGKILL
    death = handle.death()
    assert (death.phase, death.log_tail, death.failure) == ("loading", "last words", None)


def test_a_failure_is_told_before_the_end(stack: ExitStack) -> None:
    handle = started(stack, order("report_and_hang"))
    record = until(handle.failure, within=10)
    assert (record.kind, record.message) == ("ValueError", "bad block size")
    assert handle.poll() is None


def test_stop_stack_and_kill(stack: ExitStack) -> None:
    polite = started(stack, order("stop_politely"))
    until(lambda: polite.progress().phase == "waiting", within=10)
    polite.terminate()
    assert polite.wait(10) and polite.poll() == 1
    stuck = started(stack, order("hold_lock"))
    until(lambda: stuck.progress().phase == "holding", within=10)
    assert "hold_lock" in stuck.dump_stack()
    stuck.kill()
    assert stuck.wait(10) and stuck.poll() == -signal.SIGKILL


def test_what_it_logs_is_logged_here(stack: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        handle = started(stack, order("log_and_end"))
        assert handle.wait(10)
    (record,) = [record for record in caplog.records if record.name == "tests.far"]
    assert (record.getMessage(), record.processName, record.levelname) == ("from afar", "engine 4", "WARNING")


def test_what_it_has_started_goes_with_it(stack: ExitStack) -> None:
    handle = started(stack, order("start_descendant"))
    until(lambda: handle.death().log_tail, within=10)
    handle.close()  # the fixtures see to it that nothing is left
    assert handle.sentinel == -1


def test_another_muro_is_refused() -> None:
    other = msgspec.structs.replace(order("return_code"), version="0.0.1")
    with pytest.raises(ConfigError, match=r"the front-end 0\.0\.1"):
        RankHost().start(msgspec.msgpack.encode(other))
