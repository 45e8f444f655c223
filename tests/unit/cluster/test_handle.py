"""handle.py: a rank out of reach, as its supervisor sees it. The place is scripted."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
import pytest

from muro.cluster import handle as handle_file
from muro.cluster.handle import RankHandle
from muro.cluster.report import Hosted, Order, Report
from muro.launch.death import UNKNOWN_STATUS
from muro.observe.log import Thresholds
from muro.wire.failure import FailureRecord
from muro.wire.progress import Progress
from tests.support.deadline import until
from tests.support.places import Answer, ScriptedPlace, away, dead

ORDER = Order(
    version="1", target="m:f", payload={}, title=[], env={}, name="engine 0", generation=3, thresholds=Thresholds()
)


class World:
    """What a host would answer."""

    def __init__(self) -> None:
        self.report: Report | Answer = Report(progress=Progress(pid=77, phase="serving", phase_since_ns=5))
        self.start: Answer = msgspec.msgpack.encode(Hosted(pid=77, now_ns=time.monotonic_ns()))
        self.made: list[tuple[RankHandle, ScriptedPlace]] = []

    def answer(self, method: str) -> Answer:
        if method == "start":
            return self.start
        if method == "dump_stack":
            return b"in step"
        if method == "kill" and isinstance(self.report, Report):
            self.report = msgspec.structs.replace(self.report, status=-9)
        return msgspec.msgpack.encode(self.report) if isinstance(self.report, Report) else self.report

    def handle(self, *, given: bool = True) -> tuple[RankHandle, ScriptedPlace]:
        place = ScriptedPlace(self.answer, given=given)
        made = RankHandle(ORDER, place).open()
        self.made.append((made, place))
        return made, place


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(handle_file, "STEP", 0.005)
    monkeypatch.setattr(handle_file, "KILL_PATIENCE", 0.05)
    world = World()
    yield world
    for made, place in world.made:
        made.close()
        assert made.sentinel == -1 and place.left.wait(2)


def test_it_is_placed_started_and_followed(world: World) -> None:
    handle, place = world.handle()
    until(lambda: handle.progress().phase == "serving")
    assert (handle.pid, handle.poll(), handle.wait(0)) == (77, None, False)
    assert place.calls() == ["occupy", "start"]
    world.report = Report(status=10, failure=FailureRecord.of("step", ValueError("bad block")), log_tail="last words")
    assert handle.wait(5) and handle.poll() == 10
    death = handle.death()
    assert (death.status, death.log_tail, death.where, death.lost) == (10, "last words", "10.0.0.2", "")
    assert "ended with exit code 10" in death.how() and "(pid 77 on 10.0.0.2)" in death.how()
    assert place.left.wait(2)


def test_it_waits_for_a_place_and_can_be_killed_there(world: World) -> None:
    handle, place = world.handle(given=False)
    until(lambda: handle.progress().phase == "waiting for a place with CPU 1")
    assert handle.progress().generation == 3 and handle.pid == 0
    handle.terminate()
    assert handle.wait(5) and handle.poll() == -9
    assert place.calls() == [] and place.left.wait(2)


def test_a_place_that_comes_late(world: World) -> None:
    handle, place = world.handle(given=False)
    until(lambda: handle.progress().phase.startswith("waiting"))
    place.room.set()
    until(lambda: handle.progress().phase == "serving")


def test_the_host_is_told(world: World) -> None:
    handle, place = world.handle()
    until(lambda: handle.pid == 77)
    place.calls()
    handle.terminate()
    assert handle.dump_stack() == "in step" and handle.death().log_tail == "in step"
    handle.kill()
    assert place.calls() == ["terminate", "dump_stack", "kill"]


def test_a_host_that_does_not_hear_a_kill_loses_its_place(world: World) -> None:
    handle, place = world.handle()
    until(lambda: handle.pid == 77)
    world.report = None
    handle.kill()
    assert handle.wait(5) and handle.poll() == -9 and place.left.wait(2)


def test_the_end_of_a_node(world: World) -> None:
    handle, _ = world.handle()
    until(lambda: handle.pid == 77)
    world.report = dead()
    assert handle.wait(5) and handle.poll() == UNKNOWN_STATUS
    error = handle.death().dead_error(0, 3)
    assert "it is lost: its node has died" in error.message
    assert (error.pid, error.exit_status) == (None, None), "nobody knows whose doing it was"


def test_a_host_out_of_reach_for_a_moment_is_not_lost(world: World) -> None:
    handle, place = world.handle()
    until(lambda: handle.pid == 77)
    asked: list[Answer] = [away(), away(), away()]
    place.answers = lambda method: asked.pop() if asked and method == "report" else world.answer(method)
    world.report = Report(progress=Progress(pid=77, phase="stopping"))
    until(lambda: not asked and handle.progress().phase == "stopping")
    assert handle.poll() is None


@pytest.mark.parametrize(
    ("report", "told"), [(away(), "cannot be reached any more: socket closed"), (None, "has said nothing")]
)
def test_a_host_out_of_reach_for_long_is_lost(report: Answer, told: str, world: World) -> None:
    handle, _ = world.handle()
    until(lambda: handle.pid == 77)
    world.report = report
    assert handle.wait(5) and told in handle.death().how()


def test_what_does_not_start_is_told(world: World) -> None:
    world.start = dead()
    handle, _ = world.handle()
    assert handle.wait(5)
    assert "its node has died in phase 'starting its host'" in handle.death().startup_error(0).message
