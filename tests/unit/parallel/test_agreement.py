"""Who has voted what in which round, in any order of votes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muro.errors import LocalProtocolError, RemoteProtocolError
from muro.parallel.agreement import Agreement


def test_a_round() -> None:
    one = Agreement(0, 3)
    assert one.vote(False) == 0
    assert one.decide() is None and one.missing() == [1, 2]
    assert one.hear(2, 0, True)
    assert one.decide() is None and one.missing() == [1]
    assert one.hear(1, 0, False)
    assert one.decide() is True and one.round == 1
    assert one.missing() == [0, 1, 2]


def test_the_vote_of_another_is_awaited_until_ours() -> None:
    one = Agreement(1, 2)
    assert not one.is_awaited
    one.hear(0, 0, False)
    assert one.is_awaited
    one.vote(False)
    assert not one.is_awaited and one.decide() is False


def test_one_may_be_a_round_ahead() -> None:
    one = Agreement(0, 2)
    one.vote(False)
    one.hear(1, 0, False)
    one.hear(1, 1, True)
    assert one.votes() == [(0, 0, False), (1, 0, False), (1, 1, True)]
    assert one.decide() is False
    assert one.is_awaited and one.vote(False) == 1
    assert one.decide() is True


def test_a_vote_that_comes_again_is_no_news() -> None:
    one = Agreement(0, 2)
    assert one.hear(1, 0, True) and one.hear(1, 0, True)
    one.vote(False)
    one.decide()
    assert not one.hear(1, 0, True)


@pytest.mark.parametrize("vote", [(1, 2, True), (0, 0, True), (2, 0, True), (-1, 0, True)])
def test_votes_that_nobody_can_have_cast(vote: tuple[int, int, bool]) -> None:
    with pytest.raises(RemoteProtocolError):
        Agreement(0, 2).hear(*vote)


def test_nobody_votes_twice() -> None:
    one = Agreement(0, 2)
    one.vote(True)
    with pytest.raises(LocalProtocolError, match="has voted"):
        one.vote(True)
    one.hear(1, 0, True)
    with pytest.raises(RemoteProtocolError, match="differently"):
        one.hear(1, 0, False)


def test_a_rank_outside_the_group() -> None:
    with pytest.raises(LocalProtocolError):
        Agreement(2, 2)


@given(data=st.data(), size=st.integers(1, 5), rounds=st.lists(st.integers(0, 31), min_size=1, max_size=5))
def test_all_decide_the_same_in_whatever_order_votes_arrive(data: st.DataObject, size: int, rounds: list[int]) -> None:
    ranks = [Agreement(rank, size) for rank in range(size)]
    outcomes: list[list[bool]] = [[] for _ in ranks]
    voted = [False] * size
    on_the_way: list[tuple[int, tuple[int, int, bool]]] = []
    while any(len(done) < len(rounds) for done in outcomes):
        able = [r for r in range(size) if not voted[r] and len(outcomes[r]) < len(rounds)]
        at = data.draw(st.integers(0, len(able) + len(on_the_way) - 1))
        if at < len(able):
            rank = able[at]
            mine = bool(rounds[len(outcomes[rank])] >> rank & 1)
            number = ranks[rank].vote(mine)
            voted[rank] = True
            on_the_way += [(other, (rank, number, mine)) for other in range(size) if other != rank]
        else:
            rank, vote = on_the_way.pop(at - len(able))
            if vote[1] > ranks[rank].round + 1:
                raise AssertionError("two rounds ahead")
            ranks[rank].hear(*vote)
        if voted[rank] and (outcome := ranks[rank].decide()) is not None:
            outcomes[rank].append(outcome)
            voted[rank] = False
    assert outcomes == [[bool(r % (1 << size)) for r in rounds]] * size
