import signal
from typing import Any

import pytest

from muro.errors import ConfigError, CrashLoopError, EngineDeadError, MissingExtraError
from muro.launch.death import UNKNOWN_STATUS, Death
from muro.launch.restart import Decision
from muro.wire.failure import ExitCode, FailureRecord


def death(**changes: Any) -> Death:
    facts: dict[str, Any] = {
        "name": "engine 0 (echo)",
        "pid": 123,
        "status": 7,
        "phase": "loading",
        "seconds": 3.21,
        "log_tail": "reading weights\nout of luck",
    }
    return Death(**(facts | changes))


def test_startup_error_says_everything() -> None:
    error = death(status=-signal.SIGKILL).startup_error(0)
    assert str(error) == (
        "engine 0 (echo) did not start: it was killed by SIGKILL (the kernel kills so when memory runs out: see dmesg) "
        "in phase 'loading' after 3.2 s (pid 123). Last lines of its log:\nreading weights\nout of luck"
    )
    assert (error.rank, error.phase, error.pid, error.exit_status) == (0, "loading", 123, -9)
    assert error.log_tail == "reading weights\nout of luck"


def test_dead_error_says_everything() -> None:
    failure = FailureRecord.of("serving", ValueError("bad block"))
    error = death(status=10, failure=failure).dead_error(3, 2)
    assert str(error).startswith("engine 0 (echo) (generation 2) has died: it ended with exit code 10")
    assert "Cause: ValueError: bad block" in str(error)
    assert (error.rank, error.generation, error.pid, error.exit_status) == (3, 2, 123, 10)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (None, "it failed in phase"),
        (0, "it left with exit code 0 although nobody had asked it to"),
        (7, "it ended with exit code 7"),
        (UNKNOWN_STATUS, "collected by another part of this program"),
        (-signal.SIGSEGV, "it was killed by SIGSEGV"),
        (-signal.SIGABRT, "it was killed by SIGABRT"),
    ],
)
def test_how(status: int | None, words: str) -> None:
    assert words in death(status=status).how()


@pytest.mark.parametrize(
    ("decision", "kind", "words"),
    [
        (Decision(True, delay=0.1), EngineDeadError, "; it is being restarted"),
        (Decision(False, why="no failure"), EngineDeadError, "; it is not started again: no failure"),
        (Decision(False, crash_loop=True, why="too often"), CrashLoopError, "; it is not started again: too often"),
        (Decision(False), EngineDeadError, "(pid 123). Last lines"),
    ],
)
def test_what_follows_is_told(decision: Decision, kind: type[EngineDeadError], words: str) -> None:
    error = death(status=0).dead_error(0, 0, decision)
    assert type(error) is kind and words in error.message


def test_no_log_is_said_too() -> None:
    assert str(death(log_tail="").startup_error(0)).endswith("It wrote no log")


def test_a_wrong_setting_is_told_once() -> None:
    """The log has the same sentence."""
    failure = FailureRecord.of("loading", ConfigError("there is no option 'x'"))
    message = str(death(failure=failure).startup_error(0))
    assert message.endswith("Cause: ConfigError: there is no option 'x'")


@pytest.mark.parametrize("error", [ConfigError("no option 'x'"), MissingExtraError("engine 'openvino'", "openvino")])
def test_a_wrong_setting_is_one_before_its_process_has_ended(error: ConfigError) -> None:
    failure = FailureRecord.of("loading", error)
    assert death(status=None, failure=failure).startup_error(0).exit_status == ExitCode.CONFIG
    assert death(status=-9, failure=failure).startup_error(0).exit_status == -9
    assert death(status=None, failure=FailureRecord.of("loading", OSError("disk"))).startup_error(0).exit_status is None


def test_another_reason_replaces_the_ending() -> None:
    assert "did not start: no progress for 5 s. Last lines" in str(
        death(status=None).startup_error(0, "no progress for 5 s")
    )


def test_what_is_out_of_sight_is_nobodys_doing() -> None:
    lost = death(status=None, lost="its node has died", where="10.0.0.2")
    assert lost.how() == "it is lost: its node has died in phase 'loading' after 3.2 s (pid 123 on 10.0.0.2)"
    error = lost.dead_error(0, 1)
    assert (error.pid, error.exit_status) == (None, None)
    assert death(where="10.0.0.2").how().endswith("(pid 123 on 10.0.0.2)")
