"""A recording, played again to real engines and front-ends."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from muro import EngineDeadError, connect
from muro.errors import RequestFailedError
from tests.support.asking import FOREVER, ask, faulty
from tests.support.elsewhere import PORT_HOST, engine_elsewhere, free_port
from tests.support.programs import ROOT, Done, environment, run
from tests.support.taps import tapped

PROMPTS = {f"r{n}": [n + 1, n + 2, n + 3] for n in range(5)}


def record(path: Path, *flags: str, death: bool = False) -> Path:
    """A recording of five requests, a call, an abort, and perhaps the engine's death."""
    port = free_port()
    with tapped(f"tcp://{PORT_HOST}:{port}", path, *flags) as tap, engine_elsewhere(tap.address):
        with connect(host=PORT_HOST, handshake_port=port, num_local_engines=0, startup_timeout=20) as client:
            streams = [client.generate(ask(name, 6, prompt)) for name, prompt in PROMPTS.items()]
            assert [len([t for o in stream for t in o.new_token_ids]) for stream in streams] == [6] * 5
            assert client.call("is_scheduler_paused") is False
            aborted = client.generate(ask("aborted", FOREVER))
            next(aborted)
            aborted.close()
            assert client.call("is_sleeping") is False
            if death:
                with pytest.raises(EngineDeadError):
                    list(client.generate(faulty("killer", "step:raise", FOREVER)))
        tap.end()
    return path


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("hidden") / "rec")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("whole") / "rec", "--with-prompts")


def to_engine(path: Path, *flags: str, **engine: object) -> Done:
    """Play the front-end to an engine."""
    address = f"tcp://{PORT_HOST}:{free_port()}"
    with engine_elsewhere(address, **engine):  # type: ignore[arg-type]
        return run(["-m", "muro", "wire", "replay", str(path), "--engine", address, "--patience", "10", *flags])


@pytest.mark.parametrize("speed", ["1", "0"])
def test_the_same_engine_answers_the_same(whole: Path, speed: str) -> None:
    done = to_engine(whole, "--speed", speed)
    assert (done.code, done.out) == (0, "6 requests, 5 answers, 2 calls\nno difference\n"), done.out + done.err


def test_without_prompts_lengths_and_ends_are_the_same(hidden: Path) -> None:
    done = to_engine(hidden)
    assert done.code == 0, done.out + done.err
    assert "made-up token ids of the recorded lengths" in done.out and done.out.endswith("no difference\n")


def test_another_engine_is_found_out(whole: Path) -> None:
    done = to_engine(whole, "--json", engine="sim", options={"step_us": "100", "vocab_size": "300"})
    result = json.loads(done.out)
    assert done.code == 1 and result["counts"]["requests"] == 6
    assert len([words for words in result["differences"] if "recorded: " in words and "token 0" in words]) == 5


def test_an_engine_that_does_not_come(whole: Path) -> None:
    address = f"tcp://{PORT_HOST}:{free_port()}"
    done = run(["-m", "muro", "wire", "replay", str(whole), "--engine", address, "--patience", "0.5"])
    assert done.code == 1 and "not all engines joined in 0.5 s (engine 0: no HELLO yet)" in done.out


def test_an_engine_that_dies_is_a_difference(whole: Path) -> None:
    done = to_engine(whole, options={"fault": "step:raise"})
    assert done.code == 1 and "an engine has died (" in done.out and "in the recording none did" in done.out


def as_engine(path: Path, port: int, *flags: str) -> "subprocess.Popen[str]":
    """Play the engine to a front-end that will be there."""
    address = f"tcp://{PORT_HOST}:{port}"
    command = [sys.executable, "-m", "muro", "wire", "replay", str(path), "--frontend", address, *flags]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_front_end_is_given_the_recorded_answers(whole: Path) -> None:
    port = free_port()
    with as_engine(whole, port, "--speed", "0") as player:
        with connect(host=PORT_HOST, handshake_port=port, num_local_engines=0, startup_timeout=20) as client:
            # In another order than they were recorded: the prompts tell which is which.
            for name, prompt in reversed(PROMPTS.items()):
                tokens = [t for o in client.generate(ask(f"live-{name}", 6, prompt)) for t in o.new_token_ids]
                assert tokens == prompt * 2
            assert client.call("is_sleeping") is False
        out, err = player.communicate(timeout=30)
    assert player.returncode == 1, err
    assert "5 requests, 5 answered, 1 calls" in out and "1 recorded requests were not made" in out


def test_more_requests_than_were_recorded_end_as_well(hidden: Path) -> None:
    port = free_port()
    with as_engine(hidden, port, "--speed", "0") as player:
        with (
            connect(host=PORT_HOST, handshake_port=port, num_local_engines=0, startup_timeout=20) as client,
            ThreadPoolExecutor(10) as callers,
        ):

            def lengths(number: int) -> int:
                try:
                    return sum(len(o.new_token_ids) for o in client.generate(ask(f"live-{number}", 6)))
                except RequestFailedError:
                    return -1

            done = list(callers.map(lengths, range(10)))
        out, _ = player.communicate(timeout=30)
    assert done.count(6) >= 5, "five are answered as recorded, one as the aborted one, the others end in error"
    assert "one request more than was recorded" in out and player.returncode == 1


def test_a_recorded_death_is_played(tmp_path: Path) -> None:
    path = record(tmp_path / "rec", "--with-prompts", death=True)
    done = to_engine(path, "--speed", "0.1")  # at once, the last request would end the others
    assert done.code == 0, done.out + done.err


def test_one_of_the_two_is_needed(whole: Path) -> None:
    done = run(["-m", "muro", "wire", "replay", str(whole)])
    assert done.code == 2 and "--engine ADDRESS" in done.err
