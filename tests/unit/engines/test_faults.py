"""Faults: how they are written, and those that leave the process alive. The others are in tests/process."""

import threading
import time

import pytest

from muro.engines.faults import KINDS, PLACES, Fault, FaultError, commit, parse_fault
from muro.errors import ConfigError, InvalidRequestError
from tests.support.deadline import until


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("step:raise", Fault("step", "raise")),
        ("loading:exit=7", Fault("loading", "exit", "7")),
        ("add:signal=SIGKILL", Fault("add", "signal", "SIGKILL")),
        ("step:thread=a=b", Fault("step", "thread", "a=b")),
        ("output:garble=", Fault("output", "garble")),
    ],
)
def test_reading_a_fault(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_known_at_every_place(place: str, kind: str) -> None:
    argument = "1" if kind in ("signal", "exit", "sleep", "thread") else ""
    assert parse_fault(f"{place}:{kind}={argument}") == Fault(place, kind, argument)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("stepp:raise", "the place is one of construct, loading"),
        ("", "the place is one of"),
        ("step", "the kind is one of raise, refuse"),
        ("step:explode", "the kind is one of"),
        ("step=raise", "the place is one of"),
        ("explode", "the kind is one of"),
        ("step:signal=SIGFOO", "signal= takes a signal's number or name, such as SIGKILL; found 'SIGFOO'"),
        ("step:signal=999", "signal= takes"),
        ("step:exit=soon", "exit= takes a number"),
        ("step:sleep=long", "sleep= takes seconds"),
        ("step:sleep=-1", "sleep= takes seconds"),
        ("step:sleep=nan", "sleep= takes seconds"),
        ("step:thread", "thread= takes a thread's name, such as muro-sender; found ''"),
        ("step:raise=3", "raise= takes nothing; found '3'"),
    ],
)
def test_what_is_no_fault_is_told_what_there_is(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_fault(text)


def test_raise() -> None:
    with pytest.raises(FaultError, match="asked for in step"):
        commit(parse_fault("step:raise"))


def test_refuse_names_the_request() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        commit(parse_fault("step:refuse"), "a")
    assert caught.value.request_id == "a"


def test_sleep() -> None:
    started = time.monotonic()
    commit(parse_fault("step:sleep=0.02"))
    assert time.monotonic() - started >= 0.02


@pytest.mark.parametrize("kind", ["executor", "garble"])
def test_what_needs_the_engine_is_left_to_it(kind: str) -> None:
    commit(Fault("step", kind))


def test_a_thread_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    died: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: died.append(args.exc_type))
    leave = threading.Event()
    thread = threading.Thread(target=lambda: [leave.wait(0.001) for _ in iter(leave.is_set, True)], name="victim")
    thread.start()
    try:
        commit(parse_fault("step:thread=victim"))
        until(lambda: not thread.is_alive())
    finally:
        leave.set()
        thread.join()
    assert died == [FaultError]


def test_a_thread_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"no thread 'nobody'; there are: .*MainThread"):
        commit(parse_fault("step:thread=nobody"))
