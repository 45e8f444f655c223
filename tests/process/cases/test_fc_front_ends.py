"""FC-12, FC-13, FC-14, FC-23, FC-27, FC-42, FC-44: one engine and what its front-ends do to it, by raw wire."""

import os
import random
import signal
from functools import partial

import pytest

from muro import connect
from muro.errors import CallFailedError
from muro.wire.failure import ExitCode
from muro.wire.output import EngineCoreOutput, FinishReason
from tests.support.asking import FOREVER, ask
from tests.support.counts import FULL, count
from tests.support.deadline import until
from tests.support.engines import checksum
from tests.support.programs import end, go, line, start
from tests.support.rawpeer import RawClient, RawPeer, raw_peer

LENGTH = FinishReason.LENGTH

pytestmark = pytest.mark.cases


def test_fc23_fc14_many_front_ends_of_one_engine_use_the_same_ids() -> None:
    with raw_peer("echo", clients=32) as peer:
        names = [f"r{number}" for number in range(count(10, 200))]
        for client in peer.clients:
            client.add(*(ask(name, 20, [client.index]) for name in names))
        for client in peer.clients:
            assert {output.finish_reason for output in client.finish(*names)} == {LENGTH}
            assert [client.tokens[name] for name in names] == [[client.index] * 20] * len(names)


FRONT_END = """
import sys
from tests.support.asking import ask
from tests.support.rawpeer import RawClient

names = {names!r}
client = RawClient({index}, {directory!r})
print("bound", flush=True)
client.await_ready(120)
print("ready", flush=True)
sys.stdin.readline()
client.add(*(ask(name, 20, [client.index]) for name in names))
client.finish(*names)
whole = all(client.tokens[name] == [client.index] * 20 for name in names)
print("whole" if whole else client.tokens, *set(client.endings.values()), flush=True)
client.add(ask("long", 2000, [client.index]))
client.read_until(lambda: len(client.tokens.get("long", ())) > 20)
print("under way", flush=True)
sys.stdin.readline()
client.finish("long")
print(client.tokens["long"] == [client.index] * 2000, flush=True)
client.close()
"""


@pytest.mark.timeout(300 if FULL else 60)
def test_fc23_many_front_ends_in_processes_of_their_own() -> None:
    """All at one moment and with the same ids; then some of them are killed, and the others' streams go on."""
    number = count(6, 32)
    names = [f"r{name}" for name in range(count(10, 50))]
    peer = RawPeer(1, elsewhere=number - 1)
    source = partial(FRONT_END.format, directory=peer.directory, names=names)
    programs = [start(source(index=index)) for index in range(1, number)]
    try:
        assert {line(program) for program in programs} == {"bound"}
        peer.start("faulty", {"step_ms": 1}, {})
        assert {line(program) for program in programs} == {"ready"}
        (own,) = peer.clients
        own.add(*(ask(name, 20, [0]) for name in names), ask("long", 2000, [0]))
        for program in programs:
            go(program)
        assert {line(program) for program in programs} == {"whole 1"}
        assert {line(program) for program in programs} == {"under way"}
        for program in programs[::4]:
            assert end(program).code == -signal.SIGKILL
        left = [program for program in programs if program.returncode is None]
        for program in left:
            go(program)
        assert {line(program) for program in left} == {"True"}
        done = [end(program, kill=False) for program in left]
        assert [(program.code, program.out, program.err) for program in done] == [(0, "", "")] * len(left)
        own.finish(*names, "long")
        assert own.tokens["long"] == [0] * 2000
        until(lambda: own.call("num_live").result[1] == 0)
    finally:
        for program in programs:
            if program.returncode is None:
                end(program)
        peer.close()


def test_fc14_an_id_twice_from_one_front_end_ends_once_and_leaves_the_other_alone() -> None:
    with raw_peer("faulty", clients=2, step_ms=1) as peer:
        first, second = peer.clients
        second.add(ask("same", 300, [2]))
        for turn in range(count(20, 500)):
            first.add(ask("same", FOREVER, [1]), ask("same", 5, [3]))
            assert first.finish("same")[0].finish_reason is FinishReason.ERROR
            first.forget("same")
            first.add(ask(f"after{turn}", 2))
            first.finish(f"after{turn}")
            assert set(first.endings.values()) == {1}
        second.finish("same")
        assert second.tokens["same"] == [2] * 300


def test_fc13_an_id_comes_again_right_behind_its_abort() -> None:
    """What the engine had said before it read the abort is on its way; the peer tells it by its tokens."""
    with raw_peer("faulty", step_ms=0.2) as peer:
        (client,) = peer.clients
        for turn in range(count(100, 5000)):
            client.add(ask("same", FOREVER, [1]))
            if turn % 2:
                client.read_until(lambda: client.tokens.get("same"))
            client.abort(["same"])
            client.add(ask("same", 4, [2]))
            assert client.finish("same")[0].finish_reason is LENGTH
            assert client.tokens["same"][-4:] == [2] * 4 and set(client.tokens["same"][:-4]) <= {1}
            client.forget("same")
        assert client.call("num_live").result[1] == 0


