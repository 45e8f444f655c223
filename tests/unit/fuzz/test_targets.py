"""The fuzzer's own parts: targets survive what is well formed and what is not, and a broken promise is seen."""

from __future__ import annotations

import random

import pytest

from fuzz.decoders import MAX_BYTES, mutated
from fuzz.targets import TARGETS, pack, unpack_frames
from fuzz.walks import MACHINES, load
from tests.support.counts import count


@pytest.mark.parametrize("name", TARGETS)
def test_well_formed_messages(name: str) -> None:
    assert TARGETS[name].seeds
    for frames in TARGETS[name].seeds:
        TARGETS[name].run(frames)


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_messages(name: str) -> None:
    choose = random.Random(name)
    for _ in range(count(300, 20_000)):
        data = mutated(choose, pack(choose.choice(TARGETS[name].seeds)))
        TARGETS[name].run(unpack_frames(data))


def test_frames_travel_as_one_string() -> None:
    frames = [b"", b"a", b"x" * 300]
    assert unpack_frames(pack(frames)) == frames
    assert unpack_frames(b"\x05\x00ab") == [b"ab"]
    assert unpack_frames(b"\x05") == []
    assert len(unpack_frames(bytes(1000))) == 16


def test_mutations_stay_small_and_differ() -> None:
    choose = random.Random(1)
    made = {mutated(choose, b"abcdefgh") for _ in range(100)}
    assert len(made) > 90 and max(map(len, made)) <= MAX_BYTES


@pytest.mark.parametrize("name", MACHINES)
def test_every_walk_is_there(name: str) -> None:
    assert load(name).__name__.endswith("Machine")
