import asyncio
import os
from collections.abc import Iterator

import pytest

from muro.transport.aio import AsyncReader
from muro.transport.sockets import (
    Frame,
    Socket,
    bind_pull,
    bind_router,
    bound_address,
    close,
    connect_dealer,
    connect_push,
    send_nowait,
)
from muro.transport.wakeup import Wakeup
from tests.support.deadline import until_async

LOOPBACK = "tcp://127.0.0.1:0"
Pair = tuple[Socket, Socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    pull = bind_pull(LOOPBACK)
    push = connect_push(bound_address(pull), linger_ms=0)
    yield pull, push
    close(push)
    close(pull)


def test_messages_arrive_in_order(pair: Pair) -> None:
    pull, push = pair

    async def main() -> list[list[Frame]]:
        got: list[list[Frame]] = []
        reader = AsyncReader(asyncio.get_running_loop())
        reader.watch(pull, got.append)
        for number in range(1000):
            send_nowait(push, [b"%d" % number, b"tail"])
            if number % 100 == 0:
                await until_async(lambda: len(got) > number)  # noqa: B023 - awaited at once
        await until_async(lambda: len(got) == 1000)
        reader.close()
        return got

    assert asyncio.run(main()) == [[b"%d" % number, b"tail"] for number in range(1000)]


def test_what_waits_before_watching_is_not_missed(pair: Pair) -> None:
    """The edge is consumed first: the message lies there, and the descriptor says nothing."""
    pull, push = pair
    send_nowait(push, [b"first"])
    send_nowait(push, [b"second"])
    assert pull.recv() == b"first"

    async def main() -> list[list[Frame]]:
        got: list[list[Frame]] = []
        reader = AsyncReader(asyncio.get_running_loop())
        reader.watch(pull, got.append)
        await until_async(lambda: got)
        reader.close()
        return got

    assert asyncio.run(main()) == [[b"second"]]


def test_a_send_that_swallows_the_edge_is_made_good_by_a_nudge() -> None:
    async def main() -> None:
        router = bind_router(LOOPBACK)
        dealer = connect_dealer(bound_address(router), b"\0\0")
        got: list[list[Frame]] = []
        reader = AsyncReader(asyncio.get_running_loop())
        reader.watch(router, got.append)
        send_nowait(dealer, [b"0"])
        await until_async(lambda: got)
        for number in range(1, 500):
            send_nowait(dealer, [b"%d" % number])
            send_nowait(router, [b"\0\0", b"reply"])
            reader.nudge(router)
        await until_async(lambda: len(got) == 500)
        reader.close()
        close(dealer)
        close(router)

    asyncio.run(main())


def test_a_flood_leaves_turns_to_others(pair: Pair) -> None:
    pull, push = pair
    for _ in range(1000):
        send_nowait(push, [b"x"])

    async def main() -> int:
        got: list[list[Frame]] = []
        longest = turns = 0
        reader = AsyncReader(asyncio.get_running_loop(), budget=10)
        reader.watch(pull, got.append)
        while len(got) < 1000:
            before = len(got)
            await asyncio.sleep(0)
            longest = max(longest, len(got) - before)
            turns += 1
        reader.close()
        assert turns >= 50
        return longest

    assert asyncio.run(main()) <= 20  # the descriptor's turn and the continued one


def test_a_failing_callback_costs_no_later_message(pair: Pair) -> None:
    pull, push = pair

    async def main() -> tuple[list[Frame], int]:
        loop = asyncio.get_running_loop()
        errors: list[object] = []
        loop.set_exception_handler(lambda _, told: errors.append(told["exception"]))
        got: list[Frame] = []

        def take(frames: list[Frame]) -> None:
            if frames == [b"bad"]:
                raise ValueError("bad")
            got.extend(frames)

        for text in (b"one", b"bad", b"two", b"bad", b"three"):
            send_nowait(push, [text])
        reader = AsyncReader(loop)
        reader.watch(pull, take)
        await until_async(lambda: len(got) == 3)
        reader.close()
        return got, len(errors)

    assert asyncio.run(main()) == ([b"one", b"two", b"three"], 2)


def test_a_callback_may_forget_its_own_socket(pair: Pair) -> None:
    pull, push = pair
    for _ in range(3):
        send_nowait(push, [b"x"])

    async def main() -> int:
        got: list[list[Frame]] = []
        reader = AsyncReader(asyncio.get_running_loop())

        def once(frames: list[Frame]) -> None:
            got.append(frames)
            reader.forget(pull)

        reader.watch(pull, once)
        await until_async(lambda: got)
        for _ in range(20):
            await asyncio.sleep(0)
        reader.forget(pull)
        return len(got)

    assert asyncio.run(main()) == 1


def test_watching_twice_is_refused(pair: Pair) -> None:
    pull, _ = pair

    async def main() -> None:
        reader = AsyncReader(asyncio.get_running_loop())
        reader.watch(pull, lambda frames: None)
        with pytest.raises(ValueError, match="already"):
            reader.watch(pull, lambda frames: None)
        reader.close()

    asyncio.run(main())


def test_descriptors_are_watched_too() -> None:
    async def main() -> list[str]:
        reading, writing = os.pipe()
        seen: list[str] = []
        with Wakeup() as wakeup:
            reader = AsyncReader(asyncio.get_running_loop())

            def woken() -> None:
                wakeup.clear()
                seen.append("woken")

            def ended() -> None:
                reader.forget(reading)
                seen.append("ended")

            reader.watch_descriptor(wakeup.fileno(), woken)
            reader.watch_descriptor(reading, ended)
            wakeup.set()
            await until_async(lambda: seen == ["woken"])
            os.close(writing)
            await until_async(lambda: seen == ["woken", "ended"])
            reader.close()
            wakeup.set()
            for _ in range(10):
                await asyncio.sleep(0)
        os.close(reading)
        return seen

    assert asyncio.run(main()) == ["woken", "ended"]


def test_closing_twice_and_after_the_loop_is_fine(pair: Pair) -> None:
    pull, _ = pair
    readers: list[AsyncReader] = []

    async def main() -> None:
        reader = AsyncReader(asyncio.get_running_loop())
        reader.watch(pull, lambda frames: None)
        readers.append(reader)

    asyncio.run(main())
    readers[0].close()
    readers[0].close()
