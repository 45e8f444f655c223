"""`muro wire check` finds what is wrong with each broken peer, and nothing wrong with ours."""

import json
from pathlib import Path
from typing import Any

import pytest

from muro.probe.check import Outcome, Report, check_engine, check_frontend
from muro.probe.check.engine_exam import Patience
from muro.probe.recording import Role
from muro.testing.broken import BROKEN_ENGINES, BROKEN_FRONTENDS
from tests.support.asking import ask, output
from tests.support.broken import CORRECT_ENGINE, CORRECT_FRONTEND, SOURCES, handshake_address, peer
from tests.support.counts import half
from tests.support.elsewhere import engine_elsewhere, free_port
from tests.support.programs import line, run
from tests.support.server import Server
from tests.support.wires import TO_FRONTEND, added, gave, joining, record, recording_of

SHORT = Patience(hello=2.0, loading=2.0, answer=2.0)
"""For peers that are broken: silence costs so much."""
LONG = Patience(hello=20.0, loading=20.0, answer=10.0)
STARTS = Patience(hello=20.0, loading=2.0, answer=2.0)
"""For broken engines that say HELLO, once their interpreter has started."""


def failures(report: Report) -> set[str]:
    return {finding.case.name for finding in report.failures}


def not_asked(report: Report) -> set[str]:
    return {finding.case.name for finding in report.findings if finding.outcome is Outcome.NOT_ASKED}


def examine_engine(name: str, patience: Patience, **settings: Any) -> Report:
    with handshake_address() as address, peer(name, address) as process:
        return check_engine(address, patience=patience, pid=process.pid, **settings)


def examine_frontend(name: str, patience: Patience) -> Report:
    with handshake_address() as address, peer(name, address) as process:
        return check_frontend(address, http=line(process), patience=patience)


@pytest.mark.cases
@pytest.mark.parametrize("name", half(BROKEN_ENGINES))
def test_a_broken_engine_is_found(name: str) -> None:
    report = examine_engine(name, SHORT if name == "silent" else STARTS)
    assert failures(report) == set(BROKEN_ENGINES[name].cases), str(report)


@pytest.mark.cases
@pytest.mark.parametrize("name", half(BROKEN_FRONTENDS))
def test_a_broken_front_end_is_found(name: str) -> None:
    report = examine_frontend(name, SHORT)
    assert failures(report) == set(BROKEN_FRONTENDS[name].cases), str(report)


def test_every_case_of_a_front_end_can_fail() -> None:
    from muro.probe.check.frontend import FRONTEND_CASES

    found = {case for broken in BROKEN_FRONTENDS.values() for case in broken.cases}
    assert {case.name for case in FRONTEND_CASES} - found == set()


def test_a_correct_engine_passes_everything() -> None:
    report = examine_engine(CORRECT_ENGINE, LONG)
    assert report.passed, str(report)
    assert not_asked(report) == {"death_notice"}


def test_a_correct_front_end_passes_everything() -> None:
    report = examine_frontend(CORRECT_FRONTEND, LONG)
    assert report.passed, str(report)
    assert not_asked(report) == {"call_ids"}, "it calls nothing"


def test_without_users_only_what_is_seen_is_judged() -> None:
    with handshake_address() as address, peer(CORRECT_FRONTEND, address) as process:
        line(process)
        report = check_frontend(address, patience=LONG)
    assert report.passed, str(report)
    assert {"completion", "leaving", "death"} <= not_asked(report)


@pytest.mark.parametrize(
    ("engine", "options", "unasked"),
    [
        ("echo", {}, {"seed", "stop_token", "eos", "min_tokens", "logprobs", "stats"}),
        ("sim", {"tokens": "sampled", "max_model_len": 4096}, set()),
    ],
)
def test_our_engines_pass(engine: str, options: dict[str, Any], unasked: set[str]) -> None:
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    with engine_elsewhere(address, engine, options=options) as process:
        report = check_engine(address, patience=LONG, pid=process.pid)
    assert report.passed, str(report)
    assert not_asked(report) - {"death_notice"} == unasked, str(report)


def test_our_front_end_passes() -> None:
    port = free_port()
    http = free_port()
    with Server("--engine", "echo", "-dpl", "0", "-dpp", str(port), "--port", str(http)):
        report = check_frontend(f"tcp://127.0.0.1:{port}", http=f"http://127.0.0.1:{http}", patience=LONG)
    assert report.passed, str(report)
    assert not_asked(report) == {"call_ids"}, str(report)


def test_the_command_prints_a_table_and_says_with_its_code_how_it_went() -> None:
    with handshake_address() as address, peer("one-too-many", address):
        done = run(["-m", "muro", "wire", "check", "--engine", address, "--patience", "2"], PYTHONPATH=SOURCES)
    assert done.code == 1, done.err
    (row,) = [line for line in done.out.splitlines() if line.startswith("does not")]
    assert "max_tokens" in row
    assert "seen: 2 tokens and LENGTH for max_tokens=1" in done.out
    assert "1 do not (max_tokens)" in done.out


def test_the_command_prints_json() -> None:
    with handshake_address() as address, peer(CORRECT_ENGINE, address):
        done = run(["-m", "muro", "wire", "check", "--engine", address, "--json"], PYTHONPATH=SOURCES)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["passed"] and {"case", "must", "why", "outcome", "seen"} == set(found["cases"][0])


def test_a_recording_is_judged(tmp_path: Path) -> None:
    good = [*joining(), added(ask("r")), gave(output("r", 7))]
    (tmp_path / "good").write_bytes(recording_of(good))
    (tmp_path / "bad").write_bytes(recording_of([*good, record(Role.OUTPUT, TO_FRONTEND, b"")]))
    done = run(["-m", "muro", "wire", "check", "--recording", str(tmp_path / "good"), "--release", "0.33"])
    assert done.code == 0, done.out
    done = run(["-m", "muro", "wire", "check", "--recording", str(tmp_path / "bad"), "--release", "0.33"])
    assert done.code == 1 and "1 do not (readable)" in done.out


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--engine", "ipc:///tmp/a", "--frontend", "ipc:///tmp/b"],
        ["--engine", "nowhere"],
        ["--engine", "tcp://0.0.0.0:1234"],
        ["--engine", "ipc:///tmp/a", "--http", "http://127.0.0.1:1"],
        ["--frontend", "ipc:///tmp/a", "--http", "ftp://x"],
        ["--frontend", "ipc:///tmp/a", "--skip", "nonsense"],
        ["--engine", "ipc:///tmp/a", "--release", "0.1"],
        ["--engine", "ipc:///tmp/a", "--recording", "rec"],
        ["--recording", "nowhere"],
        ["--recording", "rec", "--patience", "1"],
    ],
)
def test_settings_that_make_no_sense(flags: list[str]) -> None:
    done = run(["-m", "muro", "wire", "check", *flags], PYTHONPATH=SOURCES)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("muro: ")


def test_broken_peers_are_listed() -> None:
    done = run(["-m", "muro.testing.broken"], PYTHONPATH=SOURCES)
    assert done.code == 0
    assert all(name in done.out for name in (*BROKEN_ENGINES, *BROKEN_FRONTENDS))
    assert len(BROKEN_ENGINES) + len(BROKEN_FRONTENDS) >= 20


def test_a_broken_peer_that_is_not_there() -> None:
    done = run(["-m", "muro.testing.broken", "unbroken", "ipc:///tmp/x"], PYTHONPATH=SOURCES)
    assert done.code == 2
    assert "no broken peer 'unbroken'" in done.err
