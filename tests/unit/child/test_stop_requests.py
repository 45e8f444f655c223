"""How often a stop was asked for, and who waits for it."""

import asyncio
import threading

from muro.child.stop_requests import StopRequests


def test_whoever_waits_for_so_many_is_woken_by_the_last_of_them() -> None:
    async def main() -> None:
        stops = StopRequests()
        first, second = asyncio.ensure_future(stops.asked()), asyncio.ensure_future(stops.asked(2))
        await asyncio.sleep(0)
        stops.ask()
        await first
        assert not second.done() and stops.count == 1
        thread = threading.Thread(target=stops.ask_soon)
        thread.start()
        thread.join()
        await second
        await stops.asked(2)

    asyncio.run(main())


def test_too_late_is_no_error() -> None:
    async def main() -> StopRequests:
        return StopRequests()

    stops = asyncio.run(main())
    stops.ask_soon()
    assert stops.count == 0
