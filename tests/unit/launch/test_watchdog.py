"""The watchdog with pages and ticks by hand. `TICK` is the distance of two looks."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muro.launch.watchdog import LONGEST_TICK, ROWS, OwnTime, Sight, Silence, Verdict, Watchdog
from muro.wire.progress import STARTING, Progress

TICK = 0.25
LIMIT = 10.0


def page(**changes: Any) -> Progress:
    """An engine that serves, has done ten steps and waits for work."""
    usual: dict[str, Any] = {
        "pid": 1, "phase": "serving", "phase_since_ns": 1, "steps_started": 10, "steps_ended": 10, "step_ended_ns": 50,
        "yielded": 10, "tokens_out": 10, "activity": "idle", "activity_since_ns": 60, "events_taken": 4,
        "messages_begun": 5, "messages_done": 5, "events_queued": 4,
    }  # fmt: skip
    return Progress(**usual | changes)


IN_A_STEP = page(steps_started=11, step_started_ns=80, activity="a new request", activity_since_ns=70)


class Watch:
    """A watchdog and the parent's time."""

    def __init__(self, limit: float | None = LIMIT) -> None:
        self.dog = Watchdog(limit)
        self.now = 100.0

    def look(self, progress: Progress, **seen: Any) -> Verdict | None:
        self.now += TICK
        return self.dog.look(progress, self.now, **seen)

    def over(self, seconds: float, progress: Progress, **seen: Any) -> Verdict | None:
        """The first verdict of so many seconds of looks at the same page."""
        for _ in range(round(seconds / TICK)):
            if verdict := self.look(progress, **seen):
                return verdict
        return None

    def until_verdict(self, progress: Progress, **seen: Any) -> tuple[float, Verdict]:
        """How long it takes until there is one, and which."""
        began = self.now
        verdict = self.over(3 * LIMIT, progress, **seen)
        assert verdict is not None, "no verdict"
        return self.now - began, verdict


STUCK: dict[str, tuple[Progress, dict[str, Any], str, str]] = {
    "a step": (IN_A_STEP, {}, "step", "step 11 has run for 10 s"),
    "a call": (
        page(activity="call save", activity_since_ns=70, events_taken=5, events_queued=5),
        {},
        "event",
        "handling 'call save' has taken 10 s",
    ),
    "between two steps": (page(activity="an abort", running=1, step_ended_ns=65), {}, "event", "since step 10 ended"),
    "preparation": (page(messages_begun=6), {}, "message", "the input thread has worked on one message for 10 s"),
    "an idle loop before a full queue": (
        page(events_queued=7),
        {},
        "queue",
        "3 messages wait and the loop has taken none for 10 s",
    ),
    "requests that the engine has forgotten": (
        page(running=2),
        {},
        "yield",
        "2 requests run, but nothing has come out of them for 10 s and the engine says that it has no work",
    ),
    "a stopped process": (page(), {"stopped": True}, "stopped", "the process has been stopped (SIGSTOP) for 10 s"),
    "a closed door": (page(), {"sent": 7}, "door", "2 messages were sent to it, and it has read none for 10 s"),
    "an end that takes for ever": (page(phase="stopping"), {}, "stopping", "it has been about to end for 10 s"),
    "a drain": (page(phase="draining", running=1), {}, "yield", "nothing has come out of them for 10 s"),
}


@pytest.mark.parametrize("kind", STUCK)
def test_what_stands_still_is_stuck_at_the_limit(kind: str) -> None:
    progress, seen, what, words = STUCK[kind]
    watch = Watch()
    assert watch.over(60, page()) is None
    took, verdict = watch.until_verdict(progress, **seen)
    assert LIMIT <= took <= LIMIT + 2 * TICK
    assert verdict.what == what and verdict.seconds >= LIMIT and words in verdict.words


def test_whatever_row_comes_first_a_stopped_process_is_called_stopped() -> None:
    watch = Watch()
    watch.look(IN_A_STEP)
    _, verdict = watch.until_verdict(IN_A_STEP, stopped=True)
    assert verdict.what == "step" and verdict.words.endswith("for 10 s; the process is stopped (SIGSTOP)")


