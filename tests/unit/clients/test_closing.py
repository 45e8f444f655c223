"""A thread that lives as long as its work, and is waited for even by who was cancelled."""

import asyncio
import threading

import pytest

from muro.clients.closing import in_thread, runs_in


def test_the_work_is_done_elsewhere_and_its_thread_ends() -> None:
    where: list[threading.Thread] = []

    async def main() -> None:
        await in_thread(lambda: where.append(threading.current_thread()))
        assert not where[0].is_alive()

    asyncio.run(main())
    assert where[0] is not threading.current_thread()


def test_what_the_work_raises_comes_back() -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        asyncio.run(in_thread(fail))


def test_a_cancelled_caller_waits_for_the_end_which_it_may_hasten() -> None:
    begun, stop = threading.Event(), threading.Event()
    ended = []

    def work() -> None:
        begun.set()
        stop.wait(20)
        ended.append(True)

    async def main() -> None:
        task = asyncio.create_task(in_thread(work, stop.set))
        await asyncio.to_thread(begun.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended

    asyncio.run(main())


def test_a_loop_knows_its_own_coroutines() -> None:
    other = asyncio.new_event_loop()

    async def main() -> None:
        assert runs_in(asyncio.get_running_loop()) and not runs_in(other)

    asyncio.run(main())
    assert not runs_in(other)
    other.close()
