"""One run: load that never pauses, one fault after the other, an account of everything.

`offer` sends requests at random moments, `harm` commits faults and waits each time until all is well again. Now and
then, and at the end, the load pauses until the server is idle, and its size is taken.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import msgspec

from muro.engines.faults import SEIZED_AFTER
from tests.chaos import load, requests
from tests.chaos.apart import APART, Elsewhere
from tests.chaos.apart import POISONS as POISONS_APART
from tests.chaos.faults import OUTSIDE, Scene
from tests.chaos.oracle import QUEUED, Asked, Ledger, Oracle, Seen, Window
from tests.chaos.report import Result, progress
from tests.chaos.world import STALL_LIMIT, Growing, Health, World, now

PATIENCE = {False: 30.0, True: 90.0}
"""Seconds that any request, and any recovery, may take, without and with replay: to convict who kills engines may cost
five of them, each of which hangs for the stall limit, and everybody waits meanwhile."""
SETTLE_EVERY = 5.0
TELL_EVERY = 60.0
PAUSES = 10
"""How often the server's size is taken."""
MARGIN = 0.3
"""Seconds around a fault in which its effects may still be met."""


class Plan(msgspec.Struct, frozen=True):
    """What to do."""

    seconds: float
    rate: float
    seed: int
    replay: bool
    only: tuple[str, ...] = ()
    engine: str = "sim"

    @property
    def patience(self) -> float:
        """See `PATIENCE`."""
        return PATIENCE[self.replay]


class NotWellError(Exception):
    """The server did not come back."""


