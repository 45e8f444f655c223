import pytest

from muro.errors import LocalProtocolError, RemoteProtocolError
from muro.wire import ops
from muro.wire.ops import OPS
from muro.wire.request import LoRARequest


def test_the_table_names_every_operation_of_the_protocol() -> None:
    assert len(OPS) == 28
    assert all(name == op.name and op.required <= len(op.args) for name, op in OPS.items())
    assert {name for name, op in OPS.items() if op.since == "0.33"} == {"pause_generation"}


def test_arguments_are_converted() -> None:
    assert ops.ADD_LORA.check_args((["sql", 3, "/a"],)) == [LoRARequest("sql", 3, "/a")]
    assert ops.SLEEP.check_args((1, "abort")) == [1, "abort"]
    assert ops.SLEEP.check_args(()) == []
    assert ops.COLLECTIVE_RPC.check_args(("f", 1, [], None)) == ["f", 1.0, [], None]


@pytest.mark.parametrize(
    ("op", "args", "match"),
    [
        (ops.IS_SLEEPING, (1,), "is_sleeping takes 0 arguments, 1 were given"),
        (ops.SLEEP, (1, "abort", 2), "sleep takes 0 to 2 arguments, 3 were given"),
        (ops.SLEEP, ("x",), "argument 0 of sleep: Expected `int`"),
        (ops.ADD_LORA, (), "add_lora takes 1 arguments"),
        (ops.ADD_LORA, (["sql", 0, "/a"],), "argument 0 of add_lora"),
    ],
)
def test_wrong_arguments_are_named(op: ops.Op[object], args: tuple[object, ...], match: str) -> None:
    with pytest.raises(LocalProtocolError, match=match):
        op.check_args(args)


def test_replies_are_converted_or_refused() -> None:
    assert ops.WAKE_UP.check_reply(None) is None
    assert ops.WAKE_UP.check_reply(True) is True
    assert ops.RESET_MM_CACHE.check_reply(None) is None
    [group] = ops.GET_KV_CACHE_GROUP_METADATA.check_reply(
        [{"group_idx": 0, "kind": "full_attention", "block_size": 16}]
    )
    assert group == ops.KVCacheGroupMetadata(0, "full_attention", 16)
    with pytest.raises(RemoteProtocolError, match="the engine's answer to is_sleeping"):
        ops.IS_SLEEPING.check_reply(None)
