"""The coordinator's process: how it starts, what junk does to it, how it comes back, how it ends."""

import os
import signal
from collections.abc import Iterator

import pytest

from muro.config import CoordinatorConfig
from muro.errors import StartupError
from muro.launch.coordinator import CoordinatorKeeper, coordinator_config
from muro.transport.endpoint import EndpointDirectory
from tests.support.coordinating import Engine, FrontEnd
from tests.support.counts import count
from tests.support.deadline import process_ended, until
from tests.support.strangers import strangers


@pytest.fixture
def keeper() -> Iterator[CoordinatorKeeper]:
    keeper = CoordinatorKeeper(coordinator_config(1, EndpointDirectory(), "127.0.0.1"))
    keeper.start()
    yield keeper
    keeper.stop(5)


@pytest.fixture
def peers(keeper: CoordinatorKeeper) -> Iterator[tuple[Engine, FrontEnd]]:
    engine, front_end = Engine(keeper.config, 0), FrontEnd(keeper.config)
    engine.send(b"\x01")
    assert engine.next() == [b"READY"]
    yield engine, front_end
    engine.close()
    front_end.close()


def relays(engine: Engine, front_end: FrontEnd, running: int) -> bool:
    """Whether a report arrives, sooner or later: among the junk are reports in the same engine's name."""
    engine.reports(0, running)
    while not ((counts := front_end.news().counts) and counts[0][1] == running):
        engine.reports(0, running)
    return True


def test_it_comes_back_at_the_same_addresses(keeper: CoordinatorKeeper, peers: tuple[Engine, FrontEnd]) -> None:
    engine, front_end = peers
    assert relays(engine, front_end, 1)
    for death in range(1, 4):
        pid = keeper.pid or 0
        os.kill(pid, signal.SIGKILL)
        until(lambda death=death: keeper.generation == death, within=30)
        assert engine.next() == [b"READY"], "engines subscribe again by themselves"
        assert relays(engine, front_end, 1 + death)
        assert keeper.pid != pid


@pytest.mark.slow
def test_one_that_is_stopped_is_killed_and_one_that_is_idle_is_not() -> None:
    keeper = CoordinatorKeeper(coordinator_config(1, EndpointDirectory(), "127.0.0.1"), stuck_after=6.0)
    keeper.start()
    try:
        idle = keeper.pid or 0
        until(lambda: keeper._moved_at >= 7.0, within=30, what="it was seen to move for longer than that")
        assert keeper.pid == idle
        os.kill(idle, signal.SIGSTOP)
        until(lambda: keeper.generation == 1, within=40)
        process_ended(idle)
        engine = Engine(keeper.config, 0)
        engine.send(b"\x01")
        assert engine.next() == [b"READY"]
        engine.close()
    finally:
        keeper.stop(5)


@pytest.mark.cases
def test_fc08_junk_from_strangers(keeper: CoordinatorKeeper, peers: tuple[Engine, FrontEnd]) -> None:
    engine, front_end = peers
    config = keeper.config
    junk = [
        strangers(kind, address, count(300, 20_000), seed)
        for seed, (kind, address) in enumerate(
            [
                ("xpub", config.input_address),
                ("pull", config.output_address),
                ("xpub", config.stats_address),
                ("router", config.stats_address),
            ]
        )
    ]
    number = 1
    while any(stranger.poll() is None for stranger in junk):
        number += 1
        assert relays(engine, front_end, number)
    assert [stranger.wait() for stranger in junk] == [0] * 4
    assert relays(engine, front_end, number + 1) and keeper.generation == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_is_started_again_even_if_it_was_asked_to_end(keeper: CoordinatorKeeper, number: signal.Signals) -> None:
    os.kill(keeper.pid or 0, number)
    until(lambda: keeper.generation == 1, within=30)


def test_it_ends_when_it_is_no_longer_needed(keeper: CoordinatorKeeper) -> None:
    pid = keeper.pid or 0
    keeper.stop(5)
    keeper.stop(5)
    process_ended(pid, within=0.1)


def test_an_address_that_is_taken_is_an_error_of_the_start() -> None:
    first = CoordinatorKeeper(coordinator_config(1, EndpointDirectory(), "127.0.0.1"))
    first.start()
    try:
        with pytest.raises(StartupError, match="the coordinator did not start") as caught:
            CoordinatorKeeper(first.config).start()
        assert caught.value.exit_status == 2 and "another process listens there" in str(caught.value)
    finally:
        first.stop(5)


def test_other_machines_only_when_that_is_wanted() -> None:
    config = CoordinatorConfig(
        num_engines=1,
        input_address="tcp://192.0.2.1:1",
        output_address="tcp://192.0.2.1:2",
        stats_address="tcp://192.0.2.1:3",
    )
    with pytest.raises(StartupError, match="--insecure-tcp"):
        CoordinatorKeeper(config).start()
