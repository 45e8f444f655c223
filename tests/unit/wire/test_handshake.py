import msgspec
import pytest

from muro.errors import LocalProtocolError, RemoteProtocolError
from muro.ids import EngineRank
from muro.wire.frames import identity_of
from muro.wire.handshake import (
    MAX_HANDSHAKE_BYTES,
    TRANSITIONS,
    Addresses,
    EngineHandshake,
    Expected,
    Features,
    FrontendHandshake,
    Init,
    ReadyResponse,
    Stage,
    Step,
    decode_init,
    decode_ready_response,
    encode_init,
)

INIT = Init(Addresses(["ipc:///a"], ["ipc:///b"]))
RANK = EngineRank(0)
ANYBODY = Expected()
RESPONSE = ReadyResponse(
    max_model_len=128, num_gpu_blocks=7, block_size=16, dp_stats_address=None, dtype="float32",
    vllm_version="0.33.0", world_size=1, data_parallel_size=1,
)  # fmt: skip


def frontend(ranks: int = 1, expected: Expected = ANYBODY) -> FrontendHandshake:
    return FrontendHandshake({EngineRank(rank): expected for rank in range(ranks)}, INIT)


def word(status: str, **keys: object) -> bytes:
    return msgspec.msgpack.encode({"status": status, "local": True, "headless": False, **keys})


def join(front: FrontendHandshake, rank: int) -> None:
    identity = identity_of(rank)
    engine = EngineHandshake(local=True, headless=False)
    [(to, payload)] = front.receive([identity, engine.hello()])
    assert to == identity
    assert engine.receive(payload) == INIT
    front.ready_response([identity, RESPONSE.encode()])
    assert front.receive([identity, engine.ready()]) == []
    assert engine.state is Stage.READY


def test_an_engine_joins() -> None:
    front = frontend()
    join(front, 0)
    assert front.done
    assert front.responses == {0: RESPONSE}
    assert front.missing() == {}


def test_engines_join_in_any_interleaving_and_the_missing_are_named() -> None:
    front = frontend(3)
    join(front, 2)
    front.receive([identity_of(1), word("HELLO")])
    assert not front.done
    assert front.missing() == {0: "no HELLO yet", 1: "INIT was sent; loading, no READY yet"}
    front.receive([identity_of(1), word("READY")])
    assert front.missing()[EngineRank(1)] == "READY, but its ready response has not come"
    front.ready_response([identity_of(1), RESPONSE.encode()])
    join(front, 0)
    assert front.done


def test_every_step_but_those_of_the_table_is_refused_on_both_sides() -> None:
    reach = {Stage.EXPECTED: [], Stage.LOADING: ["HELLO"], Stage.READY: ["HELLO", "READY"]}
    for stage, words in reach.items():
        for step in (Step.HELLO, Step.READY):
            front = frontend()
            for said in words:
                front.receive([b"\x00\x00", word(said)])
            assert front.stage(RANK) is stage
            if (stage, step) in TRANSITIONS:
                front.receive([b"\x00\x00", word(step.value)])
                continue
            with pytest.raises(RemoteProtocolError, match=r"engine 0 said .* out of turn"):
                front.receive([b"\x00\x00", word(step.value)])
            assert front.stage(RANK) is stage, "a refused message changes nothing"


def test_the_engine_cannot_cheat_either() -> None:
    engine = EngineHandshake(local=False, headless=True)
    with pytest.raises(LocalProtocolError, match="READY is out of turn"):
        engine.ready()
    with pytest.raises(RemoteProtocolError, match="the front-end said INIT out of turn"):
        engine.receive(encode_init(INIT))
    engine.hello()
    with pytest.raises(LocalProtocolError, match="HELLO is out of turn"):
        engine.hello()
    with pytest.raises(RemoteProtocolError, match="INIT cannot be read"):
        engine.receive(b"\x93")
    engine.receive(encode_init(INIT))
    with pytest.raises(RemoteProtocolError, match="out of turn"):
        engine.receive(encode_init(INIT))
    assert msgspec.msgpack.decode(engine.ready("ab")) == {
        "status": "READY", "local": False, "headless": True, "parallel_config_hash": "ab",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("frames", "match"),
    [
        ([], "0 frames"),
        ([b"\x00\x00"], "1 frames"),
        ([b"\x00\x00", word("HELLO"), b""], "3 frames"),
        ([b"\x00", word("HELLO")], "engine identity of 1 bytes"),
        ([b"\x07\x00", word("HELLO")], "engine 7 is not expected here; expected: 0, 1"),
        ([b"\x00\x00", b""], "cannot be read"),
        ([b"\x00\x00", b"\xc1"], "cannot be read"),
        ([b"\x00\x00", b"\x81" * 5000], "cannot be read"),
        ([b"\x00\x00", msgspec.msgpack.encode({"status": "HELLO"})], "missing required field"),
        ([b"\x00\x00", word("BYE")], "said 'BYE', neither HELLO nor READY"),
        ([b"\x00\x00", bytes(MAX_HANDSHAKE_BYTES + 1)], "the limit is"),
        ([b"\x00\x00", word("HELLO", headless=True)], "says headless=True, but headless=False is expected"),
        ([b"\x00\x00", word("HELLO", local=False)], "says local=False, but local=True is expected"),
    ],
)
def test_junk_is_refused_and_changes_nothing(frames: list[bytes], match: str) -> None:
    front = frontend(2, Expected(local=True, headless=False))
    with pytest.raises(RemoteProtocolError, match=match):
        front.receive(frames)
    assert front.missing() == {0: "no HELLO yet", 1: "no HELLO yet"}
    join(front, 0)


