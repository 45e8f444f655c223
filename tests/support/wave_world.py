"""Engines, a coordinator and front-ends as pure machines, with messages that take as long as they like.

What happens next is chosen from all that can happen, by whoever drives: a seed, or hypothesis, which finds the
shortest way to a fault. Between two of them messages keep their order, as on one connection; nothing else is ordered.
An engine that waits for the votes of the others reads nothing but these, as a loop that sits in a collective call; a
coordinator's READY is answered by another thread, even then.

Beside the product's machines stand strict readings of the protocol (section 15.4), for peers that are not ours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from muro.ids import EngineRank
from muro.parallel.agreement import Agreement
from muro.parallel.waves import CoordinatorWave, EngineWave, FrontEndWave, Orders, Rule, Says, Word
from muro.wire.control import StartDPWave
from muro.wire.coordination import FirstRequest, Publication

Pick = Callable[[int], int]
"""`pick(n)`: a number in 0 ... n - 1."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Who takes part, and how much happens."""

    ranks: int
    front_ends: int = 2
    rule: Rule = Rule.ENGINES_START
    requests: int = 6
    interval: int = 3
    pauses: int = 1
    aborts: int = 1
    crashes: int = 0
    """How often the coordinator dies, with all that is on its way to and from it."""
    votes_wake: bool = False
    """Whether a vote starts a rank that pauses, as the built-in collective's does."""
    old_engines: bool = False
    """Engines of 0.25, to the letter."""
    old_coordinator: bool = False
    over_inputs: bool = False
    """No coordinator: the front-end starts waves over the input sockets, before each request."""


class OldEngineWave(EngineWave):
    """An engine of 0.25: it relies on the front-end's notice unless the request shows that this was too early."""

    rank = 0

    def takes_request(self, wave: int) -> Word | None:
        late = wave < self.wave and not self.running
        self.wave = max(self.wave, wave)
        self.running = True
        return Word(Says.START_WAVE, self.wave) if late else None

    def told_to_start(self, wave: int) -> Word | None:
        return None if wave < self.wave else super().told_to_start(wave)


class OldCoordinatorWave(CoordinatorWave):
    """A released coordinator, as the protocol tells it."""

    def engine_started(self, rank: int, wave: int) -> Orders:
        if wave > self.wave or (wave == self.wave and not self.running):
            self.wave, self.running = wave, True
            return Orders(StartDPWave(wave, rank), Publication(None, wave, True))
        return Orders()

    def first_request(self, notice: FirstRequest) -> Orders:
        if self.running:
            return Orders()
        self.running = True
        exclude = None if notice.wave < self.wave else notice.exclude
        return Orders(StartDPWave(self.wave, exclude), Publication(None, self.wave, True))


class Engine:
    """One rank, with as little of an engine as waves need."""

    def __init__(self, world: World, rank: int) -> None:
        setting = world.setting
        self.world, self.rank = world, rank
        self.wave = OldEngineWave(setting.interval) if setting.old_engines else EngineWave(setting.interval)
        self.agreement = Agreement(rank, setting.ranks)
        self.left: dict[int, int] = {}
        """Steps that each request still takes."""
        self.frozen = False
        self.voted = False

    @property
    def has_work(self) -> bool:
        return bool(self.left) and not self.frozen

    def take(self, message: Any) -> None:
        match message:
            case ("add", number, steps, wave):
                self.left[number] = steps
                if isinstance(self.wave, OldEngineWave):
                    self.say(self.wave.takes_request(wave))
                else:
                    self.wave.request_states(wave)
            case ("refused", wave):
                self.wave.request_states(wave)
            case ("abort", number):
                if self.left.pop(number, None) is not None:
                    self.world.done.add(number)
            case ("freeze", frozen):
                self.frozen = frozen
            case StartDPWave(wave=wave, exclude=exclude):
                if not (isinstance(self.wave, OldEngineWave) and exclude == self.rank):
                    self.say(self.wave.told_to_start(wave))
            case "READY":
                self.say(self.wave.coordinator_up())
                return
        if self.has_work and not isinstance(self.wave, OldEngineWave):
            self.say(self.wave.has_work())

    def hear_vote(self, vote: tuple[int, int, bool]) -> None:
        self.agreement.hear(*vote)
        if self.world.setting.votes_wake and self.agreement.is_awaited and not self.wave.running:
            self.say(self.wave.peers_step())
        self.settle()

    def step(self) -> None:
        if not self.frozen:
            for number in list(self.left):
                self.left[number] -= 1
                if not self.left[number]:
                    del self.left[number]
                    self.world.done.add(number)
        if self.wave.stepped():
            self.voted = True
            mine = self.has_work
            vote = (self.rank, self.agreement.vote(mine), mine)
            for other in range(self.world.setting.ranks):
                if other != self.rank:
                    self.world.send(f"v{self.rank}", f"e{other}", vote)
            self.settle()

    def settle(self) -> None:
        if not self.voted or (outcome := self.agreement.decide()) is None:
            return
        self.voted = False
        if not outcome:
            self.say(self.wave.all_idle())
            if self.has_work:  # it came while the votes were on their way: cannot be, for nothing is read meanwhile
                raise AssertionError("a rank with work has agreed that there is none")
            if self.world.setting.votes_wake and self.agreement.is_awaited:
                self.say(self.wave.peers_step())

    def say(self, word: Word | None) -> None:
        if word is not None and (word.says is Says.START_WAVE or self.rank == 0):
            self.world.send(f"e{self.rank}", "c", (self.rank, word))