@pytest.mark.timeout(300 if FULL else 60)
def test_fc12_aborts_at_random_moments_in_any_order() -> None:
    """Twice, for nobody, after the end, and in one burst with the ADD, before it or after it."""
    order = random.Random(12)
    with raw_peer("faulty", clients=2) as peer:
        hurt: set[tuple[int, str]] = set()
        asked: dict[tuple[int, str], int] = {}
        for number in range(count(1500, 40_000)):
            client = order.choice(peer.clients)
            name, length = f"r{number}", order.randrange(1, 40)
            if order.random() < 0.1:
                client.abort([name])  # unknown yet: means nothing
            client.add(ask(name, length, [client.index]))
            asked[client.index, name] = length
            if order.random() < 0.2:
                client.abort([name, name])
                hurt.add((client.index, name))
            victim = f"r{order.randrange(number + 1)}"
            if order.random() < 0.3:
                client.abort([victim, "nobody"])
                client.abort([victim])
                hurt.add((client.index, victim))
            if number % 50 == 0:
                client.read_all()
        for client in peer.clients:
            alive = [name for index, name in asked if index == client.index and (index, name) not in hurt]
            client.finish(*alive)
            assert all(client.tokens[name] == [client.index] * asked[client.index, name] for name in alive)
            assert client.call("num_live").result[1] == 0
            client.read_all()
            assert set(client.endings.values()) == {1}
            assert {output.finish_reason for output in client.ended.values()} == {LENGTH}
        assert peer.child.poll() is None


@pytest.mark.parametrize("when", ["idle", "under load"])
def test_fc27_a_stop_right_after_a_crash_does_not_make_it_an_orderly_end(when: str) -> None:
    with raw_peer("faulty", fault="shutdown:sleep=0.3", step_ms=1) as peer:
        (client,) = peer.clients
        if when == "under load":
            client.add(*(ask(f"r{number}", FOREVER) for number in range(10)))
            client.read_until(lambda: len(client.tokens) == 10)
        client.call("inject", "operation:executor")
        client.read_until(lambda: client.dead)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            os.kill(peer.child.pid, number)
        assert peer.child.wait(10)
        assert peer.child.poll() == ExitCode.ENGINE_FAILED
        assert "executor" in str(peer.child.death().dead_error(0, 0))


@pytest.mark.timeout(1200 if FULL else 60)
def test_fc42_nothing_is_damaged_on_its_way_to_slow_readers() -> None:
    """Every token brings a body of 1 KiB to 1 MiB and small tensors; the last client reads when all has been made."""
    with raw_peer("tests.support.engines:Checksummed", clients=3) as peer:
        seen = 0

        def check(output: EngineCoreOutput) -> None:
            nonlocal seen
            seen += 1
            params, logprobs = output.kv_transfer_params, output.new_logprobs
            assert params is not None and logprobs is not None
            parts = (params["body"], bytes(logprobs.ids.data), bytes(logprobs.ranks.data))
            assert params["checksum"] == checksum(*parts)
            assert not any(logprobs.values.data)

        for client in peer.clients:
            client.on_output = check
        rounds, requests, length = count(3, 300), 2, 30
        for turn in range(rounds):
            names = [f"{turn}-{number}" for number in range(requests)]
            steps = peer.child.progress().steps_ended
            for client in peer.clients:
                client.add(*(ask(name, length) for name in names))
            for client in peer.clients[:2]:
                client.finish(*names)
            until(lambda: peer.child.progress().steps_ended >= steps + length, what="all is made")  # noqa: B023
            peer.clients[2].finish(*names)
        assert seen == rounds * requests * length * len(peer.clients)
        assert {token for client in peer.clients for name in client.tokens for token in client.tokens[name]} == {
            7,
            8,
            9,
        }


def test_fc44_a_result_that_is_too_large_fails_its_call_alone() -> None:
    """A gigabyte, or for the ordinary suite as much over a lower limit."""
    limits, size = ({}, 1 << 30) if FULL else ({"max_message_bytes": 1 << 20}, 4 << 20)
    with connect(engine="faulty", options={"step_ms": 1}, limits=limits) as client:
        stream = client.generate(ask("beside", FOREVER, [5]))
        next(stream)
        with pytest.raises(CallFailedError, match=r"give_back.*max_message_bytes"):
            client.call("give_back", f"long={size}", timeout=50)
        assert [next(stream).new_token_ids for _ in range(50)] == [[5]] * 50
        assert client.call("num_live") == 1


def test_a_client_that_vanishes_harms_nobody_else() -> None:
    with raw_peer("faulty", clients=2, step_ms=1) as peer:
        gone, stays = peer.clients
        gone.add(*(ask(f"r{number}", FOREVER) for number in range(20)))
        stays.add(ask("r0", 200, [2]))
        until(lambda: peer.child.progress().steps_ended > 20)
        gone.close()
        stays.finish("r0")
        assert stays.tokens["r0"] == [2] * 200
        assert_serves(stays)


def assert_serves(client: RawClient) -> None:
    client.add(ask("next"))
    assert client.finish("next")[0].finish_reason is LENGTH