@pytest.mark.parametrize(
    ("before", "frames", "match"),
    [
        ([], [b"\x00\x00", RESPONSE.encode()], "before it was given INIT"),
        (["HELLO"], [b"\x00\x00", b""], "is empty"),
        (["HELLO"], [b"\x00\x00", b"\x80"], "missing required field `max_model_len`"),
        (["HELLO"], [b"\x00\x00"], "1 frames"),
        (["HELLO"], [b"\x01\x00", RESPONSE.encode()], "engine 1 is not expected"),
    ],
)
def test_bad_ready_responses_are_refused(before: list[str], frames: list[bytes], match: str) -> None:
    front = frontend()
    for said in before:
        front.receive([b"\x00\x00", word(said)])
    with pytest.raises(RemoteProtocolError, match=match):
        front.ready_response(frames)
    assert front.responses == {}


def test_a_second_ready_response_is_refused() -> None:
    front = frontend()
    join(front, 0)
    with pytest.raises(RemoteProtocolError, match="second ready response"):
        front.ready_response([b"\x00\x00", RESPONSE.encode()])


def said_ready(front: FrontendHandshake) -> None:
    """Engine 0 has said all its words, and its ready response is still under way."""
    for status in ("HELLO", "READY"):
        front.receive([identity_of(RANK), word(status)])


def test_who_hangs_up_after_ready_has_not_gone() -> None:
    front = frontend()
    said_ready(front)
    assert not front.hung_up(RANK) and not front.done
    front.ready_response([identity_of(RANK), RESPONSE.encode()])
    assert front.done
    assert not front.hung_up(RANK) and front.done
    with pytest.raises(RemoteProtocolError, match="HELLO"):
        front.receive([identity_of(RANK), word("HELLO")])


def test_who_has_gone_after_ready_without_a_ready_response_may_be_followed_by_another() -> None:
    front = frontend()
    said_ready(front)
    with pytest.raises(RemoteProtocolError, match="HELLO"):
        front.receive([identity_of(RANK), word("HELLO")])
    front.hung_up(RANK)
    with pytest.raises(RemoteProtocolError, match="local"):
        frontend(expected=Expected(local=False)).receive([identity_of(RANK), word("HELLO")])
    join(front, RANK)
    assert front.done


@pytest.mark.parametrize("response_came", [False, True])
def test_who_hangs_up_before_ready_has_gone(response_came: bool) -> None:
    front = frontend()
    assert not front.hung_up(RANK), "nobody was there"
    front.receive([identity_of(RANK), word("HELLO")])
    if response_came:
        front.ready_response([identity_of(RANK), RESPONSE.encode()])
    assert front.hung_up(RANK)
    join(front, RANK)


def test_ranks_that_run_with_other_settings_are_refused() -> None:
    front = frontend(2)
    for rank in (0, 1):
        front.receive([identity_of(rank), word("HELLO")])
    front.receive([identity_of(0), word("READY", parallel_config_hash="a" * 64)])
    with pytest.raises(RemoteProtocolError, match="engine 1 runs with another parallel configuration"):
        front.receive([identity_of(1), word("READY", parallel_config_hash="b" * 64)])
    front.receive([identity_of(1), word("READY", parallel_config_hash="a" * 64)])


def test_our_own_key_travels_only_when_set() -> None:
    ours = Init(INIT.addresses, muro=Features("1", ["x"]))
    assert decode_init(encode_init(ours)) == ours
    assert set(msgspec.msgpack.decode(encode_init(INIT))) == {"addresses", "parallel_config"}
    assert "muro" not in msgspec.msgpack.decode(RESPONSE.encode())
    response = msgspec.structs.replace(RESPONSE, muro=Features("1"))
    assert decode_ready_response(response.encode()) == response


def test_unknown_keys_are_ignored_and_missing_addresses_are_none() -> None:
    payload = msgspec.msgpack.encode({"addresses": {"inputs": ["a"], "outputs": ["b"], "new": 1}, "later": {}})
    assert decode_init(payload).addresses == Addresses(["a"], ["b"])


@pytest.mark.parametrize(("inputs", "outputs"), [([], []), (["a"], []), (["a"], ["b", "c"])])
def test_addresses_must_pair_up(inputs: list[str], outputs: list[str]) -> None:
    with pytest.raises(LocalProtocolError, match="at least one"):
        encode_init(Init(Addresses(inputs, outputs)))
    with pytest.raises(RemoteProtocolError, match="at least one"):
        decode_init(msgspec.msgpack.encode({"addresses": {"inputs": inputs, "outputs": outputs}}))


def test_a_dtype_that_front_ends_refuse_is_not_sent() -> None:
    with pytest.raises(LocalProtocolError, match="int8"):
        msgspec.structs.replace(RESPONSE, dtype="int8").encode()
