"""admission.py: what is taken is given back, and what is over a bound is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muro.errors import OverloadedError
from muro.server.admission import Admission, Ticket
from muro.server.limits import HttpLimits
from muro.testing.clock import ManualClock


def admission(**limits: int) -> tuple[Admission, ManualClock]:
    clock = ManualClock()
    return Admission(HttpLimits(**limits), clock), clock  # type: ignore[arg-type]


def test_as_many_as_may_wait() -> None:
    door, _ = admission(max_queued_requests=2)
    tickets = [door.enter() for _ in range(3)]  # their bodies are not read: nobody waits yet
    for ticket in tickets[:2]:
        ticket.queue(1, 10)
    assert (door.queued_requests, door.queued_tokens, door.full) == (2, 20, True)
    with pytest.raises(OverloadedError, match="2 requests wait"):
        door.check()
    with pytest.raises(OverloadedError):
        tickets[2].queue(1, 10)
    assert door.refused["requests"] == 2
    tickets[0].begin()
    tickets[2].queue(1, 10)


def test_an_empty_queue_takes_any_one() -> None:
    door, _ = admission(max_queued_requests=2, max_queued_tokens=100)
    first = door.enter()
    first.queue(7, 5000)
    with pytest.raises(OverloadedError):
        door.enter()
    first.close()
    second, third = door.enter(), door.enter()
    second.queue(1, 60)
    with pytest.raises(OverloadedError, match="60 tokens wait, and this one has 50"):
        third.queue(1, 50)
    assert door.refused["tokens"] == 1


def test_choices_leave_one_by_one_with_their_share_of_the_prompt() -> None:
    door, _ = admission()
    with door.enter() as ticket:
        ticket.queue(3, 10)
        seen = []
        for _ in range(4):
            seen.append((door.queued_requests, door.queued_tokens))
            ticket.begin()
        assert seen == [(3, 10), (2, 7), (1, 4), (0, 0)]
    ticket.close()
    assert (door.queued_requests, door.queued_tokens) == (0, 0)


def test_the_hint_is_how_long_the_last_one_waited() -> None:
    door, clock = admission(max_queued_requests=1)
    assert door.retry_after == 1.0
    for wait, hint in ((4.5, 4.5), (500.0, 30.0), (0.1, 1.0)):
        with door.enter() as ticket:
            ticket.queue(1, 1)
            clock.advance(wait)
            with pytest.raises(OverloadedError):
                door.enter()
            ticket.begin()
            assert door.retry_after == hint


def test_bodies_that_are_held() -> None:
    door, _ = admission(max_held_body_bytes=100)
    first, second = door.enter(), door.enter()
    first.hold(1000)
    with pytest.raises(OverloadedError, match="1000 bytes"):
        second.hold(1)
    first.hold(0)
    second.hold(60)
    second.hold(90)
    with pytest.raises(OverloadedError):
        first.hold(20)
    second.close()
    first.close()
    assert door.held_body_bytes == 0
    assert door.refused["bodies"] == 2


Move = Callable[[Ticket, int], None]
MOVES: list[Move] = [
    lambda ticket, size: ticket.hold(size),
    lambda ticket, size: ticket.begin(),
    lambda ticket, size: ticket.close(),
]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 500)), max_size=60))
def test_in_the_end_nothing_is_taken(moves: list[tuple[int, int, int]]) -> None:
    door, _ = admission(max_queued_requests=8, max_queued_tokens=600, max_held_body_bytes=600)
    tickets = [door.enter() for _ in range(5)]
    for number, ticket in enumerate(tickets):
        try:
            ticket.queue(number + 1, number * 100)
        except OverloadedError:
            continue
    for who, move, size in moves:
        try:
            MOVES[move](tickets[who], size)
        except OverloadedError:
            continue
        assert min(door.queued_requests, door.queued_tokens, door.held_body_bytes) >= 0
    for ticket in tickets:
        ticket.close()
    assert (door.queued_requests, door.queued_tokens, door.held_body_bytes) == (0, 0, 0)
