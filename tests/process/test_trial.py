"""engines/trial.py: grammars that hang or crash a compiler cost a process apart, and one request."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from muro.core.grammar.spec import GrammarSpec, grammar_spec
from muro.engines.trial import Trials
from muro.errors import InvalidRequestError, RequestFailedError
from muro.wire.request import StructuredOutputsParams
from tests.support.deadline import until

CHAIN = {f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(960)}
HANGS = GrammarSpec("grammar", "start: A\nA: " + " & ".join(f"/.*x{i}.*/" for i in range(32)))
OVERFLOWS = GrammarSpec(
    "json", json.dumps({"$defs": {**CHAIN, "d960": {}}, "$ref": "#/$defs/d0"}, separators=(",", ":"))
)


@pytest.fixture
def trials() -> Iterator[Trials]:
    trials = Trials(time_limit=3.0)
    yield trials
    trials.close()


def test_what_compiles_and_what_does_not_is_survived(trials: Trials) -> None:
    for text in ('{"type":"object"}', '{"not":{}}', '{"$ref":"#/nowhere"}', "{"):
        trials(GrammarSpec("json", text))
    assert len(trials._idle) == 1


def test_what_hangs_is_refused_and_the_process_remains(trials: Trials) -> None:
    assert not trials(HANGS, patient=False)
    (process,) = trials._idle
    with pytest.raises(InvalidRequestError, match="more than 3 s"):
        trials(HANGS)
    assert trials(GrammarSpec("regex", "a"))
    assert trials._idle == [process]


def test_what_is_at_work_ends_with_its_process(trials: Trials) -> None:
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(trials, HANGS)
        (process,) = until(lambda: [p for p in trials._busy if p._ready])
        (copy,) = until(lambda: psutil.Process(process._child.pid).children())
        process._child.kill()
        with pytest.raises(InvalidRequestError, match="could not be tried"):
            call.result(10)
    until(lambda: not copy.is_running() or copy.status() == psutil.STATUS_ZOMBIE)


def test_what_overflows_the_stack_is_refused(trials: Trials) -> None:
    grammar_spec(StructuredOutputsParams(json=OVERFLOWS.text))  # the bounds let it pass
    with pytest.raises(InvalidRequestError, match="more than the library can compile"):
        trials(OVERFLOWS)
    trials(GrammarSpec("regex", "a"))


def test_a_process_that_was_killed_meanwhile_costs_nothing(trials: Trials) -> None:
    trials(GrammarSpec("regex", "a"))
    (process,) = trials._idle
    process._child.kill()
    process._child.wait()
    trials(GrammarSpec("regex", "a"))
    assert trials._idle[0] is not process


def test_processes_end_when_it_is_closed(trials: Trials) -> None:
    trials(GrammarSpec("regex", "a"))
    (process,) = trials._idle
    trials.close()
    assert process._child.returncode is not None


def test_closing_ends_a_process_at_work(trials: Trials) -> None:
    trials(GrammarSpec("regex", "a"))
    patient = Trials(time_limit=60.0)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(patient, HANGS)
        until(lambda: [p for p in patient._busy if p._ready])
        patient.close()
        with pytest.raises(RequestFailedError, match="ends"):
            call.result(10)
    with pytest.raises(RequestFailedError, match="ends"):
        patient(HANGS)


def test_a_copy_whose_parent_has_gone_before_it_could_look_ends_at_once() -> None:
    """It holds the pipe on which the parent would have answered."""
    program = "from muro.engines.trial import _bound; _bound(30.0, 1 << 22); print('still here')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=50, check=False)
    assert (ended.returncode, ended.stdout) == (1, b"")
