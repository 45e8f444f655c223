"""Operations that every engine answers."""

from typing import Any

import pytest

from muro.engine.interface import EngineInfo, operation
from muro.engine.operations import declared_operations
from muro.engine.standard import StandardOperations
from muro.engines.echo import EchoEngine
from muro.testing.harness import StepHarness
from muro.wire.codec import OutputDecoder, OutputEncoder
from muro.wire.ops import OPS
from muro.wire.output import EngineCoreOutputs
from muro.wire.releases import NEWEST


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
        ("get_kv_cache_group_metadata", []),
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
        assert found.required == OPS[name].required
        if not found.required:
            OPS[name].check_reply(found.run([]))


def test_arguments_that_front_ends_give() -> None:
    harness = StepHarness(EchoEngine())
    got = harness.answer(harness.call("reset_prefix_cache", True, False))
    assert got is not None and got.result == [None, True]


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("add_lora", [["mine", 1, "/adapters/mine"]], "serves no LoRA adapters; 'mine' was not loaded"),
        ("pin_lora", [1], "serves no LoRA adapters"),
        ("collective_rpc", ["os.system", None, ["true"], None], "there is no worker method 'os.system'"),
        ("save_sharded_state", ["/tmp/there", None, None], "copy the model directory"),
        ("set_weight_version", [""], "version"),
    ],
)
def test_refusals_say_why(name: str, args: list[Any], words: str) -> None:
    harness = StepHarness(EchoEngine())
    got = harness.answer(harness.call(name, *args))
    assert got is not None and got.failure_message is not None and words in got.failure_message


def test_no_adapter_was_there_to_remove() -> None:
    harness = StepHarness(EchoEngine())
    got = harness.answer(harness.call("remove_lora", 3))
    assert got is not None and got.result == [None, False]


def test_the_name_of_the_weights_is_remembered() -> None:
    harness = StepHarness(EchoEngine())
    harness.call("set_weight_version", "step-100")
    got = harness.answer(harness.call("get_weight_version"))
    assert got is not None and got.result == [None, "step-100"]


def test_an_engine_with_blocks_has_one_group_of_them() -> None:
    class WithBlocks(EchoEngine):
        def info(self) -> EngineInfo:
            return EngineInfo(num_gpu_blocks=7, block_size=32)

    harness = StepHarness(WithBlocks())
    got = harness.answer(harness.call("get_kv_cache_group_metadata"))
    assert got is not None and got.result is not None
    reply = OutputDecoder("0.33").decode(
        OutputEncoder(NEWEST).encode(EngineCoreOutputs(utility_output=got), bytearray())
    )
    assert isinstance(reply, EngineCoreOutputs) and reply.utility_output is not None
    (group,) = OPS["get_kv_cache_group_metadata"].check_reply(reply.utility_output.result[1])
    assert (group.group_idx, group.kind, group.block_size, group.sliding_window) == (0, "full_attention", 32, None)
