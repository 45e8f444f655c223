"""The session: every request ends exactly once, under its caller's id, whatever comes in whatever order."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muro.clients.arguments import MAX_REQUEST_ID
from muro.clients.session import Unreadable
from muro.errors import (
    ClientClosedError,
    EngineDeadError,
    InvalidRequestError,
    UnsupportedOptionError,
    UsageError,
)
from muro.ids import EngineRank, Generation
from muro.wire.control import AbortRequest
from muro.wire.frames import identity_of
from muro.wire.ops import IS_SLEEPING, SLEEP
from muro.wire.output import FinishReason, UtilityOutput
from muro.wire.request import EngineCoreRequest
from muro.wire.stats import SchedulerStats
from tests.support.asking import ask, output, outputs
from tests.support.sessions import Sink, add, batches, new_session, read

STOP = FinishReason.STOP
ABORT = FinishReason.ABORT
GONE = EngineDeadError("killed by SIGKILL", rank=0, pid=77)


def test_a_request_travels_under_an_id_of_its_own_and_comes_back_under_its_callers() -> None:
    session, sink = new_session(), Sink()
    sent = add(session, "mine", sink)
    assert sent.request_id.startswith("mine-n0nce") and sent.external_req_id == "mine"
    assert sent.arrival_time == 5.0
    session.receive(outputs(output(sent.request_id, 1), output("stranger", 9)))
    session.receive(outputs(output(sent.request_id, 2, finish=STOP)))
    assert [(o.request_id, o.new_token_ids) for o in sink.outputs] == [("mine", [1]), ("mine", [2])]
    assert sink.endings == 1 and len(session) == 0 and session.late_outputs == 1


@pytest.mark.parametrize("batched", [False, True])
def test_an_engine_whose_words_cannot_be_read_need_not_go_on(batched: bool) -> None:
    session, sink = new_session(), Sink()
    sent, other = (add(session, i, None if batched else sink) for i in ("a", "b"))
    lost = outputs(output(sent.request_id, finish=FinishReason.ERROR), output("stranger", finish=FinishReason.ERROR))
    [message] = session.refuse(Unreadable(lost))
    assert read(message) == (0, AbortRequest([sent.request_id]))
    ended = batches(session) if batched else sink.outputs
    assert [(o.request_id, o.finish_reason) for o in ended] == [("a", FinishReason.ERROR)]
    assert session.refuse(Unreadable(lost)) == [] and len(session) == 1 and other.request_id


def test_the_callers_request_is_left_alone() -> None:
    request = ask("a")
    new_session().add(request, Sink(), 5.0)
    assert request == ask("a")


def test_two_sessions_never_share_a_wire_id() -> None:
    assert add(new_session(nonce="x")).request_id != add(new_session(nonce="y")).request_id


def test_an_id_can_be_used_again_at_once_and_late_outputs_vanish() -> None:
    session, first, second = new_session(), Sink(), Sink()
    old = add(session, "a", first)
    [message] = session.abort(["a"])
    assert read(message) == (0, AbortRequest([old.request_id]))
    new = add(session, "a", second)
    session.receive(outputs(output(old.request_id, 1, finish=STOP), output(new.request_id, 2, finish=STOP)))
    assert [o.finish_reason for o in first.outputs] == [ABORT]
    assert [o.new_token_ids for o in second.outputs] == [[2]]


def test_an_id_twice_in_flight_is_refused_without_a_trace() -> None:
    session, sink = new_session(), Sink()
    sent = add(session, "a", sink)
    with pytest.raises(InvalidRequestError, match="already in flight"):
        session.add(ask("a"), Sink(), 0)
    session.receive(outputs(output(sent.request_id, 1, finish=STOP)))
    assert sink.endings == 1 and len(session) == 0
    add(session, "a", Sink())


def test_what_an_engine_would_not_take_for_its_size_does_not_leave() -> None:
    session = new_session(largest=1000)
    with pytest.raises(InvalidRequestError, match=r"the limit is 1000 \(max_message_bytes\)"):
        session.add(ask("a", prompt=[1] * 1000), Sink(), 0)
    with pytest.raises(InvalidRequestError, match=r"max_message_bytes"):
        session.call("own", ("x" * 1000,), None, lambda: None)
    assert len(session) == 0 and len(session.calls) == 0
    add(session, "a", Sink())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda r: setattr(r.sampling_params, "seed", 2**63),
        lambda r: setattr(r.sampling_params, "seed", -(2**63) - 1),
        lambda r: setattr(r.sampling_params, "seed", 2**64),
        lambda r: setattr(r.sampling_params, "seed", 2.0**63),
        lambda r: setattr(r.sampling_params, "top_k", 2**200),
        lambda r: setattr(r.sampling_params, "max_tokens", 1.0),
        lambda r: setattr(r.sampling_params, "extra_args", {"x": object()}),
        lambda r: setattr(r, "prompt_token_ids", [1, 2**31]),
        lambda r: setattr(r, "prompt_token_ids", [1, -1]),
        lambda r: setattr(r, "prompt_token_ids", ["one"]),
        lambda r: setattr(r, "priority", 2**64),
        lambda r: setattr(r, "request_id", ""),
        lambda r: setattr(r, "request_id", "x" * (MAX_REQUEST_ID + 1)),
        lambda r: setattr(r, "data_parallel_rank", 1),
        lambda r: setattr(r, "data_parallel_rank", -1),
        lambda r: setattr(r, "data_parallel_rank", 2**63),
    ],
)
def test_what_cannot_be_sent_is_refused_without_a_trace(spoil: Callable[[EngineCoreRequest], None]) -> None:
    session = new_session()
    request = ask("a")
    spoil(request)
    with pytest.raises(InvalidRequestError):
        session.add(request, Sink(), 0)
    assert len(session) == 0 and session.fleet.in_flight(EngineRank(0)) == 0
    add(session, "a", Sink())


def test_resumable_requests_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedOptionError, match="resumable"):
        add(new_session(), resumable=True)


def test_requests_go_round_the_serving_engines() -> None:
    session = new_session(ranks=3)
    session.died(EngineRank(1), 0, GONE)
    ranks = [read(session.add(ask(str(n)), Sink(), 0)[1])[0] for n in range(6)]
    assert sorted(ranks) == [0, 0, 0, 2, 2, 2]
    assert [session.fleet.in_flight(rank) for rank in session.engines] == [3, 0, 3]


def test_a_pinned_request_goes_where_it_says() -> None:
    session = new_session(ranks=3)
    request = ask("a")
    request.data_parallel_rank = 2
    assert session.add(request, Sink(), 0)[1][0] == identity_of(2)


def test_aborting_says_so_to_each_engine_once() -> None:
    session = new_session(ranks=2)
    sinks = {name: Sink() for name in "abcd"}
    for name, sink in sinks.items():
        add(session, name, sink)
    messages = session.abort([*"abcd", *"abcd", "unknown"])
    assert sorted(len(read(message)[1].request_ids) for message in messages) == [2, 2]
    assert session.abort([*"abcd"]) == []
    assert all([o.finish_reason for o in sink.outputs] == [ABORT] for sink in sinks.values())


def test_a_dropped_stream_gets_nothing_more() -> None:
    session, sink = new_session(), Sink()
    attempt, _ = session.add(ask("a"), sink, 0)
    assert len(session.drop([attempt, attempt])) == 1
    assert session.drop([attempt, attempt]) == []
    session.receive(outputs(output(attempt.wire_id, 1)))
    assert not sink.outputs and len(session) == 0


def test_a_client_is_read_in_one_way() -> None:
    session = new_session()
    add(session, "a", Sink())
    with pytest.raises(UsageError, match="generate"):
        session.add(ask("b"), None, 0)
    with pytest.raises(UsageError):
        session.take_batch()
    batched = new_session()
    add(batched, "a")
    with pytest.raises(UsageError, match="get_outputs"):
        batched.add(ask("b"), Sink(), 0)


def test_batches_come_one_per_message_with_their_statistics() -> None:
    session = new_session()
    sent = add(session, "a")
    session.receive(outputs(output(sent.request_id, 1), timestamp=2.5, scheduler_stats=SchedulerStats(1)))
    session.receive(outputs(output(sent.request_id, 2, finish=STOP)))
    session.receive(outputs(scheduler_stats=SchedulerStats(0)))
    session.receive(outputs(output("unknown", 3)))
    first, second, third = (session.take_batch() for _ in range(3))
    assert first and first.outputs[0].request_id == "a" and first.timestamp == 2.5 and first.engine == 0
    assert second and second.outputs[0].finish_reason == STOP
    assert third is not None and not third and third.scheduler_stats == SchedulerStats(0)
    assert session.take_batch() is None


def test_an_abort_takes_effect_on_batches_that_wait() -> None:
    session = new_session()
    old = add(session, "a")
    session.receive(outputs(output(old.request_id, 1)))
    session.abort(["a"])
    new = add(session, "a")
    session.receive(outputs(output(old.request_id, 2, finish=STOP)))
    session.receive(outputs(output(new.request_id, 3, finish=STOP)))
    assert [o.new_token_ids for o in batches(session)] == [[3]]


def test_aborting_everything_reaches_readers_of_batches_too() -> None:
    session = new_session()
    sent = [add(session, name) for name in "ab"]
    session.receive(outputs(output(sent[0].request_id, 1)))
    [message] = session.abort_all()
    assert sorted(read(message)[1].request_ids) == sorted(s.request_id for s in sent)
    session.receive(outputs(*(output(s.request_id, 5) for s in sent)))
    taken = batches(session)
    assert [(o.request_id, o.finish_reason) for o in taken] == [("a", None), ("a", ABORT), ("b", ABORT)]
    add(session, "a")


def test_a_death_ends_what_was_on_that_engine_and_nothing_else() -> None:
    session = new_session(ranks=2)
    sinks = [Sink(), Sink()]
    for number, sink in enumerate(sinks):
        add(session, str(number), sink, data_parallel_rank=number)
    over: list[int] = []
    call, _ = session.call(IS_SLEEPING, (), None, lambda: over.append(1))
    assert session.died(EngineRank(0), 0, GONE)
    assert not session.died(EngineRank(0), 0, GONE)
    assert [sink.endings for sink in sinks] == [1, 0] and over == [1]
    assert sinks[0].errors[0] is not GONE and sinks[0].errors[0].pid == 77
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        call.result()
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        add(session, "x", Sink(), data_parallel_rank=0)
    add(session, "y", Sink())


def test_who_is_gone_runs_nothing() -> None:
    session = new_session(ranks=2)
    heard: list[tuple[int, int]] = []
    session.on_stats = lambda rank, stats: heard.append((rank, stats.num_running_reqs))
    for rank in (0, 1):
        session.receive(outputs(scheduler_stats=SchedulerStats(3), rank=rank))
    session.died(EngineRank(0), 0, GONE)
    session.let_go(EngineRank(1), GONE)
    assert heard == [(0, 3), (1, 3), (0, 0), (1, 0)]


def test_a_new_generation_serves_and_an_old_death_is_no_news() -> None:
    session = new_session()
    session.died(EngineRank(0), 0, GONE)
    session.succeeded(EngineRank(0), Generation(1), None)
    sink = Sink()
    add(session, "b", sink)
    assert not session.died(EngineRank(0), 0, GONE)
    assert sink.endings == 0


def test_the_end_is_for_everybody_and_for_ever() -> None:
    session, sink = new_session(), Sink()
    add(session, "a", sink)
    call, _ = session.call("x", (), None, lambda: None)
    session.end(GONE)
    session.end(EngineDeadError("another"))
    assert sink.endings == 1
    for use in (lambda: session.add(ask("b"), Sink(), 0), lambda: session.call("x", (), None, print), call.result):
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            use()


def test_batches_that_have_come_are_taken_before_the_error() -> None:
    session = new_session()
    sent = add(session, "a")
    session.receive(outputs(output(sent.request_id, 1)))
    session.died(EngineRank(0), 0, GONE)
    session.end(GONE)
    assert [o.new_token_ids for o in batches(session)] == [[1]]
    with pytest.raises(EngineDeadError):
        session.check()


def test_closing_tells_the_engines_and_wins_over_a_death() -> None:
    session, sink = new_session(), Sink()
    add(session, "a", sink)
    assert len(session.close()) == 1
    assert session.close() == []
    assert isinstance(sink.errors[0], ClientClosedError)
    dead = new_session()
    dead.end(GONE)
    assert dead.close() == []
    with pytest.raises(ClientClosedError):
        dead.check()


def test_calls_reach_all_engines_or_one() -> None:
    session = new_session(ranks=2)
    _, messages = session.call(SLEEP, (1, "abort"), None, lambda: None)
    assert [(rank, call.method, call.args) for rank, call in map(read, messages)] == [
        (0, "sleep", [1, "abort"]),
        (1, "sleep", [1, "abort"]),
    ]
    call, [message] = session.call("own", (), 1, lambda: None)
    rank, sent = read(message)
    assert rank == 1
    session.receive(outputs(utility_output=UtilityOutput(sent.call_id, None, [None, 5])))
    assert call.result() == {1: 5}


@pytest.mark.parametrize(
    "op_args", [(SLEEP, (1, "abort", 3)), (SLEEP, ("deep",)), ("own", (object(),)), ("own", (2**70,))]
)
def test_a_call_that_cannot_be_sent_leaves_no_trace(op_args: tuple) -> None:
    session = new_session()
    op, args = op_args
    with pytest.raises(InvalidRequestError):
        session.call(op, args, None, lambda: None)
    assert len(session.calls) == 0
    with pytest.raises(InvalidRequestError, match="no engine 4"):
        session.call("own", (), 4, lambda: None)


def test_a_listener_that_fails_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    session, sink, heard = new_session(), Sink(), []
    sent = add(session, "a", sink)

    def listen(rank: int, stats: SchedulerStats) -> None:
        heard.append((rank, stats.num_running_reqs))
        raise ValueError("the listener's own fault")

    session.on_stats = listen
    session.receive(outputs(output(sent.request_id, 1, finish=STOP), scheduler_stats=SchedulerStats(4)))
    assert heard == [(0, 4)] and sink.endings == 1
    assert "listener" in caplog.text


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["add", "abort", "drop", "step", "finish", "die", "end"]), st.integers(0, 5)))
)
def test_every_request_ends_exactly_once(script: list[tuple[str, int]]) -> None:
    session = new_session(ranks=2)
    attempts, sinks, dropped = [], [], set()
    for action, number in script:
        try:
            match action:
                case "add":
                    sinks.append(Sink())
                    attempts.append(session.add(ask(f"id{number}"), sinks[-1], 0)[0])
                case "abort":
                    session.abort([f"id{number}"])
                case "die":
                    session.died(EngineRank(number % 2), 0, GONE)
                case "end":
                    if number == 0:
                        session.end(GONE)
                case _ if number < len(attempts):
                    if action == "drop":
                        dropped.add(number)
                        session.drop([attempts[number]])
                    else:
                        finish = STOP if action == "finish" else None
                        session.receive(outputs(output(attempts[number].wire_id, 1, finish=finish)))
        except (InvalidRequestError, EngineDeadError):
            sinks = sinks[: len(attempts)]
    session.close()
    for number, sink in enumerate(sinks):
        assert sink.endings == (0 if number in dropped and not sink.endings else 1)
        assert all(o.finish_reason is None for o in sink.outputs[:-1])
    assert len(session) == 0 and not any(map(session.fleet.in_flight, session.engines))
