"""The tick policy of lockstep ranks (what vLLM calls DPEngineCoreProc), and how one finds its group.

While a wave runs, all ranks step together: one without work computes a dummy batch. After the first step of a wave, and
then every so many, the ranks agree whether anybody has work; if not, all pause. `parallel.waves` decides, `Collective`
agrees, this acts.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import NoReturn

import msgspec

from muro.config import EngineConfig, LockstepConfig
from muro.engine.events import Add, CoordinatorUp, Event, PeersStep, Routed, StartWave
from muro.engine.interface import Collective, EngineCore
from muro.errors import CallFailedError, ConfigError
from muro.ids import COORDINATOR, EngineRank
from muro.parallel.waves import EngineWave, Says, Word
from muro.process.collective import RankCollective
from muro.process.queues import InputQueue
from muro.process.reports import LoadReports
from muro.transport.endpoint import tcp_endpoint
from muro.transport.wakeup import Wakeup
from muro.version import VERSION
from muro.wire.handshake import Init
from muro.wire.output import EngineCoreOutputs

log = logging.getLogger(__name__)


class Lockstep:
    """A rank of a lockstep group.

    Args:
        rank: its own; rank 0 reports the end of a wave.
        engine: computes dummy batches.
        collective: agrees with the others.
        interval: steps from one agreement to the next.
        timeout: seconds that an agreement may take.
        reports: tells the coordinator the load; None without one.
        clock: monotonic seconds, for time stamps.
    """

    def __init__(
        self,
        rank: EngineRank,
        engine: EngineCore,
        collective: Collective,
        *,
        interval: int,
        timeout: float,
        reports: LoadReports | None,
        clock: Callable[[], float],
    ) -> None:
        self._rank = rank
        self._engine = engine
        self._collective = collective
        self._timeout = timeout
        self._reports = reports
        self._clock = clock
        self._wave = EngineWave(interval)
        self._told_by = COORDINATOR
        self._agreements = 0
        self._warned = False

    @property
    def busy(self) -> bool:
        return self._wave.running

    @property
    def wave(self) -> int:
        """The number of the wave that runs, or would be the next."""
        return self._wave.wave

    def heard(self, event: Event, has_work: bool) -> list[Routed]:
        wave, said = self._wave, list[Routed]()
        match event:
            case Add():
                wave.request_states(event.wave)
            case StartWave():
                self._told_by = event.origin
                said += self._say(wave.told_to_start(event.wave))
            case PeersStep() if event.number == self._agreements:  # else this rank has answered meanwhile
                wave.peers_step()
            case CoordinatorUp() if self._reports is not None:
                said += self._reports.anew(wave.wave, wave.steps)
        return said + (self._say(wave.has_work()) if has_work else [])

    def after_step(self, executed: bool, has_work: bool) -> list[Routed]:
        wave = self._wave
        said = self._say(wave.has_work()) if has_work else []
        if not wave.running:  # the last request of a rank that was not told of others has ended in its first step
            return said + self.before_idle()
        if not executed:
            self._compute_nothing()
        agree = wave.stepped()
        said += self.before_idle()
        if agree:
            goes_on = self._collective.any_rank(has_work, self._timeout)
            self._agreements += 1
            said += [] if goes_on else self._say(wave.all_idle())
        return said

    def before_idle(self) -> list[Routed]:
        return [] if self._reports is None else self._reports.changed(self._wave.wave, self._wave.steps)

    def coordinator_up(self) -> list[Routed]:
        # The loop may end the wave meanwhile; then this is old news, which does no harm.
        return self._say(self._wave.coordinator_up())

    def _compute_nothing(self) -> None:
        try:
            self._engine.execute_dummy_batch()
        except CallFailedError as error:
            if not self._warned:
                log.warning("no dummy batch could be computed, and no more is said about it: %s", error)
            self._warned = True

    def _say(self, word: Word | None) -> list[Routed]:
        """To the coordinator; the end of a wave to whoever has started waves last."""
        if word is None or (word.says is Says.WAVE_COMPLETE and self._rank != 0):
            return []
        message = EngineCoreOutputs(self._rank, timestamp=self._clock())
        if word.says is Says.START_WAVE:
            message.start_wave = word.wave
            return [Routed(COORDINATOR, message)]
        message.wave_complete = word.wave
        return [Routed(self._told_by, message)]


def group_settings(config: EngineConfig, init: Init) -> EngineConfig:
    """The settings of an engine with what INIT says of its group. Some front-ends say nothing, and on one machine only
    who has started the engine knows the place.

    Raises ConfigError for a group that this rank cannot belong to.
    """
    known, size = config.lockstep or LockstepConfig(), init.parallel_config.get("data_parallel_size")
    host, port = (init.parallel_config.get(f"data_parallel_master_{what}") for what in ("ip", "port"))
    address = tcp_endpoint(host, port) if isinstance(host, str) and type(port) is int else ""
    if type(size) is not int or size <= 1 or (known.size > 1 and not address):
        return config
    return msgspec.structs.replace(config, lockstep=msgspec.structs.replace(known, size=size, address=address))


def group_hash(config: EngineConfig) -> str:
    """What must be the same for all ranks of a group, as 64 hexadecimal digits: front-ends compare them."""
    group = config.lockstep
    same = [config.engine, *([] if group is None else [group.size, group.interval]), VERSION]
    return hashlib.sha256(msgspec.json.encode(same)).hexdigest()


def join_group(engine: EngineCore, config: EngineConfig, inbox: InputQueue, stop: Wakeup) -> Collective | None:
    """The group of a lockstep engine: its own, or a built-in one that is to be opened; None for one on its own.

    Raises ConfigError if an engine that runs in lockstep, and is one of several, is not told of the others.
    """
    if not engine.info().lockstep:
        return None
    if config.lockstep is None and config.rank > 0:
        raise ConfigError(
            f"engine {config.engine!r} runs in lockstep with others, and nobody has said that this is one of several "
            "such: setting lockstep (muro serve: --data-parallel-lockstep)"
        )
    if config.lockstep is None or config.lockstep.size == 1:
        return None
    own = engine.collective()
    if own is not None:
        return own
    if not config.lockstep.address:
        _refuse(config)
    return RankCollective(
        config.lockstep,
        EngineRank(config.rank),
        on_awaited=lambda number: inbox.put(PeersStep(number)),
        stop=stop,
        insecure_tcp=config.insecure_tcp,
    )


def _refuse(config: EngineConfig) -> NoReturn:
    raise ConfigError(
        f"engine {config.engine!r} runs in lockstep and brings no group of its own; lockstep.address must say where "
        "rank 0 hears the others, for instance tcp://127.0.0.1:29600"
    )