def test_steps_that_put_nothing_out_are_no_progress() -> None:
    watch = Watch()
    for number in range(11, 1000):
        step = page(steps_started=number, steps_ended=number, running=3, activity="a new request", step_ended_ns=90)
        if verdict := watch.look(step):
            break
    assert verdict is not None and verdict.what == "yield"
    assert verdict.words == f"3 requests run, but nothing has come out of them for 10 s (step {number})"
    assert LIMIT <= (number - 11) * TICK <= LIMIT + 2 * TICK


def test_new_requests_and_aborts_do_not_make_up_for_output() -> None:
    watch = Watch()
    verdicts = [
        watch.look(page(steps_started=n, steps_ended=n, running=1, activity="an abort", activity_since_ns=n,
                        events_taken=n, events_queued=n, messages_begun=n, messages_done=n))
        for n in range(11, 11 + round(2 * LIMIT / TICK))
    ]  # fmt: skip
    assert verdicts[-1] is not None and verdicts[-1].what == "yield"


def test_idle_is_not_stuck() -> None:
    assert Watch().over(20 * LIMIT, page()) is None


def test_slow_is_not_stuck() -> None:
    watch = Watch()
    for number in range(11, 20):
        running = page(steps_started=number, steps_ended=number - 1, running=1, yielded=number, activity="x")
        assert watch.over(LIMIT - TICK, running) is None


def test_a_long_prompt_in_slow_chunks_is_progress() -> None:
    watch = Watch()
    for number in range(11, 20):
        chunk = page(steps_started=number, steps_ended=number - 1, running=1, yielded=2048 * number, tokens_out=10,
                     activity="a new request")  # fmt: skip
        assert watch.over(LIMIT - TICK, chunk) is None


@pytest.mark.parametrize("phase", sorted(STARTING | {"loading: weights"}))
def test_a_start_is_judged_by_others(phase: str) -> None:
    assert Watch().over(10 * LIMIT, page(phase=phase, activity="", messages_begun=9, running=1)) is None


def test_what_stood_still_during_the_start_does_not_count() -> None:
    watch = Watch()
    watch.over(5 * LIMIT, page(phase="connecting", activity=""))
    assert watch.over(LIMIT - TICK, page(activity="")) is None


@pytest.mark.parametrize("waiting", [0, 3])
def test_a_pause_may_last(waiting: int) -> None:
    kept = page(phase="paused", running=4, waiting=waiting)
    assert Watch().over(100 * LIMIT, kept) is None


def test_after_a_pause_the_whole_limit_is_there_again() -> None:
    watch = Watch()
    watch.over(LIMIT / 2, page(running=4, steps_started=11, activity="x"))
    watch.over(10 * LIMIT, page(phase="paused", running=4))
    took, verdict = watch.until_verdict(page(running=4, steps_started=11, activity="x"))
    assert verdict.what == "step" and took >= LIMIT


def test_a_pause_excuses_neither_a_call_nor_a_step() -> None:
    _, verdict = Watch().until_verdict(page(phase="paused", activity="call wake_up", activity_since_ns=70))
    assert verdict.what == "event"


def test_each_phase_has_the_limit_for_itself_but_coming_and_going_does_not_renew_it() -> None:
    watch = Watch()
    grammar, serving = page(phase="grammar", running=1), page(running=1)
    assert watch.over(LIMIT - TICK, serving) is None
    assert watch.over(LIMIT - TICK, grammar) is None
    assert watch.over(3 * TICK, serving) is not None


def test_clients_that_are_not_read_from_excuse_a_closed_door() -> None:
    assert Watch().over(5 * LIMIT, page(ignored_clients=1), sent=100) is None


@pytest.mark.parametrize("limit", [None, 0, 0.0])
def test_without_a_limit_nothing_is_stuck(limit: float | None) -> None:
    assert Watch(limit).over(100 * LIMIT, IN_A_STEP, stopped=True) is None


def test_a_verdict_stands_as_long_as_nothing_moves() -> None:
    watch = Watch()
    watch.until_verdict(IN_A_STEP)
    assert watch.look(IN_A_STEP) is not None
    assert watch.look(page(steps_started=11, steps_ended=11, yielded=11)) is None
    assert watch.over(LIMIT, page(steps_started=11, steps_ended=11, yielded=11)) is None