class World:
    """All of them, and the messages on their way."""

    def __init__(self, setting: Setting, pick: Pick) -> None:
        self.setting, self.pick = setting, pick
        self.engines = [Engine(self, rank) for rank in range(setting.ranks)]
        self.coordinator = self._coordinator()
        self.front_ends = [FrontEndWave(setting.rule) for _ in range(setting.front_ends)]
        self.channels: dict[tuple[str, str], deque[Any]] = {}
        self.done: set[int] = set()
        self.asked = 0
        self.left = {"requests": setting.requests, "aborts": setting.aborts, "crashes": setting.crashes}
        self.pauses = setting.pauses
        self.paused = False
        self.stated = 0

    def _coordinator(self) -> CoordinatorWave:
        return OldCoordinatorWave() if self.setting.old_coordinator else CoordinatorWave()

    def send(self, source: str, target: str, message: Any) -> None:
        if target == "c" and self.setting.over_inputs:
            return
        self.channels.setdefault((source, target), deque()).append(message)

    def run(self, limit: int = 20_000) -> None:
        """Until nothing can happen any more; then look whether all is well."""
        for _ in range(limit):
            actions = list(self._actions())
            if not actions:
                return self._check()
            action = actions[self.pick(len(actions))]
            action()
        raise AssertionError("it does not come to rest")

    def _actions(self) -> Iterator[Callable[[], None]]:
        for (source, target), waiting in self.channels.items():
            if waiting and self._is_read(source, target, waiting[0]):
                yield lambda source=source, target=target: self._deliver(source, target)
        for engine in self.engines:
            if engine.wave.running and not engine.voted:
                yield engine.step
        if self.left["requests"]:
            yield self._request
        elif self.paused:
            yield self._pause  # sooner or later somebody resumes
        if self.left["requests"] and self.pauses:
            yield self._pause
        if self.left["aborts"] and self.asked:
            yield self._abort
        if self.left["crashes"]:
            yield self._crash

    def _is_read(self, source: str, target: str, message: Any) -> bool:
        """Whether who gets it looks at it now."""
        return source[0] == "v" or target[0] != "e" or message == "READY" or not self.engines[int(target[1:])].voted

    def _deliver(self, source: str, target: str) -> None:
        message = self.channels[source, target].popleft()
        if target == "c":
            self._coordinate(message)
        elif target[0] == "f":
            self.front_ends[int(target[1:])].hears(message)
        elif source[0] == "v":
            self.engines[int(target[1:])].hear_vote(message)
        else:
            self.engines[int(target[1:])].take(message)

    def _coordinate(self, message: Any) -> None:
        match message:
            case (rank, Word(says=Says.START_WAVE, wave=wave)):
                orders = self.coordinator.engine_started(rank, wave)
            case (_, Word(wave=wave)):
                orders = self.coordinator.wave_complete(wave)
            case notice:
                orders = self.coordinator.first_request(notice)
        if orders.start is not None:
            for rank in range(self.setting.ranks):
                self.send("c", f"e{rank}", orders.start)
        if orders.news is not None:
            for index in range(self.setting.front_ends):
                self.send("c", f"f{index}", orders.news)

    def _request(self) -> None:
        self.left["requests"] -= 1
        index, rank = self.pick(self.setting.front_ends), self.pick(self.setting.ranks)
        front_end, source = self.front_ends[index], f"f{index}"
        wave = front_end.wave
        if self.setting.over_inputs:
            wave = self.stated = self.stated + 1
            for other in range(self.setting.ranks):
                self.send("f0", f"e{other}", StartDPWave(wave))
            self._ask("f0", rank, wave)
            return
        notice = front_end.sends_request(EngineRank(rank))
        self._ask(source, rank, wave)
        if notice is not None:
            self.send(source, "c", notice)

    def _ask(self, source: str, rank: int, wave: int) -> None:
        if not self.setting.old_engines and not self.pick(5):
            self.send(source, f"e{rank}", ("refused", wave))  # what the engine's own checks do not let in
            return
        self.asked += 1
        self.send(source, f"e{rank}", ("add", self.asked, 1 + self.pick(4), wave))

    def _abort(self) -> None:
        self.left["aborts"] -= 1
        number = 1 + self.pick(self.asked)
        for (source, target), waiting in list(self.channels.items()):
            if any(m[:2] == ("add", number) for m in waiting if isinstance(m, tuple)):
                self.send(source, target, ("abort", number))
                return
        for engine in self.engines:
            if number in engine.left:
                self.send("f0", f"e{engine.rank}", ("abort", number))

    def _pause(self) -> None:
        self.pauses -= not self.paused
        self.paused = not self.paused
        for engine in self.engines:
            self.send("f0", f"e{engine.rank}", ("freeze", self.paused))

    def _crash(self) -> None:
        self.left["crashes"] -= 1
        self.coordinator = self._coordinator()
        for (source, target), waiting in self.channels.items():
            if "c" in (source, target):
                waiting.clear()
        for rank in range(self.setting.ranks):
            self.send("c", f"e{rank}", "READY")
        for index in range(self.setting.front_ends):
            self.send("c", f"f{index}", Publication(None, 0, False))

    def _check(self) -> None:
        running = [engine.rank for engine in self.engines if engine.wave.running]
        waiting = [engine.rank for engine in self.engines if engine.voted]
        assert not running, f"ranks {running} run for ever, {waiting} of them wait for the others"
        assert not [engine.left for engine in self.engines if engine.left], "a request is left behind"
        assert len(self.done) == self.asked
        assert len({engine.agreement.round for engine in self.engines}) == 1
        if not self.setting.over_inputs:
            assert not self.coordinator.running, "the coordinator believes that they run"
            assert not self.setting.old_engines or len({engine.wave.wave for engine in self.engines}) == 1
