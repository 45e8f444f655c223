"""Real children: how they are started, how they end, what is told of it, and what is left (nothing)."""

import json
import logging
import os
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from muro.child.logring import CAPACITY
from muro.errors import ConfigError, StartupError
from muro.launch.shutdown import stop
from muro.launch.spawn import Child, spawn
from tests.support.children import TARGETS
from tests.support.counts import count
from tests.support.deadline import process_ended, until

ROOT = Path(__file__).parents[2]


class Nursery:
    """Spawns targets of `tests.support.children` and closes them at the end."""

    def __init__(self) -> None:
        self.children: list[Child] = []

    def __call__(self, target: str, *, env: dict[str, str] | None = None, **payload: Any) -> Child:
        child = spawn(f"{TARGETS}:{target}", payload, name=f"engine 0 ({target})", title=["--word"], env=env)
        self.children.append(child)
        return child


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    stop(nursery.children, 0, force=True)


def in_phase(child: Child, phase: str) -> None:
    until(lambda: child.progress().phase == phase, what=f"{child} in phase {phase!r}: {child.log_tail()}")


def facts(nursery: Nursery, **more: Any) -> dict[str, Any]:
    child = nursery("describe", flags=[], **more)
    assert child.wait(20)
    told: dict[str, Any] = json.loads(child.log_tail(1))
    return told


# --- How it ends -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["return_code", "exit_hard"])
def test_exit_code(nursery: Nursery, target: str) -> None:
    child = nursery(target, code=7)
    assert child.wait(20)
    assert child.poll() == child.poll() == 7
    assert child.failure() is None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM])
def test_signal(nursery: Nursery, number: signal.Signals) -> None:
    child = nursery("die_by", signal=int(number), phase="loading")
    assert child.wait(20)
    death = child.death()
    assert (death.status, death.phase) == (-number, "loading")
    assert number.name in death.how()
    assert "last words" in death.log_tail


def test_a_native_fault_shows_where(nursery: Nursery) -> None:
    child = nursery("fault")
    assert child.wait(20)
    assert child.poll() == -signal.SIGSEGV
    assert "Segmentation fault" in child.log_tail()
    assert "in fault" in child.log_tail()


def test_an_exception_is_recorded(nursery: Nursery) -> None:
    child = nursery("raise_error", message="no weights \udcff")
    assert child.wait(20)
    record = child.failure()
    assert record is not None
    assert (record.kind, record.message) == ("RuntimeError", "no weights \\udcff")
    assert "raise RuntimeError" in record.traceback
    assert child.poll() == 10


def test_the_targets_own_record_stays(nursery: Nursery) -> None:
    child = nursery("report_then_raise")
    assert child.wait(20)
    assert child.death().phase == "loading"
    assert "the cause" in str(child.death().startup_error(0))


@pytest.mark.parametrize("target", ["tests.support.absent:run", f"{TARGETS}:absent"])
def test_a_target_that_cannot_be_imported(target: str) -> None:
    child = spawn(target, {})
    assert child.wait(20)
    error = child.death().startup_error(0)
    assert (error.exit_status, error.phase) == (11, "boot")
    assert "absent" in str(error)
    child.close()


def test_a_child_that_cannot_import_muro_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muro.launch.spawn.import_path", lambda: [sysconfig.get_path("stdlib")])
    child = spawn(f"{TARGETS}:describe", {})
    assert child.wait(20)
    record = child.failure()
    assert record is not None
    assert (record.phase, record.message) == ("boot", "No module named 'muro'")
    child.close()


def test_terminate_is_heard(nursery: Nursery) -> None:
    child = nursery("stop_politely")
    in_phase(child, "waiting")
    child.terminate()
    assert child.wait(20)
    assert child.poll() == 1  # signals that it has counted


def test_stop_kills_who_does_not_hear(nursery: Nursery) -> None:
    child = nursery("ignore_term")
    in_phase(child, "waiting")
    assert stop([child], 0.1) == [-signal.SIGKILL]


def test_who_is_stopped_hears_of_it_too(nursery: Nursery) -> None:
    child = nursery("stop_politely")
    in_phase(child, "waiting")
    os.kill(child.pid, signal.SIGSTOP)
    assert stop([child], 20) == [1]  # signals that it has counted


def test_descendants_end_with_the_child(nursery: Nursery) -> None:
    killed, left = nursery("start_descendant"), nursery("start_descendant", code=0)
    assert left.wait(20)
    descendants = [int(until(child.log_tail)) for child in (killed, left)]
    killed.close()
    for pid in descendants:
        process_ended(pid)


def test_close_ends_a_living_child_and_may_come_twice(nursery: Nursery) -> None:
    child = nursery("wait_for_signal")
    in_phase(child, "waiting")
    child.close()
    child.close()
    assert child.poll() == -signal.SIGKILL
    assert child.wait(0)
    assert (child.sentinel, child.log_tail(), child.failure()) == (-1, "", None)
    child.terminate()
    child.kill()


def test_another_thread_may_close_while_one_waits(nursery: Nursery) -> None:
    child = nursery("wait_for_signal")
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(child.wait, 20) for _ in range(3)]
        in_phase(child, "waiting")
        pool.submit(child.close).result()
        assert [future.result() for future in waiting] == [True] * 3


def test_wait_gives_up_in_time(nursery: Nursery) -> None:
    assert not nursery("wait_for_signal").wait(0.01)


# --- What it is given --------------------------------------------------------------------------------------------


