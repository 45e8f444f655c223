"""report.py: what travels, and times of another machine's clock."""

import msgspec

from muro.cluster.report import Order, Report, moved
from muro.observe.log import Thresholds
from muro.wire.failure import FailureRecord
from muro.wire.progress import Progress

SECRET = "s" * 40


def order() -> Order:
    payload = {"engine": "echo", "curve": {"secret": SECRET}}
    return Order(
        version="1", target="m:f", payload=payload, title=[], env={}, name="e", generation=2, thresholds=Thresholds()
    )


def test_what_travels_arrives() -> None:
    report = Report(status=-9, progress=Progress(pid=7), failure=FailureRecord.of("x", ValueError("y")), records=[b"z"])
    for sent in (order(), report, Report()):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=type(sent)) == sent


def test_an_order_does_not_show_its_keys() -> None:
    assert SECRET not in repr(order()) and SECRET not in str(order())


def test_times_are_moved_and_never_stays_never() -> None:
    page = Progress(pid=3, phase_since_ns=1000, step_started_ns=0, step_ended_ns=50, steps_ended=50)
    later = moved(page, 500)
    assert (later.phase_since_ns, later.step_started_ns, later.step_ended_ns) == (1500, 0, 550)
    assert (later.pid, later.steps_ended) == (3, 50)
    assert moved(page, -100).step_ended_ns == 1
    assert moved(page, 0) is page
