"""FC-05, FC-17: an engine's descendants go with it in every phase, also those that have left its process group."""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from muro import connect
from muro.launch.spawn import spawn
from tests.support.asking import FOREVER, ask
from tests.support.children import TARGETS
from tests.support.counts import count, spread
from tests.support.deadline import process_ended, until
from tests.support.programs import children, end, line, start
from tests.support.tree import marked, state, token_of, wardens

pytestmark = [pytest.mark.cases, pytest.mark.timeout(600)]

WITHIN = 5.0
KILLED = ("engine", "front-end", "both", "stopped engine", "front-end of a stopped engine")
FAMILY = 3 + 2
"""Two workers and an orphan; the engine and its warden."""
ENGINE = "tests.support.engines:WithFamily"

FRONT_END = """
import threading
from muro import connect
from tests.support.asking import FOREVER, ask
settings = dict(engine="tests.support.engines:WithFamily", socket_dir={directory!r}, options={options})
def say(*words):
    print(*words, flush=True)
{body}
threading.Event().wait()
"""

PHASES = {
    "loading": (
        "settings['on_progress'] = lambda item: 'weights' in item.sight.phase and say('there')\n",
        "loading:hang",
    ),
    "loading with the interpreter lock": (
        "settings['on_progress'] = lambda item: 'weights' in item.sight.phase and say('there')\n",
        "loading:hang_lock",
    ),
    "serving": ("say('there')", None),
    "holding the interpreter lock": (
        (
            "threading.Thread(target=lambda: client.call('inject', 'operation:hang_lock'), daemon=True).start()\n"
            "say('there')"
        ),
        None,
    ),
    "shutting down": (
        (
            "threading.Thread(target=client.close, args=(60,), daemon=True).start()\n"
            "while client.engines()[0].progress.phase != 'stopping': pass\n"
            "say('there')"
        ),
        "shutdown:hang_lock",
    ),
}


def engine_of(front_end: int) -> int:
    (engine,) = children(front_end)
    return engine


@pytest.mark.parametrize(("phase", "killed"), spread(PHASES, KILLED))
def test_fc05_fc17_the_whole_tree_goes(phase: str, killed: str, tmp_path: Path) -> None:
    body, fault = PHASES[phase]
    options = {"step_ms": 5} | ({"fault": fault} if fault else {})
    made = "client = connect(**settings)\n"
    body = body + made if phase.startswith("loading") else made + body
    for _ in range(count(1, 5)):
        program = start(FRONT_END.format(directory=str(tmp_path), options=options, body=body))
        try:
            assert line(program) == "there"
            engine = engine_of(program.pid)
            token, tree = family(engine)
            if "stopped" in killed:
                os.kill(engine, signal.SIGSTOP)
            began = time.monotonic()
            if killed in ("front-end", "both", "front-end of a stopped engine"):
                program.kill()
            if killed in ("engine", "both", "stopped engine"):
                os.kill(engine, signal.SIGKILL)
            for pid in tree:
                process_ended(pid, within=began + WITHIN - time.monotonic())
            print(f"{phase}, {killed}: gone after {time.monotonic() - began:.3f} s")
        finally:
            end(program)
        assert marked(token) == []


def family(engine: int) -> tuple[str, list[int]]:
    """The token and all processes of an engine's tree."""
    token = token_of(engine)
    return token, until(lambda: found if len(found := marked(token)) == FAMILY else [], what="the whole family")


@pytest.mark.parametrize("warden", ["lives", "was killed", "is stopped"])
def test_after_close_nothing_is_left(warden: str) -> None:
    client = connect(engine=ENGINE)
    pid = client.engines()[0].pid
    assert pid is not None
    token, tree = family(pid)
    (guard,) = wardens(token)
    if warden != "lives":
        os.kill(guard, signal.SIGKILL if warden == "was killed" else signal.SIGSTOP)
    began = time.monotonic()
    client.close()
    assert [state(pid) for pid in tree if state(pid) not in "ZX"] == []
    assert time.monotonic() - began < (15 if warden == "is stopped" else 5)


