"""aio_replay.py, what is waited for: nobody waits for ever, leaving leaves nothing, and the poisonous are found."""

from __future__ import annotations

import asyncio
import gc

import msgspec
import pytest

from muro.engines.echo import EchoEngine
from muro.errors import EngineDeadError, RequestFailedError, UsageError
from muro.llm.quarantine import Quarantine
from muro.llm.replay import DeathPolicy
from muro.testing.hashing import HashingExecutor
from muro.wire.request import SamplingParams
from tests.support.deadline import until_async
from tests.support.mortal import CRASH, MortalClient, death
from tests.support.replaying import (
    REPLAY,
    LatePoisonable,
    Poisonable,
    drive,
    echo_request,
    hashing,
    llm_over,
    nothing_left,
    read,
    requests_over,
    run,
    settle,
)  # fmt: skip


def test_an_engine_that_cannot_continue_can_start_again() -> None:
    async def test() -> None:
        client = MortalClient(EchoEngine)
        requests = requests_over(client)
        task = asyncio.create_task(read(requests, echo_request()))
        await drive(client, [task], [0])
        assert len(task.result()) == 3

        stream = requests.generate(echo_request())
        client.step()
        await anext(stream)
        client.die()
        with pytest.raises(RequestFailedError, match=r"1 tokens.*does not know how to continue") as raised:
            await anext(stream)
        assert isinstance(raised.value.__cause__, EngineDeadError)
        assert nothing_left(requests)

    run(test)


@pytest.mark.parametrize("policy", [REPLAY, DeathPolicy()])
def test_new_requests_wait_for_the_restart(policy: DeathPolicy) -> None:
    async def test() -> None:
        client = MortalClient(hashing)
        requests = requests_over(client, policy)
        client.die()
        task = asyncio.create_task(read(requests, echo_request()))
        await settle()
        assert not task.done()
        client.replace()
        await drive(client, [task])
        assert len(task.result()) == 3

    run(test)


def test_running_requests_fail_where_that_is_the_policy() -> None:
    async def test() -> None:
        client = MortalClient(hashing)
        requests = requests_over(client, DeathPolicy())
        task = asyncio.create_task(read(requests, echo_request()))
        await settle()
        client.die()
        await settle()
        with pytest.raises(EngineDeadError):
            task.result()

    run(test)


def test_a_request_that_waited_fails_like_any_other() -> None:
    async def test() -> None:
        client = MortalClient(hashing)
        requests = requests_over(client, DeathPolicy())
        client.die()
        task = asyncio.create_task(read(requests, echo_request()))
        await settle()
        client.replace()
        await settle()
        assert len(client.sent) == 1
        client.die()
        await settle()
        with pytest.raises(EngineDeadError):
            task.result()

    run(test)


@pytest.mark.parametrize("running", [True, False])
def test_patience_ends(running: bool) -> None:
    async def test() -> None:
        client = MortalClient(hashing)
        requests = requests_over(client, DeathPolicy(on_engine_death="replay", restart_wait=0.01))
        if not running:
            client.die()
        task = asyncio.create_task(read(requests, echo_request()))
        await settle()
        if running:
            client.die()
        with pytest.raises(EngineDeadError, match=r"within 0.01 s.*engine 0 ended with -9"):
            await task
        assert nothing_left(requests)

    run(test)


def test_without_patience_nothing_waits() -> None:
    async def test() -> None:
        client = MortalClient(hashing)
        requests = requests_over(client, DeathPolicy(on_engine_death="replay", restart_wait=0))
        client.die()
        with pytest.raises(EngineDeadError):
            requests.generate(echo_request())
        assert nothing_left(requests)

    run(test)


def test_when_the_restart_is_given_up_all_who_wait_are_told() -> None:
    async def test() -> None:
        client = MortalClient(hashing)
        requests = requests_over(client)
        client.die()
        task = asyncio.create_task(read(requests, echo_request()))
        await settle()
        client.give_up()
        with pytest.raises(EngineDeadError, match="ended with -9"):
            await task
        with pytest.raises(EngineDeadError):
            requests.generate(echo_request())
        assert nothing_left(requests)

    run(test)


@pytest.mark.parametrize("delivered", [0, 1])
def test_aborted_while_it_waits(delivered: int) -> None:
    async def test() -> None:
        client = MortalClient(hashing)
        llm = llm_over(client)
        generation = llm.submit("r", [[1], [2]], SamplingParams(max_tokens=30, ignore_eos=True))

        async def collect() -> list[str | None]:
            return [piece.finish_reason async for piece in generation]

        task = asyncio.create_task(collect())
        await settle()
        for _ in range(delivered):
            client.step()
        await settle()
        client.die()
        await settle()
        assert llm.abort_all() == 1
        await settle()
        assert [reason for reason in task.result() if reason] == ["abort", "abort"]
        assert nothing_left(llm._requests)

    run(test)


def test_aborted_before_its_reader_heard_of_the_death() -> None:
    async def test() -> None:
        client = MortalClient(hashing)
        llm = llm_over(client)
        generation = llm.submit("r", [[1]], SamplingParams(max_tokens=30, ignore_eos=True))
        client.die()
        llm.abort_all()
        assert (await anext(generation)).finish_reason == "abort"
        client.replace()
        await settle()
        assert len(client.sent) == 1

    run(test)


