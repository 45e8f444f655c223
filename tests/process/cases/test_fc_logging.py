"""FC-56, FC-35: what a child logs arrives where the parent asked for it, and never makes the engine wait."""

import json
import logging
import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from muro import FinishReason, SyncMPClient, connect
from tests.support.asking import FOREVER, ask
from tests.support.counts import count
from tests.support.deadline import until
from tests.support.programs import run
from tests.support.rawpeer import raw_peer

pytestmark = [pytest.mark.cases, pytest.mark.timeout(120)]

ENGINE = "tests.support.engines:Talkative"


class Kept(logging.Handler):
    """Keeps records; holds its caller up while `blocked`."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.go = threading.Event()
        self.go.set()

    def emit(self, record: logging.LogRecord) -> None:
        self.go.wait()
        self.records.append(record)

    def said(self) -> list[str]:
        return [record.getMessage() for record in self.records]


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler = Kept()
    logger = logging.getLogger("third.party")
    logger.addHandler(handler)
    yield handler
    handler.go.set()
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    logging.disable(logging.NOTSET)


def say(client: SyncMPClient, level: int, text: str, name: str = "third.party", error: bool = False) -> None:
    client.call("say", name, level, text, error)


def test_fc56_records_arrive_with_name_level_and_process(kept: Kept) -> None:
    with connect(engine=ENGINE) as client:
        say(client, logging.WARNING, "first line\nsecond line")
        say(client, logging.INFO, "not wanted")
        say(client, 35, "with its cause", error=True)
    assert kept.said() == ["a warning while it loads", "first line\nsecond line", "with its cause"]
    loading, warning, error = kept.records
    assert (warning.name, warning.levelno, warning.processName) == ("third.party", 30, f"engine 0 ({ENGINE})")
    assert warning.process != loading.relativeCreated
    assert (warning.funcName, warning.filename) == ("say", "engines.py")
    assert error.levelno == 35
    assert "ValueError: the cause" in logging.Formatter("%(message)s").format(error)


def test_fc56_levels_of_the_parent_count(kept: Kept) -> None:
    logging.getLogger("third.party").setLevel(logging.DEBUG)
    with connect(engine=ENGINE) as client:
        say(client, logging.DEBUG, "wanted here")
        say(client, logging.DEBUG, "but not there", name="others")
        until(lambda: "wanted here" in kept.said())
        logging.getLogger("third.party").setLevel(logging.ERROR)  # also when it is changed later
        say(client, logging.WARNING, "no longer")
    assert kept.said() == ["a warning while it loads", "wanted here"]


def test_fc56_off_means_off(kept: Kept, capfd: pytest.CaptureFixture[str]) -> None:
    logging.disable(logging.CRITICAL)
    with connect(engine=ENGINE) as client:
        say(client, logging.CRITICAL, "nobody wants to know")
    assert kept.said() == []
    assert capfd.readouterr().err == ""


PROGRAM = """
import json, logging, sys
from muro import connect
{setting}
with connect(engine="tests.support.engines:Talkative") as client:
    client.call("say", "third.party", 40, "said\\nin two lines")
"""
JSON = """
class AsJson(logging.Formatter):
    def format(self, record):
        return json.dumps({"level": record.levelname, "process": record.processName, "text": record.getMessage()})
handler = logging.StreamHandler(sys.stdout)
handler.setFormatter(AsJson())
logging.basicConfig(handlers=[handler])
"""
OWN = "logging.basicConfig(stream=sys.stdout, format='<%(levelname)s|%(processName)s|%(message)s>')"


@pytest.mark.parametrize(
    ("setting", "out", "err"),
    [
        ("", "", "a warning while it loads\nsaid\nin two lines\n"),  # as of any library in an unconfigured program
        (OWN, "<WARNING|{0}|a warning while it loads>\n<ERROR|{0}|said\nin two lines>\n", ""),
        ("logging.disable(logging.CRITICAL)", "", ""),
        ("logging.basicConfig(level=logging.CRITICAL + 1)", "", ""),
        ("logging.getLogger().addHandler(logging.NullHandler())", "", ""),
    ],
)
def test_fc56_programs(setting: str, out: str, err: str) -> None:
    done = run(["-c", PROGRAM.format(setting=setting)])
    assert (done.code, done.out, done.err) == (0, out.format(f"engine 0 ({ENGINE})"), err)


def test_fc56_json() -> None:
    done = run(["-c", PROGRAM.format(setting=JSON)])
    words = [json.loads(line) for line in done.out.splitlines()]
    assert [(word["level"], word["text"]) for word in words] == [
        ("WARNING", "a warning while it loads"),
        ("ERROR", "said\nin two lines"),
    ]
    assert {word["process"] for word in words} == {f"engine 0 ({ENGINE})"}


def test_fc35_a_reader_of_logs_that_stands_still_holds_no_step_up(kept: Kept) -> None:
    """20 records of 500 bytes with each step, and a handler that does not return."""
    steps = count(500, 5000)
    with connect(engine=ENGINE) as client:
        client.call("flood", 20)
        until(lambda: kept.records)
        kept.go.clear()
        gaps = []
        stream = client.generate(ask("a", FOREVER))
        before = time.monotonic()
        for number, _ in enumerate(stream):
            now = time.monotonic()
            gaps.append(now - before)
            before = now
            if number == steps:
                break
        stream.close()
        print(
            f"\n{steps} steps, longest gap {max(gaps) * 1000:.0f} ms, median {sorted(gaps)[steps // 2] * 1000:.2f} ms"
        )
        assert max(gaps) < 1.0
        client.call("flood", 0)
        kept.go.set()
        until(lambda: kept.records and kept.records[-1].getMessage().startswith("record"), what="the rest is read")
        heard = len(kept.records)
        logging.getLogger("muro.launch.logs").addHandler(kept)
        try:
            until(lambda: again(client, kept), what="word of what was dropped")
        finally:
            logging.getLogger("muro.launch.logs").removeHandler(kept)
        assert heard < steps * 20


def again(client: SyncMPClient, kept: Kept) -> bool:
    say(client, logging.WARNING, "after the flood")
    return any("were dropped" in text for text in kept.said())


def test_fc35_outputs_and_statistics_that_nobody_reads_hold_no_step_up() -> None:
    """One front-end reads, one has a stream, and statistics with it, and never looks."""
    settings = {"limits": {"max_bytes_in_flight": 64 << 10}}
    steps = count(2000, 20_000)
    with raw_peer("faulty", clients=2, settings=settings, step_ms=0.2) as peer:
        reading, deaf = peer.clients
        deaf.add(ask("deaf", FOREVER))
        reading.add(ask("heard", steps))
        assert reading.finish("heard")[0].finish_reason is FinishReason.LENGTH
        gaps = sorted(after - before for before, after in pairwise(reading.times))
        print(f"\n{steps} steps, longest gap {gaps[-1] * 1000:.0f} ms, median {gaps[len(gaps) // 2] * 1000:.2f} ms")
        assert gaps[-1] < 1.0
        assert peer.child.poll() is None