def test_after_a_start_that_fails_nothing_is_left() -> None:
    for fault in ("loading:raise", "loading:signal=SIGKILL", "loading:exit=7"):
        before = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        with pytest.raises(Exception, match="did not start"):
            connect(engine=ENGINE, options={"fault": fault})
        new = {int(name) for name in os.listdir("/proc") if name.isdigit()} - before
        assert [pid for pid in new if b"sleep\x003601" in command(pid) and state(pid) not in "ZX"] == []


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_an_engine_that_dies_under_a_living_client_takes_its_family_along() -> None:
    with connect(engine=ENGINE) as client:
        pid = client.engines()[0].pid
        assert pid is not None
        token, tree = family(pid)
        client.generate(ask("a", FOREVER))
        os.kill(pid, signal.SIGKILL)
        for one in tree:
            process_ended(one, within=WITHIN)
        assert marked(token) == []


@pytest.mark.parametrize("signal_sent", [signal.SIGKILL, signal.SIGTERM])
def test_an_engine_that_dials_in_takes_its_family_along(
    signal_sent: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("muro.launch.remotes"), "disabled", True)  # it tells of the loss, rightly
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "muro", "serve", "--headless", "--engine", ENGINE, "-dpp", str(port)]
    engine = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with connect(host="127.0.0.1", handshake_port=port, num_local_engines=0) as client:
            assert len(list(client.generate(ask("a")))) == 3
            token = token_of(until(lambda: children(engine.pid))[0])
            tree = until(
                lambda: found if len(found := marked(token)) == FAMILY - 2 else []
            )  # the workers alone bear it
            engine.send_signal(signal_sent)
            for pid in (engine.pid, *tree):
                process_ended(pid, within=WITHIN)
        assert marked(token) == []
    finally:
        engine.kill()
        engine.wait()


@pytest.mark.parametrize("killed", ["engine", "front-end", "nobody"])
def test_shared_memory_of_pythons_own_goes_with_it(killed: str, tmp_path: Path) -> None:
    """Python's resource tracker removes it, so that must not be killed with the engine."""
    before = set(os.listdir("/dev/shm"))
    body = "settings['engine'] = 'tests.support.engines:WithSharedMemory'\nclient = connect(**settings)\nsay('there')"
    program = start(FRONT_END.format(directory=str(tmp_path), options={}, body=body))
    try:
        assert line(program) == "there"
        engine = engine_of(program.pid)
        token = token_of(engine)
        made = set(os.listdir("/dev/shm")) - before
        assert any(name.startswith("psm_") for name in made), made
        if killed == "nobody":
            program.terminate()
        else:
            os.kill(engine if killed == "engine" else program.pid, signal.SIGKILL)
        process_ended(engine, within=WITHIN)
        until(lambda: not made & set(os.listdir("/dev/shm")), within=WITHIN, what="the shared memory has gone")
        until(lambda: marked(token) == [], within=WITHIN, what="so has everybody else")
    finally:
        end(program)


def test_a_warden_holds_nothing_and_cannot_be_told_to_go() -> None:
    child = spawn(f"{TARGETS}:wait_for_signal", {})
    try:
        until(lambda: child.progress().phase == "waiting")
        (guard,) = wardens(token_of(child.pid))
        held = sorted(
            os.readlink(f"/proc/{guard}/fd/{name}").partition(":[")[0] for name in os.listdir(f"/proc/{guard}/fd")
        )
        assert held == ["/dev/null"] * 3 + ["anon_inode", "anon_inode", "pipe", "pipe"]
        assert os.readlink(f"/proc/{guard}/cwd") == "/"
        assert os.getsid(guard) not in (os.getsid(0), os.getsid(child.pid))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
            os.kill(guard, number)
        rollup = Path(f"/proc/{guard}/smaps_rollup").read_text()
        private = sum(int(row.split()[1]) for row in rollup.splitlines() if row.startswith("Private_"))
        print(f"private memory of a warden: {private} KiB")
        assert private < 8 << 10
        assert wardens(token_of(child.pid)) == [guard]
    finally:
        child.close()
    assert state(guard) in "ZX"