class Run:
    """The state of one run; `run` below drives it."""

    def __init__(
        self, world: World, plan: Plan, there: Elsewhere | None = None, tell: Callable[[str], None] = lambda line: None
    ) -> None:
        self.world = world
        self._tell = tell
        self.plan = plan
        self._there = there
        self._outside = OUTSIDE if there is None else APART
        self.result = Result()
        self.ledger = Ledger(Oracle(replay=plan.replay, patience=plan.patience, rate=plan.rate))
        self.windows: list[Window] = []
        self._began = now()
        self._tasks: set[asyncio.Task[Seen]] = set()
        self._flow = asyncio.Event()
        self._flow.set()
        self._number = 0
        self._harming = False

    def clock(self) -> float:
        """Seconds since the beginning."""
        return now() - self._began

    def start(self, asked: Asked) -> asyncio.Task[Seen]:
        """Send a request."""
        number = self.ledger.send(asked)

        async def follow() -> Seen:
            world = self.world
            seen = await load.ask(world.host, world.port, asked, self.clock, self.plan.patience + 10)
            self.ledger.receive(number, seen)
            return seen

        task = asyncio.create_task(follow())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def number(self) -> int:
        """The next one."""
        self._number += 1
        return self._number

    async def offer(self) -> None:
        """Ordinary requests, for ever."""
        choose = random.Random(f"{self.plan.seed} requests")
        draw = requests.draw if self.plan.engine == "sim" else requests.draw_unknown
        due = self.clock()
        while True:
            await self._flow.wait()
            due = max(due + choose.expovariate(self.plan.rate), self.clock() - 1.0)
            await asyncio.sleep(max(0.0, due - self.clock()))
            self.start(draw(choose, self.number()))

    async def settle(self) -> None:
        """Judge what has ended, now and then, so that a long run keeps no more than it must, and tell how far it is."""
        due = TELL_EVERY
        while True:
            await asyncio.sleep(SETTLE_EVERY)
            self.judge()
            if self.clock() >= due:
                due += TELL_EVERY
                self._tell(progress(self.result, self.ledger.sent, self.clock(), self.plan.seconds))

    def judge(self, *, finally_: bool = False) -> None:
        """Take the verdicts in."""
        if self._harming and not finally_:
            return  # how long the present fault lasts is not known yet
        outcomes, violations = self.ledger.settle(self.windows)
        self.result.outcomes += outcomes
        self._violated(*violations)
        self.windows = [w for w in self.windows if w.ended > self.clock() - 2 * self.plan.patience]

    def _violated(self, *violations: str) -> None:
        self.result.violations += violations
        for violation in violations:
            self._tell(violation)

    async def harm(self) -> None:
        """One fault after the other until the time is over. Raises NotWellError."""
        choose = random.Random(f"{self.plan.seed} faults")
        names = self._names()
        pause = max(2.0, self.plan.seconds / PAUSES)
        due = pause
        while self.clock() < self.plan.seconds:
            await asyncio.sleep(choose.uniform(0.2, 2.5))
            if self.clock() > due:
                due = self.clock() + pause
                self.result.sizes.append(await self.quiet())
            await self.commit(choose.choice(names), choose)

    def _names(self) -> list[str]:
        poisons = requests.POISONS if self._there is None else POISONS_APART
        names = [*self._outside, *(poisons if self.plan.engine == "sim" else ())]
        for name, kind in self._outside.items():
            if why := kind.needs(self.world):
                self.result.left_out[name] = why
                names.remove(name)
        if unknown := set(self.plan.only) - set(names):
            raise SystemExit(f"there is no fault {', '.join(sorted(unknown))} here; there are: {', '.join(names)}")
        return list(self.plan.only) or names

    async def commit(self, name: str, choose: random.Random) -> None:
        """Commit a fault and wait until all is well."""
        before = (await self.well()).engine
        kind = self._outside.get(name)
        lethal = requests.POISONS[name][1] if kind is None else kind.lethal
        self._harming, began = True, self.clock()
        if kind is None:
            await self._poison(name, choose)
        elif self._there is None:
            await kind.commit(Scene(self.world, before.pid or 0, choose))
        else:
            await kind.commit(Scene(self.world, self._there.engine_pid, choose, self._there.cable))
        after = (await self._outlived(before.generation + 1) if lethal else await self._unburdened(0)).engine
        ended = self.clock()
        self.windows.append(Window(name, began - MARGIN, ended + MARGIN, lethal))
        self._harming = False
        self.result.faults[name] += 1
        self.result.deaths += after.generation - before.generation
        if lethal:
            self.result.recoveries.setdefault(name, []).append(ended - began)
        elif after.generation != before.generation:
            self._violated(f"{name} at {began:.2f} s, which kills nobody, cost the engine its life")

    async def _poison(self, name: str, choose: random.Random) -> None:
        """Send a request with a fault, again if there is no room for it yet: one that is refused harms nobody."""
        seen = await self.start(requests.poison(choose, self.number(), name))
        while seen.code == "overloaded":
            await self._unburdened(0)
            seen = await self.start(requests.poison(choose, self.number(), name))

    async def _outlived(self, generation: int) -> Health:
        """Return as `_unburdened`, when nothing of a fault is still on its way: a thread that was told to die does so
        with the next message, a lock is seized a moment later, and whoever brought that about may have ended before.
        Raises NotWellError."""
        while True:
            await asyncio.sleep(2 * SEIZED_AFTER)
            before = await self._unburdened(generation)
            after = await self.health("/health?deep=1")
            if after and after.status == "ok" and after.engine.generation == before.engine.generation:
                return after

    async def _unburdened(self, generation: int) -> Health:
        """Return when the server is ready and has worked off most of what had to wait. Raises NotWellError."""
        end = self.clock() + 2 * self.plan.patience
        while (health := await self.well(generation)).queue.get("requests", 0) > QUEUED // 4:
            if self.clock() > end:
                raise NotWellError(f"what had to wait is not worked off within {2 * self.plan.patience} s: {health}")
            await asyncio.sleep(0.1)
        return health

    async def well(self, generation: int = 0) -> Health:
        """Return when the server is ready, with this generation or a later one. Raises NotWellError."""
        end = self.clock() + self.plan.patience
        health = None
        while self.clock() < end:
            health = await self.health()
            if health and health.status == "ok" and health.engine.generation >= generation:
                return health
            if self.world.process.poll() is not None:
                raise NotWellError(f"the server has ended with code {self.world.process.poll()}")
            await asyncio.sleep(0.02)
        raise NotWellError(f"not well within {self.plan.patience} s, generation {generation} is waited for: {health}")

    async def health(self, path: str = "/health") -> Health | None:
        """What `/health` says; None if it does not answer."""
        try:
            async with asyncio.timeout(STALL_LIMIT * 2):
                reader, writer = await asyncio.open_connection(self.world.host, self.world.port)
                writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
                body = (await reader.read()).partition(b"\r\n\r\n")[2]
                writer.close()
                return msgspec.json.decode(body, type=Health)
        except (OSError, TimeoutError, msgspec.MsgspecError):
            return None

    async def quiet(self) -> Growing:
        """Hold the load, wait until nothing is under way, and take the server's size."""
        self._flow.clear()
        end = self.clock() + self.plan.patience + 10
        while self._tasks and self.clock() < end:
            await asyncio.wait(self._tasks, timeout=1.0)
        health = await self.well()
        while (health.engine.in_flight or health.queue.get("requests")) and self.clock() < end:
            await asyncio.sleep(0.05)
            health = await self.well()
        if health.engine.in_flight or health.queue.get("requests"):
            self._violated(f"nobody waits any more, and the server still works: {health}")
        await asyncio.sleep(0.5)
        size = self.world.grown()
        self._flow.set()
        return size


async def run(
    world: World, plan: Plan, there: Elsewhere | None = None, tell: Callable[[str], None] = lambda line: None
) -> Result:
    """Do it all, and stop the server in the end; `there` is where its engine is, if not here. `tell` gets lines on how
    it goes."""
    state = Run(world, plan, there, tell)
    result = state.result
    if there is not None:
        result.left_out = {}
    around = [asyncio.create_task(state.offer()), asyncio.create_task(state.settle())]
    try:
        await state.harm()
        for task in around:
            task.cancel()
        result.sizes.append(await state.quiet())
    except NotWellError as error:
        result.violations.append(str(error))
    for task in around:
        task.cancel()
    await asyncio.gather(*around, return_exceptions=True)
    result.violations += state.ledger.stuck()
    state.judge(finally_=True)
    result.requests = state.ledger.sent
    result.log = world.said()
    await asyncio.to_thread(_stop, world, result)
    return result


def _stop(world: World, result: Result) -> None:
    if world.process.poll() is None:
        result.exit_code = world.stop()
    else:
        result.exit_code = world.process.poll()
    if result.exit_code != 0:
        result.violations.append(f"the server ended with code {result.exit_code}")
    result.violations += [f"left behind: {what}" for what in world.left_behind()]
