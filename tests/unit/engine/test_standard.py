"""Operations that every engine answers."""

from typing import Any

import pytest

from muro.engine.interface import EngineInfo, operation
from muro.engine.operations import declared_operations
from muro.engine.standard import StandardOperations
from muro.engines.echo import EchoEngine
from muro.testing.harness import StepHarness
from muro.wire.ops import OPS


class Embedding(EchoEngine):
    """Declares an operation of its own under a standard name."""

    dummies = 0

    def info(self) -> EngineInfo:
        return EngineInfo(supported_tasks=("embed", "generate"))

    def execute_dummy_batch(self) -> None:
        self.dummies += 1

    @operation
    def list_loras(self) -> list[int]:
        return [4]


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("get_supported_tasks", ["embed", "generate"]),
        ("reset_mm_cache", None),
        ("reset_encoder_cache", None),
        ("reset_prefix_cache", True),
        ("is_sleeping", False),
        ("is_scheduler_paused", False),
        ("get_weight_version", "default"),
        ("list_loras", [4]),
    ],
)
def test_answers(name: str, answer: Any) -> None:
    harness = StepHarness(Embedding())
    got = harness.answer(harness.call(name))
    assert got is not None and got.failure_message is None
    assert got.result == [None, answer]


def test_a_dummy_batch_reaches_the_engine() -> None:
    engine = Embedding()
    StepHarness(engine).call("execute_dummy_batch")
    assert engine.dummies == 1


def test_all_are_operations_of_the_protocol_and_answer_with_its_types() -> None:
    for name, found in declared_operations(StandardOperations(EchoEngine())).items():
        OPS[name].check_reply(found.run([]))


def test_arguments_that_front_ends_give() -> None:
    harness = StepHarness(EchoEngine())
    got = harness.answer(harness.call("reset_prefix_cache", True, False))
    assert got is not None and got.result == [None, True]
