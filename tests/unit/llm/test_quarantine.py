"""quarantine.py: whoever kills engines is found, whoever only stood beside is not, and nobody waits for ever."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from muro.errors import EngineDeadError
from muro.llm.quarantine import PATIENCE, SURE, Quarantine

CRASH = EngineDeadError("it was killed by SIGSEGV", rank=0, pid=1, exit_status=-11)
KILLED = EngineDeadError("it was killed by SIGKILL", rank=0, pid=1, exit_status=-9)


class Requests:
    """Some requests before one engine that the test kills."""

    def __init__(self, *keys: str) -> None:
        self.quarantine = Quarantine()
        self.generation = 0
        self.running: list[str] = []
        for key in keys:
            self.quarantine.enter(key)
            self.quarantine.ask(key)

    def start(self) -> list[str]:
        """Send whoever may run; gives all that run now."""
        for key in [key for key in self.quarantine._cases if key not in self.running]:
            if self.quarantine.may_run(key):
                self.quarantine.began(key, (0, self.generation))
                self.running.append(key)
        return self.running

    def die(self, death: EngineDeadError = CRASH) -> list[str]:
        """Gives who was convicted; all others want to run again."""
        lost, self.running = self.running, []
        for key in lost:
            self.quarantine.died((0, self.generation), death)
            self.quarantine.ask(key)
        self.generation += 1
        return [key for key in lost if self.quarantine.verdict(key)]

    def token(self, key: str) -> bool:
        return self.quarantine.delivered(key, 1)


def test_one_death_changes_nothing() -> None:
    requests = Requests("a", "b")
    requests.start()
    assert requests.die() == []
    assert requests.start() == ["a", "b"]


def test_after_two_deaths_each_is_tried_alone_until_it_has_a_token() -> None:
    requests = Requests("a", "b", "c")
    for _ in range(2):
        requests.start()
        requests.die()
    assert requests.start() == ["a"]
    assert requests.token("a")
    assert requests.start() == ["a", "b"]
    assert not requests.token("a")
    assert requests.token("b")
    requests.start()
    assert requests.token("c")
    assert [requests.quarantine.verdict(key) for key in "abc"] == [None] * 3


def test_a_death_in_its_trial_convicts() -> None:
    requests = Requests("a", "b")
    for _ in range(2):
        requests.start()
        requests.die()
    assert requests.start() == ["a"]
    assert requests.die() == ["a"]
    verdict = requests.quarantine.verdict("a")
    assert verdict is not None and verdict.__cause__ is CRASH
    assert "running when its engine died, 3 times" in verdict.message and "SIGSEGV" in verdict.message
    assert "engine 0 generation 2), and nothing else explains it" in verdict.message
    requests.quarantine.leave("a")
    assert requests.start() == ["b"]
    assert requests.die() == ["b"], "b died three times, the last time alone"


def test_the_second_death_of_a_request_that_is_always_alone_convicts() -> None:
    requests = Requests("a")
    requests.start()
    assert requests.die() == []
    requests.start()
    assert requests.die() == ["a"]


def test_who_ended_before_the_crash_may_have_done_it() -> None:
    """A fault that acts late: its request has had its last token, and another one is alone when the engine dies."""
    requests = Requests("late", "innocent")
    for _ in range(2):
        requests.start()
        assert requests.die() == []
    assert requests.start() == ["late"] and requests.token("late")
    assert requests.start() == ["late", "innocent"]
    requests.running.remove("late")
    requests.quarantine.leave("late")
    assert requests.die() == []
    assert requests.start() == ["innocent"]
    assert requests.die() == ["innocent"]  # if it happens again where nobody else has been


def test_tokens_do_not_excuse_a_second_crash_alone() -> None:
    requests = Requests("a")
    for convicted in ([], ["a"]):
        requests.start()
        requests.token("a")
        assert requests.die() == convicted


def test_a_signal_that_anybody_may_have_sent_convicts_only_after_so_many_in_a_row() -> None:
    requests = Requests("a")
    for number in range(1, SURE + 1):
        requests.start()
        assert requests.die(KILLED) == (["a"] if number == SURE else [])


def test_whoever_has_gone_on_after_deaths_is_given_more_time() -> None:
    requests = Requests("a")
    recoveries = 4
    for _ in range(1 + recoveries):
        requests.start()
        requests.token("a")
        assert requests.die(KILLED) == []
    for number in range(1, PATIENCE + recoveries + 1):
        requests.start()
        assert requests.die(KILLED) == (["a"] if number == PATIENCE + recoveries else [])


def test_whoever_has_got_least_is_tried_first() -> None:
    requests = Requests("old", "new")
    requests.start()
    requests.token("old")
    requests.die()
    requests.start()
    requests.die()
    requests.quarantine.enter("newest")
    assert requests.start() == ["new"]


def test_a_signal_convicts_only_if_all_others_live_without_the_convict() -> None:
    requests = Requests("a", "b")
    for _ in range(2):
        requests.start()
        requests.die(KILLED)
    assert requests.start() == ["a"]
    assert requests.die(KILLED) == []
    assert requests.start() == ["b"], "who was killed in its trial comes last"
    requests.token("b")
    assert requests.start() == ["b", "a"]
    assert requests.die(KILLED) == [], "a was the only one without a token again"
    assert requests.start() == ["a"]
    assert requests.die(KILLED) == ["a"]


def test_a_death_without_it_excuses_a_request() -> None:
    requests = Requests("a", "b")
    for _ in range(2):
        requests.start()
        requests.die(KILLED)
    for _ in range(5):
        assert requests.start() == ["a"]
        assert requests.die(KILLED) == []
        assert requests.start() == ["b"]
        assert requests.die(KILLED) == []


def test_newcomers_wait_for_the_trial() -> None:
    requests = Requests("a")
    requests.start()
    requests.die(KILLED)
    requests.start()
    requests.die(KILLED)
    requests.quarantine.enter("b")
    assert not requests.quarantine.may_run("b")
    assert requests.start() == ["a"]
    assert not requests.quarantine.may_run("b")
    requests.quarantine.leave("a")
    assert requests.quarantine.may_run("b")


def test_a_suspect_that_never_asks_holds_nobody_up() -> None:
    """Its reader may be slow, and a request goes on when its reader asks for more."""
    requests = Requests("a", "b")
    requests.start()
    requests.die()
    requests.start()
    requests.running = []
    requests.quarantine.died((0, 1), CRASH)
    requests.quarantine.ask("a")
    assert requests.quarantine.may_run("a")
    assert requests.token("a")
    requests.quarantine.enter("c")
    assert requests.quarantine.may_run("c")
    requests.quarantine.ask("b")
    assert not requests.quarantine.may_run("c")


def test_tokens_that_are_read_after_the_death_leave_it_a_strike() -> None:
    requests = Requests("a", "b")
    requests.start()
    requests.die()
    requests.start()
    requests.die()
    requests.token("a")
    assert requests.quarantine._cases["a"].strikes == 1


def test_a_death_is_told_by_everybody_and_counts_once() -> None:
    requests = Requests("a", "b")
    requests.start()
    for _ in range(5):
        requests.quarantine.died((0, 0), CRASH)
    assert requests.start() == ["a", "b"]


def test_unknown_requests_may_leave() -> None:
    Quarantine().leave("nobody")


class Fate:
    """What a request is: how many tokens it wants, and after how many of an attempt it kills the engine, if ever."""

    def __init__(self, tokens: int, deadly: int | None) -> None:
        self.left = tokens
        self.deadly = deadly
        self.since = 0


class QuarantineMachine(RuleBasedStateMachine):
    """A front-end with requests that may be deadly, an engine that steps, and somebody who kills it now and then."""

    @initialize()
    def begin(self) -> None:
        self.quarantine = Quarantine()
        self.fates: dict[int, Fate] = {}
        self.running: set[int] = set()
        self.silent: set[int] = set()
        self.convicted: list[Fate] = []
        self.generation = 0
        self.deaths = 0
        self.number = 0
        self.ending = False

    @rule(tokens=st.integers(1, 4), deadly=st.none() | st.none() | st.integers(0, 2))
    @precondition(lambda self: len(self.fates) < 8)
    def enter(self, tokens: int, deadly: int | None) -> None:
        self.number += 1
        self.fates[self.number] = Fate(tokens, deadly)
        self.quarantine.enter(self.number)
        self.quarantine.ask(self.number)

    @rule(data=st.data())
    @precondition(lambda self: self.fates)
    def send(self, data: st.DataObject) -> None:
        self.try_to_send(data.draw(st.sampled_from(sorted(self.fates))))

    def try_to_send(self, key: int) -> None:
        if key in self.running:
            return
        if key in self.silent:
            self.silent.discard(key)
            self.quarantine.ask(key)
        if self.quarantine.may_run(key):
            self.running.add(key)
            self.fates[key].since = 0
            self.quarantine.began(key, (0, self.generation))

    @rule()
    @precondition(lambda self: self.running)
    def step(self) -> None:
        if any(self.fates[key].deadly == self.fates[key].since for key in self.running):
            self.die(CRASH)
            return
        for key in list(self.running):
            fate = self.fates[key]
            fate.since += 1
            fate.left -= 1
            self.quarantine.delivered(key, 1)
            if not fate.left:
                self.over(key)

    @rule()
    def kill(self) -> None:
        """Never so often in a row that even an innocent one would be convicted."""
        if not any(self.quarantine._cases[key].killed >= PATIENCE - 1 for key in self.running):
            self.die(KILLED)

    @rule(data=st.data())
    @precondition(lambda self: self.fates)
    def cancel(self, data: st.DataObject) -> None:
        self.over(data.draw(st.sampled_from(sorted(self.fates))))

    def die(self, death: EngineDeadError) -> None:
        self.deaths += 1
        lost, self.running = self.running, set()
        for key in sorted(lost):
            self.quarantine.died((0, self.generation), death)
            if self.quarantine.verdict(key) is not None:
                self.convicted.append(self.fates[key])
                self.over(key)
            elif key % 3 or self.ending:
                self.quarantine.ask(key)
            else:
                self.silent.add(key)  # its reader asks later
        self.generation += 1

    def over(self, key: int) -> None:
        self.quarantine.leave(key)
        self.running.discard(key)
        self.silent.discard(key)
        del self.fates[key]

    @invariant()
    def nobody_innocent_is_convicted(self) -> None:
        assert all(fate.deadly is not None for fate in self.convicted)

    @invariant()
    def nothing_is_kept_of_who_left(self) -> None:
        assert len(self.quarantine) == len(self.fates)
        assert set(self.quarantine._line) <= set(self.fates)
        assert self.quarantine._tried is None or self.quarantine._tried in self.fates

    def teardown(self) -> None:
        """From wherever it is, all end, and each deadly one costs a bounded number of deaths."""
        if not hasattr(self, "fates"):
            return
        self.ending = True
        before, deadly = self.deaths, sum(fate.deadly is not None for fate in self.fates.values())
        for _ in range(400):
            for key in sorted(self.fates):
                self.try_to_send(key)
            if not self.fates:
                break
            assert self.running, "somebody waits, and nobody runs"
            self.step()
        assert not self.fates
        assert self.deaths - before <= 6 * deadly
        self.nobody_innocent_is_convicted()


TestQuarantineMachine = QuarantineMachine.TestCase
TestQuarantineMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