# Time


def test_a_stopped_parent_is_no_verdict() -> None:
    """It sees the same page before and after; thirty seconds are not thirty looks."""
    own, dog = OwnTime(TICK, now=0.0), Watchdog(LIMIT)
    now = 0.0
    for _ in range(10):
        now += TICK
        assert dog.look(IN_A_STEP, own.tick(now)) is None
    now += 30.0
    counted = own.tick(now)
    assert counted == pytest.approx(10 * TICK + LONGEST_TICK * TICK)
    assert dog.look(IN_A_STEP, counted) is None


def test_a_clock_that_jumps_back_counts_nothing() -> None:
    own = OwnTime(TICK, now=50.0)
    assert own.tick(50.0 + TICK) == TICK
    assert own.tick(40.0) == TICK
    assert own.tick(40.0 + TICK) == 2 * TICK


MOVES = st.fixed_dictionaries(
    {
        "steps_started": st.integers(10, 12), "steps_ended": st.integers(9, 11), "yielded": st.integers(10, 11),
        "running": st.integers(0, 1), "events_taken": st.integers(3, 5), "events_queued": st.integers(3, 5),
        "messages_begun": st.integers(4, 6), "messages_done": st.integers(4, 6), "activity_since_ns": st.integers(0, 1),
        "activity": st.sampled_from(["idle", "an abort", ""]), "ignored_clients": st.integers(0, 1),
        "phase": st.sampled_from(["serving", "paused", "draining", "loading", "stopping", "grammar"]),
    }
)  # fmt: skip
SEEN = st.tuples(MOVES, st.booleans(), st.integers(0, 6), st.integers(1, 30), st.floats(0.2, 3.0))


@given(st.lists(SEEN, max_size=8))
def test_no_verdict_without_the_whole_limit_in_ticks(
    story: Iterable[tuple[dict[str, Any], bool, int, int, float]],
) -> None:
    """Whatever is seen: a verdict needs looks over `limit` seconds since its row last owed nothing or moved."""
    own, dog, now = OwnTime(TICK, 0.0), Watchdog(LIMIT), 0.0
    rows = {row.what: row for row in ROWS}
    since = dict.fromkeys(rows, 0.0)
    marks: dict[str, object] = {}
    for changes, stopped, sent, looks, tick in story:
        progress = page(**changes)
        for _ in range(looks):
            now += tick
            counted = own.tick(now)
            verdict = dog.look(progress, counted, stopped=stopped, sent=sent)
            sight = Sight(progress, stopped, sent)
            for what, row in rows.items():
                mark = row.mark(sight)
                if not row.owes(sight) or mark != marks.get(what):
                    since[what] = counted
                marks[what] = mark
            if verdict is not None and verdict.what in since:
                assert counted - since[verdict.what] >= LIMIT
                assert progress.phase not in rows[verdict.what].excused | STARTING


# Without a page


def silence(limit: float | None = LIMIT) -> Silence:
    return Silence(limit)


def test_an_engine_without_a_page_that_says_nothing_is_stuck() -> None:
    watched, now = silence(), 0.0
    for _ in range(round(5 * LIMIT / TICK)):
        now += TICK
        assert watched.look(7, 0, now) is None, "idle"
    began = now
    while (verdict := watched.look(7, 3, now)) is None:
        now += TICK
    assert LIMIT <= now - began <= LIMIT + 2 * TICK
    assert verdict == Verdict("silence", LIMIT, "nothing was heard of it for 10 s, with 3 requests and calls in flight")


def test_each_message_of_it_starts_the_wait_anew() -> None:
    watched, now = silence(), 0.0
    for heard in range(10):
        for _ in range(round(LIMIT / TICK)):
            now += TICK
            assert watched.look(heard, 1, now) is None


def test_nobody_is_silent_to_those_who_do_not_listen() -> None:
    watched, now = silence(), 0.0
    for _ in range(round(5 * LIMIT / TICK)):
        now += TICK
        assert watched.look(0, 1, now, listening=False) is None


def test_silence_without_a_limit() -> None:
    assert silence(None).look(0, 1, 0.0) is None
    assert silence(None).look(0, 1, 1e9) is None
