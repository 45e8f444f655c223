"""How engines and front-ends end, and what the other side makes of it."""

import signal
import time
from pathlib import Path

import httpx
import pytest

from muro.wire.failure import ExitCode
from tests.interop.asking import User, reasons
from tests.interop.engine import Engine
from tests.interop.front import Front
from tests.interop.pair import ECHO, Pair, paired
from tests.interop.peers import RUST, SMG, Peer
from tests.interop.table import case, limit
from tests.support.deadline import until

pytestmark = [pytest.mark.timeout(600), pytest.mark.model]


@case("engine shutdown", *RUST)
def test_an_engine_that_is_asked_to_stop_ends_its_streams(doomed: Pair) -> None:
    assert last_words(doomed) == ["abort"]


@limit("engine shutdown", SMG, reason='SMG tells callers "stop" where the engine has said that it aborted them')
def test_an_engine_that_is_asked_to_stop_ends_its_streams_all_the_same(doomed: Pair) -> None:
    assert last_words(doomed) == ["stop"]


def last_words(doomed: Pair) -> list[str]:
    """Why a stream ended whose engine was asked to stop."""
    with doomed.http() as http, User(doomed.front.peer, http).stream() as stream:
        stream.first()
        doomed.engine.terminate()
        events = stream.rest()
    assert doomed.engine.wait() == ExitCode.STOPPED
    return reasons(events)


@pytest.mark.smoke
@case("engine death, announced")
def test_an_engine_that_fails_is_announced(peer: Peer, model: Path) -> None:
    """It fails while it works on somebody's request."""
    options = ("tokens=echo", "step_us=20000", "vocab_size=50000", "max_model_len=8192")
    sim = ("--engine", "sim", *(word for option in options for word in ("--engine-option", option)))
    failing = (*sim, "--fault", "step:raise@step=100")
    with paired(peer, model, *failing) as pair, pair.http() as http:
        user = User(peer, http)
        with user.stream() as stream:
            stream.first()
            assert "error" in stream.rest()[-1]
        assert user.post("completions", prompt="x").status_code >= 500
        if peer in RUST:  # SMG waits for this engine's successor
            until(lambda: pair.front.status("/health") == 503, within=10, what="the front-end says so")
        assert pair.engine.wait() == ExitCode.ENGINE_FAILED


@limit("engine death, kill -9", *RUST, reason="vllm-rs watches no engine that it has not started: callers wait on")
def test_an_engine_that_is_killed_is_not_noticed(doomed: Pair) -> None:
    doomed.engine.kill()
    assert doomed.engine.wait() == -signal.SIGKILL
    with doomed.http() as http, pytest.raises(httpx.ReadTimeout):
        User(doomed.front.peer, http).http.post("/v1/completions", json={"model": "m", "prompt": "x"}, timeout=2)
    assert doomed.front.status("/health") == 200


@limit("engine death, kill -9", SMG, reason="SMG takes an engine for dead once it has owed answers for 300 s")
@pytest.mark.timeout(700)
def test_an_engine_that_is_killed_is_noticed_late(doomed: Pair) -> None:
    patient = httpx.Client(base_url=doomed.front.url, timeout=400)
    with patient, User(doomed.front.peer, patient).stream() as stream:
        stream.first()
        doomed.engine.kill()
        began = time.monotonic()
        last = stream.rest()[-1]
        took = time.monotonic() - began
    assert "error" in last and 250 < took < 350


@case("front-end goes")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_front_end_that_goes_takes_the_engine_along(doomed: Pair, number: signal.Signals) -> None:
    with doomed.http() as http, User(doomed.front.peer, http).stream() as stream:
        stream.first()
        doomed.front.process.send_signal(number)
        assert doomed.engine.wait() == ExitCode.LOST_PARENT


@case("front-end goes")
def test_an_engine_that_may_stay_serves_the_next_front_end(peer: Peer, model: Path) -> None:
    with paired(peer, model, *ECHO, "--rejoin") as pair:
        with pair.http() as http, User(peer, http).stream() as stream:
            stream.first()
            pair.front.kill()
        second = Front(peer, model, before=pair.front)
        try:
            second.ready()
            with second.http() as http:
                assert User(peer, http).text(max_tokens=3) == "one two three"
            until(pair.is_idle, what="the first one's request is dropped")
        finally:
            print(second.log())
            second.close()


@case("engine before front-end")
def test_an_engine_waits_for_a_front_end_that_is_not_there_yet(peer: Peer, model: Path) -> None:
    first = Front(peer, model)
    first.kill()
    engine = Engine(first.engine_port, *ECHO)
    try:
        until(lambda: "waits for it" in engine.log(), what="the engine says whom it waits for")
        front = Front(peer, model, before=first)
        try:
            front.ready()
            with front.http() as http:
                assert User(peer, http).text(max_tokens=3) == "one two three"
        finally:
            print(front.log())
            front.close()
    finally:
        print(engine.log())
        engine.close()
        first.close()
