"""Engines that were started elsewhere and dial in: there is no process to watch, only what they send."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from muro import EngineDeadError, SyncMPClient, connect
from muro.wire.failure import ExitCode
from tests.support.asking import FOREVER, ask, faulty
from tests.support.deadline import until
from tests.support.elsewhere import PORT_HOST, engine_elsewhere, free_port

ENGINE = """
import sys
from muro.config import EngineConfig
from muro.process.main import run_headless
where = {"local": False, "headless": True, "handshake_address": sys.argv[1]}
sys.exit(run_headless(EngineConfig(engine="faulty", options={"step_ms": 1}, **where)))
"""


@pytest.fixture
def remote() -> Iterator[tuple[SyncMPClient, subprocess.Popen[bytes]]]:
    port = free_port()
    engine = subprocess.Popen(
        [sys.executable, "-c", ENGINE, f"tcp://127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        with connect(
            host="127.0.0.1", handshake_port=port, num_engines=1, num_local_engines=0, startup_timeout=20
        ) as client:
            yield client, engine
    finally:
        engine.kill()
        engine.wait()


def test_it_serves_and_ends_with_its_client(remote: tuple[SyncMPClient, subprocess.Popen[bytes]]) -> None:
    client, engine = remote
    assert [t for o in client.generate(ask("a")) for t in o.new_token_ids] == [7, 8, 9]
    [status] = client.engines()
    assert (status.pid, status.progress, status.state) == (None, None, "serving")
    client.close()
    assert engine.wait(10) == ExitCode.LOST_PARENT


def test_its_announced_death_reaches_everybody(remote: tuple[SyncMPClient, subprocess.Popen[bytes]]) -> None:
    client, _ = remote
    beside = client.generate(ask("beside", FOREVER))
    with pytest.raises(EngineDeadError, match="announced"):
        list(client.generate(faulty("killer", "step:raise", FOREVER)))
    with pytest.raises(EngineDeadError, match="announced"):
        list(beside)
    with pytest.raises(EngineDeadError, match="announced"):
        client.check_health()


@pytest.mark.parametrize(("hang", "code", "words"), [("hang", 10, "has hung for 6 s"), ("hang_lock", 1, "Timeout")])
def test_one_that_has_failed_ends_even_if_its_clean_up_hangs(hang: str, code: int, words: str) -> None:
    """Whoever started it waits for its end, to start it again."""
    port = free_port()
    options = {"step_ms": 1, "fault": f"shutdown:{hang}"}
    with (
        engine_elsewhere(f"tcp://{PORT_HOST}:{port}", options=options) as engine,
        connect(host=PORT_HOST, handshake_port=port, num_local_engines=0, startup_timeout=20) as client,
    ):
        with pytest.raises(EngineDeadError, match="announced"):
            list(client.generate(faulty("killer", "step:raise", FOREVER)))
        assert engine.wait(20) == code
        assert engine.stderr is not None
        log = engine.stderr.read()
        assert words in log and "in shutdown" in log, "where it hangs"


def test_one_that_has_vanished_cannot_be_reached(remote: tuple[SyncMPClient, subprocess.Popen[bytes]]) -> None:
    client, engine = remote
    engine.kill()
    engine.wait()

    def refusal() -> EngineDeadError | None:
        try:
            client.generate(ask("late")).close()
        except EngineDeadError as error:
            return error
        return None

    message = until(refusal).message
    assert "not connected" in message or "its connection has ended" in message
