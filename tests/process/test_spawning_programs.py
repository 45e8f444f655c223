"""Whole programs that start children: scripts of every kind, under flags, with odd surroundings."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from muro.launch.death import UNKNOWN_STATUS
from tests.support.children import TARGETS
from tests.support.deadline import process_ended

ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys
import beside
from muro.launch.spawn import spawn
print("main runs", flush=True)
child = spawn("beside:target", {{"flags": {flags!r}}})
child.wait(30)
print(child.log_tail(1), flush=True)
child.close()
"""
BESIDE = """
import json, sys
def target(context):
    flags = {name: getattr(sys.flags, name) for name in context.payload["flags"]}
    print(json.dumps([flags, sys._xoptions, sys.warnoptions]), flush=True)
"""
FLAGS = ["optimize", "dont_write_bytecode", "utf8_mode", "isolated", "ignore_environment", "no_user_site", "dev_mode"]


def run(arguments: list[str], directory: Path, text: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        input=text,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a script with a module beside it."""

    def write(source: str) -> Path:
        (tmp_path / "beside.py").write_text(BESIDE)
        path = tmp_path / "script.py"
        path.write_text(source)
        return path

    return write


@pytest.mark.cases
@pytest.mark.parametrize("how", ["file", "stdin", "-c"])
def test_a_script_without_main_guard(script: Callable[[str], Path], how: str) -> None:
    source = SCRIPT.format(flags=[])
    path = script(source)
    arguments = {"file": [str(path)], "stdin": ["-"], "-c": ["-c", source]}[how]
    done = run(arguments, path.parent, source if how == "stdin" else None)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["main runs", "[{}, {}, []]"]


@pytest.mark.parametrize(
    "options", [["-O"], ["-OO", "-B"], ["-X", "utf8", "-X", "faulthandler"], ["-E", "-s"], ["-X", "dev", "-Wdefault"]]
)
def test_flags_are_carried_over(script: Callable[[str], Path], options: list[str]) -> None:
    path = script(SCRIPT.format(flags=FLAGS))
    done = run([*options, str(path)], path.parent)
    assert (done.returncode, done.stderr) == (0, "")
    own = run(
        [*options, "-c", f"import sys; {BESIDE}\nclass c: payload = {{'flags': {FLAGS}}}\ntarget(c)"], path.parent
    )
    assert done.stdout.splitlines()[1] == own.stdout.strip()


def test_an_isolated_interpreter(script: Callable[[str], Path]) -> None:
    path = script(SCRIPT.format(flags=FLAGS))
    path.write_text(f"import sys; sys.path.insert(0, {str(path.parent)!r})\n" + path.read_text())
    done = run(["-I", str(path)], path.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout.splitlines()[1])[0]["isolated"] == 1


@pytest.mark.cases
@pytest.mark.parametrize(("ending", "code"), [("", 0), ("sys.exit(3)", 3), ("raise SystemExit(4)", 4), ("1 / 0", 1)])
def test_a_script_that_forgets_its_child(script: Callable[[str], Path], ending: str, code: int) -> None:
    source = (
        f"import sys\nfrom muro.launch.spawn import spawn\n"
        f"child = spawn('{TARGETS}:wait_for_signal', {{}})\nprint(child.pid, flush=True)\n{ending}\n"
    )
    done = run([str(script(source))], ROOT, PYTHONPATH=str(ROOT))
    assert done.returncode == code
    assert done.stderr.count("Traceback") == (ending == "1 / 0")
    process_ended(int(done.stdout), within=5)


def test_standard_descriptors_may_be_closed(script: Callable[[str], Path], tmp_path: Path) -> None:
    source = f"""
import os
for number in range(3):
    os.close(number)
from muro.launch.spawn import spawn
child = spawn("{TARGETS}:describe", {{"flags": []}})
child.wait(30)
open({str(tmp_path / "out")!r}, "w").write(f"{{child.poll()}} {{child.log_tail(1)}}")
child.close()
"""
    assert run([str(script(source))], ROOT, PYTHONPATH=str(ROOT)).returncode == 0
    assert (tmp_path / "out").read_text().startswith('0 {"path"')


def test_a_program_without_descriptors_left(script: Callable[[str], Path]) -> None:
    source = f"""
import os, resource
from muro.errors import StartupError
from muro.launch.shutdown import stop
from muro.launch.spawn import spawn
child = spawn("{TARGETS}:stop_politely", {{}})
while child.progress().phase != "waiting":
    pass
before = os.listdir("/proc/self/fd")
resource.setrlimit(resource.RLIMIT_NOFILE, (len(before) + 2, len(before) + 2))
for _ in range(10):
    try:
        spawn("{TARGETS}:describe", {{}}, name="engine 5")
    except StartupError as error:
        print(error, flush=True)
assert os.listdir("/proc/self/fd") == before
assert stop([child], 20) == [1]
"""
    done = run([str(script(source))], ROOT, PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("engine 5 did not start: no process could be made for it: [Errno 24]") == 10


def test_a_status_that_somebody_else_collects(script: Callable[[str], Path]) -> None:
    source = f"""
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
from muro.launch.spawn import spawn
child = spawn("{TARGETS}:return_code", {{"code": 7}})
child.wait(30)
print(child.poll(), child.death().how(), flush=True)
child.close()
"""
    done = run([str(script(source))], ROOT, PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{UNKNOWN_STATUS} it ended, and its exit status was collected by another part")


def test_a_forked_copy_of_the_handle_does_nothing(script: Callable[[str], Path]) -> None:
    source = f"""
import os
from muro.launch.spawn import spawn
child = spawn("{TARGETS}:wait_for_signal", {{}})
if (pid := os.fork()) == 0:
    child.terminate(); child.kill(); child.poll(); child.wait(); child.close()
    os._exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
print(child.poll(), flush=True)
child.close()
print(child.poll(), flush=True)
"""
    done = run([str(script(source))], ROOT, PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["None", "-9"]
