"""quarantine.py on random walks: nobody innocent is convicted, nobody waits for ever, each deadly one costs little."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from muro.errors import EngineDeadError
from muro.llm.quarantine import PATIENCE, PROOF, Quarantine
from tests.unit.llm.test_quarantine import CRASH, KILLED


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

    @rule(tokens=st.integers(1, 4) | st.just(50), deadly=st.none() | st.none() | st.integers(0, PROOF - 1))
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

    @rule(data=st.data())
    @precondition(lambda self: self.running)
    def stop_reading(self, data: st.DataObject) -> None:
        self.quarantine.excuse(data.draw(st.sampled_from(sorted(self.running))))

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
        assert set(self.quarantine._tried) <= set(self.fates)

    def teardown(self) -> None:
        """From wherever it is, all end, and each deadly one costs a bounded number of deaths."""
        if not hasattr(self, "fates"):
            return
        self.ending = True
        before, deadly = self.deaths, sum(fate.deadly is not None for fate in self.fates.values())
        for _ in range(4000):
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
