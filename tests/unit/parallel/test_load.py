"""What the coordinator publishes of the load, and when."""

import pytest

from muro.parallel.load import PUBLISH_AT_LEAST, PUBLISH_WITHIN, SETTLE, LoadBoard
from muro.wire.stats import SchedulerStats


def stats(waiting: int = 0, running: int = 0, kv: float = 0.0, wave: int = 0, step: int = 0) -> SchedulerStats:
    return SchedulerStats(running, waiting, step_counter=step, current_wave=wave, kv_cache_usage=kv)


def test_counts_in_both_shapes() -> None:
    for with_kv, row in [(True, [3, 4, 0.5]), (False, [3, 4])]:
        board = LoadBoard(2, with_kv_usage=with_kv)
        assert board.report(1, stats(3, 4, 0.5), 0.0)
        assert board.publish(0.0)[1] == row
        assert len(board.publish(0.0)[0]) == len(row)


@pytest.mark.parametrize(("rank", "waiting"), [(2, 0), (-1, 0), (0, -1)])
def test_reports_that_make_no_sense(rank: int, waiting: int) -> None:
    board = LoadBoard(2)
    board.publish(0.0)
    assert not board.report(rank, stats(waiting, 1), 1.0)
    assert board.due() == PUBLISH_AT_LEAST, "nothing has changed"


def test_a_change_is_published_soon_and_no_change_now_and_then() -> None:
    board = LoadBoard(2, now=10.0)
    assert board.due() <= 10.0, "at once when it begins"
    board.publish(10.0)
    assert board.due() == 10.0 + PUBLISH_AT_LEAST
    board.report(0, stats(running=1), 10.02)
    assert board.due() == pytest.approx(10.0 + PUBLISH_WITHIN)
    board.report(0, stats(running=1), 10.5)
    board.publish(10.5)
    board.report(0, stats(running=1), 10.6)
    assert board.due() == 10.5 + PUBLISH_AT_LEAST, "the same again is no change"
    board.report(0, stats(running=2), 12.0)
    assert board.due() == 12.0


def test_lockstep_ranks_are_published_when_their_step_is_complete() -> None:
    board = LoadBoard(2, lockstep=True)
    board.publish(0.0)
    board.report(0, stats(running=1, step=1), 2.0)
    assert board.due() == pytest.approx(2.0 + SETTLE)
    board.report(1, stats(running=1, step=1), 2.03)
    assert board.due() == pytest.approx(2.0 + SETTLE), "it belongs to the same step"
    for step in range(2, 50):
        board.report(0, stats(running=step, step=step), 2.0 + step / 100)
    assert board.due() == pytest.approx(2.0 + PUBLISH_WITHIN), "fast steps do not put it off for ever"


def test_a_lost_rank_holds_nothing() -> None:
    board = LoadBoard(2)
    board.report(1, stats(2, 3), 0.0)
    board.publish(1.0)
    board.lost(1, 2.0)
    board.lost(9, 2.0)
    assert board.due() == 2.0 and board.publish(2.0) == [[0, 0, 0.0]] * 2


def test_ranks_come_and_go() -> None:
    board = LoadBoard(1)
    board.report(0, stats(1, 1), 0.0)
    assert board.resize(3, 0.0) and board.report(2, stats(5), 0.0)
    assert [row[0] for row in board.publish(0.0)] == [1, 0, 5]
    assert board.resize(2, 0.0) and board.size == 2 and not board.report(2, stats(5), 0.0)
    assert not board.resize(0, 0.0) and not board.resize(65537, 0.0)
