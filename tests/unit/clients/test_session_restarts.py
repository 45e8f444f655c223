"""The session of engines that die and get successors."""

import pytest

from muro.errors import EngineDeadError
from muro.ids import EngineRank, Generation
from muro.wire.frames import identity_of
from muro.wire.output import FinishReason
from tests.support.asking import ask, output, outputs
from tests.support.fake_engine import RESPONSE as READY
from tests.support.sessions import Sink, add, batches, new_session


def test_in_batches_requests_of_an_engine_that_is_restarted_end_in_a_batch() -> None:
    session = new_session(2)
    first, second = add(session, "a", data_parallel_rank=0), add(session, "b", data_parallel_rank=1)
    session.receive(outputs(output(first.request_id, 7)))
    session.died(EngineRank(0), 0, EngineDeadError("killed by SIGKILL", rank=0, restarting=True))
    told, ended = batches(session)
    assert (told.request_id, told.new_token_ids, told.finish_reason) == ("a", [7], None)
    assert (ended.request_id, ended.finish_reason) == ("a", FinishReason.ERROR)
    assert ended.error is not None and (ended.error.code, ended.error.retryable) == ("engine_dead", True)
    session.receive(outputs(output(second.request_id, 8, finish=FinishReason.STOP), rank=1))
    assert [item.request_id for item in batches(session)] == ["b"]
    assert len(session) == 0


def test_some_engine_must_serve() -> None:
    session = new_session(2)
    session.check_serving()
    session.died(EngineRank(0), 0, EngineDeadError("killed by SIGKILL", rank=0, restarting=True))
    session.check_serving()
    session.died(EngineRank(1), 0, EngineDeadError("killed by SIGSEGV", rank=1))
    with pytest.raises(EngineDeadError, match="SIGKILL") as caught:
        session.check_serving()
    assert caught.value.restarting
    session.succeeded(EngineRank(1), Generation(3), READY)
    session.succeeded(EngineRank(1), Generation(3), READY)  # told twice
    session.check_serving()
    assert add(session).request_id.startswith("a-")
    assert [engine.generation for engine in session.engines.values()] == [0, 3]


def test_an_engine_that_is_known_to_have_died_gets_no_more_requests_but_is_still_heard() -> None:
    session, sink = new_session(2), Sink()
    sent = add(session, "a", sink, data_parallel_rank=1)
    error = EngineDeadError("killed by SIGSEGV", rank=1, generation=0)
    session.doom({EngineRank(1): error})
    assert [session.add(ask(f"r{n}"), Sink(), 0.0)[1][0] for n in range(3)] == [identity_of(EngineRank(0))] * 3
    with pytest.raises(EngineDeadError, match="SIGSEGV"):
        add(session, "pinned", Sink(), data_parallel_rank=1)
    session.receive(outputs(output(sent.request_id, 7), rank=1))
    session.died(EngineRank(1), 0, error)
    assert [item.new_token_ids for item in sink.outputs] == [[7]] and len(sink.errors) == 1
    session.succeeded(EngineRank(1), Generation(1), READY)
    session.doom({EngineRank(1): error})  # late news of an older generation
    assert add(session, "pinned", Sink(), data_parallel_rank=1)


def test_why_a_message_was_not_taken() -> None:
    session = new_session(2)
    attempt, message = session.add(ask("a"), None, 0.0)
    session.drop([attempt])
    with pytest.raises(EngineDeadError, match="not connected"):
        session.refused(message, {}, elsewhere=True)
    rank = attempt.engine.rank
    dying = {rank: EngineDeadError("killed by SIGSEGV", rank=rank)}
    session.refused(message, dying, elsewhere=True)
    with pytest.raises(EngineDeadError, match="SIGSEGV"):
        session.refused(message, dying, elsewhere=False)
    assert session.add(ask("a"), None, 0.0)[0].engine.rank != rank


def test_an_engine_that_is_given_up_takes_nobody_along() -> None:
    session, sinks = new_session(3), [Sink(), Sink(), Sink()]
    sent = [add(session, str(n), sink, data_parallel_rank=n) for n, sink in enumerate(sinks)]
    for rank in (0, 2):
        error = EngineDeadError(f"engine {rank} died of SIGSEGV", rank=rank)
        session.died(EngineRank(rank), 0, error)
        session.given_up(EngineRank(rank), error)
    session.receive(outputs(output(sent[1].request_id, 7, finish=FinishReason.STOP), rank=1))
    assert [sink.endings for sink in sinks] == [1, 1, 1] and not sinks[1].errors
    assert add(session, "more", Sink())
    with pytest.raises(EngineDeadError, match="engine 2"):
        session.check_serving(2)
    last = EngineDeadError("engine 1 died of SIGSEGV", rank=1)
    session.died(EngineRank(1), 0, last)
    session.given_up(EngineRank(1), last)
    with pytest.raises(EngineDeadError, match="engine 1"):
        session.check()


def test_while_one_comes_back_nobody_is_without_hope() -> None:
    session = new_session(2)
    session.died(EngineRank(1), 0, EngineDeadError("killed by SIGKILL", rank=1, restarting=True))
    gone = EngineDeadError("a crash loop", rank=0)
    session.died(EngineRank(0), 0, gone)
    session.given_up(EngineRank(0), gone)
    with pytest.raises(EngineDeadError, match="SIGKILL") as caught:
        session.check_serving()
    assert caught.value.restarting


def test_in_batches_requests_of_an_engine_that_is_given_up_end_in_a_batch_too() -> None:
    session = new_session(2)
    add(session, "a", data_parallel_rank=0)
    gone = EngineDeadError("a crash loop", rank=0)
    session.died(EngineRank(0), 0, gone)
    session.given_up(EngineRank(0), gone)
    (ended,) = batches(session)
    assert ended.finish_reason == FinishReason.ERROR and ended.error is not None and ended.error.retryable


def test_when_nobody_can_say_who_was_given_up_everything_ends() -> None:
    session = new_session(2)
    session.given_up(None, EngineDeadError("an engine has announced that it failed"))
    with pytest.raises(EngineDeadError, match="announced"):
        session.check()


def test_what_a_dead_generation_had_is_not_taken_off_its_successor() -> None:
    session = new_session()
    old = add(session, "a")
    session.died(EngineRank(0), 0, EngineDeadError("killed by SIGKILL", rank=0, restarting=True))
    session.succeeded(EngineRank(0), Generation(1), READY)
    add(session, "b")
    assert session.fleet.in_flight(EngineRank(0)) == 1
    assert [item.request_id for item in batches(session)] == ["a"]
    session.receive(outputs(output(old.request_id, 1, finish=FinishReason.STOP)))
    assert session.fleet.in_flight(EngineRank(0)) == 1