def try_another(quarantine: Quarantine) -> None:
    """Keep everybody waiting for a suspect."""
    quarantine.enter("other")
    for generation in (-2, -1):
        quarantine.began("other", (0, generation))
        quarantine.died((0, generation), EngineDeadError("killed", exit_status=-9))
    quarantine.ask("other")
    assert quarantine.may_run("other") and quarantine.trying


@pytest.mark.parametrize("where", ["running", "waiting for the engine", "waiting for its turn"])
@pytest.mark.parametrize("how", ["cancelled", "closed", "lost"])
def test_a_reader_who_leaves_leaves_nothing(how: str, where: str) -> None:
    async def test() -> None:
        client = MortalClient(hashing)
        requests = requests_over(client)
        if where == "waiting for its turn":
            try_another(requests.quarantine)
        if where == "waiting for the engine":
            client.die()
        stream = requests.generate(echo_request())
        task = asyncio.create_task(anext(stream))  # type: ignore[arg-type]
        await settle()
        if how == "closed":
            await stream.aclose()
            with pytest.raises(StopAsyncIteration):
                await task
        else:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        if how == "lost":
            if where == "waiting for the engine":
                client.replace()
            requests.quarantine.leave("other")
            requests.generate(msgspec.structs.replace(echo_request(), request_id="lost"))
        del stream, task
        gc.collect()
        await settle()
        requests.quarantine.leave("other")
        assert nothing_left(requests)
        assert len(client.session) == 0

    run(test)


def test_a_second_reader_is_refused_and_the_first_goes_on() -> None:
    async def test() -> None:
        client = MortalClient(hashing)
        requests = requests_over(client)
        client.die()
        stream = requests.generate(echo_request())
        task = asyncio.create_task(anext(stream))  # type: ignore[arg-type]
        await settle()
        with pytest.raises(UsageError):
            await anext(stream)
        client.replace()
        await drive(client, [task])
        assert len(task.result().new_token_ids) == 1
        await stream.aclose()

    run(test)


@pytest.mark.parametrize(("kind", "deaths"), [(Poisonable, 3), (LatePoisonable, 4)])
def test_a_poisonous_request_is_found_and_nobody_else_is_hurt(kind: type[HashingExecutor], deaths: int) -> None:
    async def test() -> None:
        client = MortalClient(lambda: hashing(kind=kind))
        llm = llm_over(client)
        params = SamplingParams(max_tokens=15, ignore_eos=True, temperature=0.0)

        async def ask(prompt: list[int]) -> list[int]:
            async for output in llm.generate(prompt, params):
                last = output
            return last.outputs[0].token_ids

        innocent = [asyncio.create_task(ask([number, 5])) for number in range(8)]
        for _ in range(4):
            await settle()
            client.step()
        poison = asyncio.create_task(ask([13, 5]))
        late = [asyncio.create_task(ask([number, 6])) for number in range(4)]
        tasks = [*innocent, poison, *late]
        for _ in range(300):
            await settle()
            try:
                client.step()
            except MemoryError:
                client.die(death(1))
                await settle()
                client.replace()
        assert all(task.done() for task in tasks)
        with pytest.raises(RequestFailedError, match=rf"{deaths} times .* nothing else explains"):
            poison.result()
        for task in [*innocent, *late]:
            assert len(task.result()) == 15
        assert client.generation == deaths
        assert llm.metrics.quarantined == 1
        assert nothing_left(llm._requests)

    run(test)


def test_many_suspects_are_tried_in_a_few_steps() -> None:
    async def test() -> None:
        client = MortalClient(lambda: hashing(seqs=64, budget=1000))
        requests = requests_over(client)
        asked = [msgspec.structs.replace(echo_request(), request_id=str(number)) for number in range(31)]
        tasks = [asyncio.create_task(read(requests, request)) for request in asked]
        for _ in range(2):
            await settle()
            client.die()
            await settle()
            client.replace()
        steps = 0
        while not all(task.done() for task in tasks):
            for _ in range(len(tasks)):
                await settle()
            client.step()
            steps += 1
        assert steps < 14, "4 alone, 2, 4, 8 and 16 at once, and the last of them make three tokens"
        assert nothing_left(requests)

    run(test)


def test_a_reader_who_stops_in_a_trial_holds_nobody_up() -> None:
    """After three crashes a trial takes several tokens, and this one's reader takes but one."""

    async def test() -> None:
        client = MortalClient(hashing)
        requests = requests_over(client)
        params = SamplingParams(max_tokens=30, ignore_eos=True)
        stopped, other = (
            requests.generate(msgspec.structs.replace(echo_request(), request_id=name, sampling_params=params))
            for name in ("stopped", "other")
        )
        for _ in range(4):
            asked = [asyncio.create_task(anext(stream)) for stream in (stopped, other)]  # type: ignore[arg-type]
            await settle()
            client.step()
            await asked[0]
            if client.generation < 3:
                await asked[1]
                client.die(CRASH)
                client.replace()
        assert requests.quarantine.trying and not asked[1].done()

        def stepped() -> bool:
            client.step()
            return asked[1].done()

        await until_async(stepped)
        assert not requests.quarantine.verdict(stopped.key)  # type: ignore[attr-defined]
        for stream in (stopped, other):
            await stream.aclose()
        assert nothing_left(requests)

    run(test)
