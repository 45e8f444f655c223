"""Which layout each client reads: what is told, and what the first request shows."""

import pytest

from muro.errors import ConfigError
from muro.ids import ClientIndex
from muro.process.peers import PeerLayouts
from muro.wire.releases import LAYOUTS, NEWEST, SAFE, layout_for_add_length

C0, C1 = ClientIndex(0), ClientIndex(1)


def test_a_stranger_gets_the_safe_layout_until_it_shows_itself() -> None:
    peers = PeerLayouts(2, "auto", ours=False)
    assert (peers[C0], peers[C1]) == (SAFE, SAFE)
    peers.learn(C0, 22)
    assert peers[C0] is layout_for_add_length(22) is not SAFE
    assert peers[C1] is SAFE, "each client for itself"


def test_only_the_first_request_counts() -> None:
    peers = PeerLayouts(1, "auto", ours=False)
    peers.learn(C0, 20)
    peers.learn(C0, 22)
    assert peers[C0] is SAFE


@pytest.mark.parametrize("length", [0, 5, 19])
def test_a_length_that_says_nothing_changes_nothing(length: int) -> None:
    peers = PeerLayouts(1, "auto", ours=False)
    peers.learn(C0, length)
    assert peers[C0] is SAFE


def test_what_a_client_calls_tells_how_old_it_can_be() -> None:
    peers = PeerLayouts(2, "auto", ours=False)
    peers.learn_call(C0, "sleep")
    peers.learn_call(C0, "no such thing")
    assert peers[C0] is SAFE, "every release has it"
    peers.learn_call(C0, "set_weight_version")
    assert peers[C0] is LAYOUTS["0.27"] and not peers[C0].wake_up_gives_bool
    peers.learn_call(C0, "pause_generation")
    assert peers[C0] is layout_for_add_length(22) and peers[C0].wake_up_gives_bool
    peers.learn_call(C0, "set_weight_version")
    assert peers[C0].wake_up_gives_bool, "nothing is forgotten"
    assert peers[C1] is SAFE, "each client for itself"


@pytest.mark.parametrize(("release", "ours"), [("0.25", False), ("auto", True)])
def test_a_call_changes_nothing_where_the_release_is_known(release: str, ours: bool) -> None:
    peers = PeerLayouts(1, release, ours)
    before = peers[C0]
    peers.learn_call(C0, "pause_generation")
    assert peers[C0] is before


def test_our_own_front_end_reads_the_newest_at_once() -> None:
    peers = PeerLayouts(1, "auto", ours=True)
    peers.learn(C0, 20)
    assert peers[C0] is NEWEST


def test_what_the_operator_says_is_not_doubted() -> None:
    peers = PeerLayouts(1, "0.27", ours=False)
    peers.learn(C0, 22)
    assert peers[C0] is LAYOUTS["0.27"]


def test_an_unknown_release_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigError, match=r"0\.1"):
        PeerLayouts(1, "0.1", ours=False)
