"""`muro wire show` as its users run it."""

import subprocess
import sys
from pathlib import Path

from tests.support.asking import ask, output
from tests.support.programs import ROOT, environment, run
from tests.support.wires import added, gave, joining, recording_of


def written(path: Path, count: int = 1) -> Path:
    news = [one for n in range(count) for one in (added(ask(f"r{n}")), gave(output(f"r{n}", 7)))]
    path.write_bytes(recording_of([*joining(), *news]))
    return path


def show(*arguments: object) -> "tuple[int, list[str], str]":
    done = run(["-m", "muro", "wire", "show", *map(str, arguments)])
    return done.code, done.out.splitlines(), done.err


def test_a_recording_in_lines(tmp_path: Path) -> None:
    code, lines, err = show(written(tmp_path / "rec"))
    assert (code, err) == (0, "")
    assert lines[0].startswith("recorded 2023-11-14") and len(lines) == 7
    assert len(show(tmp_path / "rec", "--request", "r0")[1]) == 3
    assert len(show(tmp_path / "rec", "--kind", "hello", "--kind", "init")[1]) == 3
    assert len(show(tmp_path / "rec", "--release", "0.25")[1]) == 7


def test_who_asks_for_what_is_not_there_is_told(tmp_path: Path) -> None:
    path = written(tmp_path / "rec")
    for flags in (("--request", "r7"), ("--kind", "call"), ("--request", "r7", "--json")):
        code, lines, err = show(path, *flags)
        assert (code, len(lines)) == (0, 0 if "--json" in flags else 1) and err.startswith("no message is of")
    assert show(path, "--kind", "add")[2] == ""


def test_a_recording_that_was_cut_off_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    path = written(tmp_path / "rec")
    path.write_bytes(path.read_bytes()[:-1])
    code, lines, err = show(path)
    assert (code, len(lines)) == (0, 6) and "ends in the midst of a record" in err


def test_what_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("words")
    assert show(tmp_path / "text")[0] == 2
    assert show(tmp_path / "nothing")[0] == 2
    code, _, err = show(written(tmp_path / "rec"), "--kind", "words")
    assert code == 2 and "there is hello, init" in err
    assert show(tmp_path / "rec", "--release", "0.1")[0] == 2


def test_a_reader_that_has_seen_enough_may_go(tmp_path: Path) -> None:
    path = written(tmp_path / "rec", 5000)
    command = [sys.executable, "-m", "muro", "wire", "show", str(path)]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()
        assert process.wait(20) in (0, 1)