def test_it_has_our_path_and_its_own_group(nursery: Nursery) -> None:
    told = facts(nursery)
    assert told["path"] == [os.path.abspath(entry) for entry in sys.path]
    assert told["group"]
    assert told["main"].endswith("child/boot.py")
    assert told["argv"][1:3] == [f"{TARGETS}:describe", "--word"]
    assert told["heavy"] == []


def test_no_descriptor_leaks_into_it(nursery: Nursery) -> None:
    ours = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(ours, True)
    try:
        told = facts(nursery)
    finally:
        os.close(ours)
    kinds = {target.partition(" ")[0].partition(":[")[0] for number, target in told["descriptors"] if number > 2}
    memory = {f"/memfd:muro-{what}" for what in ("failure", "progress", "log")}
    assert kinds == memory | {"pipe", "anon_inode", "socket"}
    assert len([target for _, target in told["descriptors"] if target.startswith("pipe")]) == 1
    assert told["inheritable"] == []


def test_environment_and_signal_mask(nursery: Nursery) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        told = facts(nursery, env={"MURO_TEST_WORD": "x y"}, names=["MURO_TEST_WORD", "HOME"])
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    assert told["blocked"] == []
    assert told["env"] == {"MURO_TEST_WORD": "x y", "HOME": os.environ.get("HOME")}


def test_payload_must_be_plain() -> None:
    with pytest.raises(ConfigError, match="the settings of engine 5 must be plain JSON"):
        spawn(f"{TARGETS}:describe", {"x": object()}, name="engine 5")


def test_an_interpreter_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(StartupError, match=r"engine 5 did not start: no process .*'/nonexistent/python'"):
        spawn(f"{TARGETS}:describe", {}, name="engine 5")


# --- Whose process it is -----------------------------------------------------------------------------------------


@pytest.mark.cases
def test_from_another_thread_with_handlers_untouched() -> None:
    handlers = [signal.getsignal(number) for number in range(1, signal.NSIG)]

    def life() -> int | None:
        child = spawn(f"{TARGETS}:stop_politely", {})
        in_phase(child, "waiting")
        return stop([child], 20)[0]

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(life).result() == 1
    assert [signal.getsignal(number) for number in range(1, signal.NSIG)] == handlers


@pytest.mark.cases
def test_from_a_busy_parent_with_twenty_threads(nursery: Nursery) -> None:
    quiet = logging.getLogger("tests.busy")
    quiet.addHandler(logging.NullHandler())
    quiet.propagate = False
    done = threading.Event()

    def busy() -> None:
        while not done.wait(0.001):
            quiet.warning("logging, importing, allocating")
            __import__("json.tool")
            subprocess.list2cmdline(["x"] * 100)

    threads = [threading.Thread(target=busy) for _ in range(20)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(count(3, 50)):
            child = nursery("return_code", code=3)
            assert child.wait(30)
            assert child.poll() == 3
    finally:
        done.set()
        for thread in threads:
            thread.join()


# --- Logs --------------------------------------------------------------------------------------------------------


@pytest.mark.cases
@pytest.mark.parametrize("megabytes", [10, 16, 200])
def test_a_burst_of_native_words_is_refused_nothing(nursery: Nursery, megabytes: int) -> None:
    child = nursery("write_natively", bytes=megabytes * 1_000_000)
    assert child.wait(30)
    assert child.poll() == 0, child.log_tail()
    assert "x" * 99 in child.log_tail().splitlines()
    log = child._parts.log
    # If a lap began at that moment, its place may have changed; and the lap may still be going on.
    until(lambda: b"the end\n" in os.pread(log, os.lseek(log, 0, os.SEEK_CUR), 0))


@pytest.mark.parametrize("target", ["write_holding_lock", "print_lines"])
def test_memory_stays_bounded(nursery: Nursery, target: str) -> None:
    child = nursery(target, bytes=100_000_000, lines=count(50_000, 1_000_000))
    assert child.wait(60)
    assert child.poll() == 0
    log = child._parts.log
    assert os.fstat(log).st_blocks * 512 <= CAPACITY
    assert 1 <= len(child.log_tail().splitlines()) <= 20


def test_the_last_printed_line_is_there(nursery: Nursery) -> None:
    child = nursery("print_lines", lines=30_000)  # two laps
    assert child.wait(60)
    assert child.log_tail(2).splitlines()[-1].startswith("line 29999 ")


def test_new_log(nursery: Nursery) -> None:
    child = nursery("die_by", signal=9)
    said = ""
    while not child.wait(0.01):
        said += child.new_log()
    assert said + child.new_log() == "last words\n"
    assert child.new_log() == ""


@pytest.mark.parametrize(("target", "phase"), [("hold_lock", "holding"), ("wait_for_signal", "waiting")])
def test_a_hanging_child_shows_where(nursery: Nursery, target: str, phase: str) -> None:
    child = nursery(target)
    in_phase(child, phase)
    child.dump_stack()
    assert f"in {target}" in child.log_tail()
    assert child.poll() is None


def test_what_is_lent_is_there_under_its_name_and_goes_no_further() -> None:
    read_end, write_end = os.pipe()
    try:
        child = spawn(f"{TARGETS}:describe", {"flags": []}, name="engine 0", lent={"pipe": read_end})
        try:
            assert child.wait(20)
            told = json.loads(child.log_tail(1))
        finally:
            stop([child], 0, force=True)
        lent = dict(told["descriptors"])[told["lent"]["pipe"]]
        assert lent == os.readlink(f"/proc/self/fd/{read_end}")
        assert told["inheritable"] == [] and list(told["lent"]) == ["pipe"]
    finally:
        os.close(read_end)
        os.close(write_end)
