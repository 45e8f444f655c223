from muro.clients.traffic import Traffic
from muro.ids import EngineRank, Generation
from muro.wire.frames import identity_of

A, B = EngineRank(0), EngineRank(1)
FIRST, SECOND = Generation(0), Generation(1)


def test_messages_are_counted_for_each_engine() -> None:
    traffic = Traffic()
    assert traffic.sent(A, FIRST) == 0
    for identity in (identity_of(A), identity_of(B), identity_of(A)):
        traffic.message_sent(identity)
    assert (traffic.sent(A, FIRST), traffic.sent(B, FIRST)) == (2, 1)


def test_a_successor_was_sent_nothing_until_messages_go_to_it() -> None:
    traffic = Traffic()
    traffic.message_sent(identity_of(A))
    assert traffic.sent(A, SECOND) == 0, "it is ready, but its client has not heard of it yet"
    traffic.succeeded(A, SECOND)
    assert (traffic.sent(A, FIRST), traffic.sent(A, SECOND)) == (0, 0)
    traffic.message_sent(identity_of(A))
    assert traffic.sent(A, SECOND) == 1
