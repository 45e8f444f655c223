"""One state machine for a while, in this process: `python -m fuzz.walks NAME SECONDS SEED`.

Hypothesis draws walks of 100 steps, in batches with a seed of their own, until the time is over. It says
`Done N runs` in the end; a walk that breaks an invariant is shrunk and printed, and ends the process with it.
"""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

MACHINES = {
    "session": "tests.unit.clients.test_session_machine:SessionMachine",
    "host": "tests.unit.engine.test_host_machine:HostMachine",
    "joining": "tests.unit.wire.test_handshake_machine:HandshakeMachine",
    "lifecycle": "tests.unit.process.test_lifecycle_machine:LifecycleMachine",
    "restart": "tests.unit.launch.test_restart_machine:RestartMachine",
    "quarantine": "tests.unit.llm.test_quarantine_machine:QuarantineMachine",
}
BATCH, STEPS = 100, 100


def load(name: str) -> type[RuleBasedStateMachine]:
    """The machine of a name."""
    module, _, attribute = MACHINES[name].partition(":")
    machine: type[RuleBasedStateMachine] = getattr(importlib.import_module(module), attribute)
    return machine


def main(name: str, seconds: float, first: int) -> None:
    """Walk until the time is over. Raises what a walk raises."""
    machine = load(name)
    end = time.monotonic() + seconds
    batches = 0
    how = settings(
        max_examples=BATCH,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    while time.monotonic() < end or not batches:
        run_state_machine_as_test(_seeded(machine, first + batches), settings=how)
        batches += 1
    print(f"Done {batches * BATCH} runs")


def _seeded(machine: type[RuleBasedStateMachine], number: int) -> Any:
    """Hypothesis seeds the function that it makes of a machine, so each batch gets a class of its own."""
    return seed(number)(type(machine.__name__, (machine,), {"TestCase": None}))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
