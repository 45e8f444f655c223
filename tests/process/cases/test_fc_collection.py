"""FC-46: the garbage collector holds no step up, and still collects. `pytest -s` shows what it took."""

import time

import pytest

from muro import connect
from tests.support.asking import ask
from tests.support.counts import count
from tests.support.engines import Littering

pytestmark = [pytest.mark.cases, pytest.mark.timeout(count(120, 1200))]

SECONDS = count(5, 600)
"""How long the engine is kept busy."""
LONGEST = 0.05
"""Seconds that a collection may take."""


def test_fc46_collection_holds_no_step_up_and_goes_on() -> None:
    """A million objects from before serving, a thousand more in cycles with every step."""
    with connect(engine=Littering) as client:
        before = len(client.call("pauses"))
        end, rounds = time.monotonic() + SECONDS, 0
        while time.monotonic() < end:
            rounds += 1
            streams = [client.generate(ask(f"{rounds}-{number}", 200)) for number in range(8)]
            assert sum(len(output.new_token_ids) for stream in streams for output in stream) == 8 * 200
        made, left = client.call("cycles")
        client.call("collect")
        pauses = client.call("pauses")[before:]
        assert client.call("cycles")[1] <= 1
    took = [seconds for _, seconds in pauses]
    oldest = [seconds for generation, seconds in pauses if generation == 2]
    print(
        f"\n{made} cycles made, {left * 1000} of them left; {len(pauses)} collections, {len(oldest)} of all "
        f"generations; the longest {max(took) * 1000:.1f} ms"
    )
    assert len(pauses) > 20 and max(took) < LONGEST
    assert left * 1000 < made / 2, "what steps leave behind is reclaimed"
    assert oldest
