"""EngineCoreProc: holds an engine's host, queues and threads. Starts, runs, ends; knows no signal.

Order of the start: queues; handshake (HELLO, then addresses from INIT); the engine loads; the two I/O
threads start; the receiver sends the ready response on every input socket and passes the coordinator's gate;
handshake READY. Order of the end: no more input, the rest of the queue is answered, everything is sent, the
engine shuts down.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable

from muro.config import EngineConfig, LockstepConfig
from muro.engine.admission import Admission
from muro.engine.events import ExecutorFailed, Routed
from muro.engine.host import EngineHost
from muro.engine.interface import Collective, EngineCore, EngineInfo, Report
from muro.errors import InternalError, StartupError
from muro.ids import EngineRank
from muro.process.attention import Attention
from muro.process.collective import RankCollective
from muro.process.join import Join
from muro.process.lifecycle import Lifecycle, State, Step
from muro.process.lockstep import Lockstep, group_hash, group_settings, join_group
from muro.process.loop import BusyLoop
from muro.process.peers import PeerLayouts
from muro.process.policy import Independent, TickPolicy
from muro.process.queues import Control, InputQueue, OutputQueue
from muro.process.receiver import Receiver
from muro.process.reports import LoadReports
from muro.process.sender import Sender
from muro.transport.endpoint import check_clear
from muro.transport.page import ProgressPage
from muro.transport.pump import Pump
from muro.transport.sockets import Dial
from muro.transport.wakeup import Wakeup
from muro.version import VERSION
from muro.wire.frames import identity_of
from muro.wire.handshake import HEARTBEAT, Features, Init, ReadyResponse
from muro.wire.request import RESUMED_TOKENS, SAMPLING_OPTIONS

READY_STEP_MS = 10_000
"""Milliseconds between two looks at the receiver while the coordinator's gate is closed and nothing is heard."""
GC_THRESHOLD = 20_000
"""New objects after which the collector looks at the young ones."""
FLUSH_TIMEOUT = 5.0
"""Seconds that the sender gets for the last messages."""

Load = Callable[[Report], EngineCore]


class EngineCoreProc:
    """One engine behind its sockets.

    Args:
        config: settings of this engine.
        load: builds the engine; called once, after INIT.
        page: where progress is shown to the parent.
    """

    def __init__(self, config: EngineConfig, load: Load, page: ProgressPage) -> None:
        self._config = config
        self._load = load
        self._page = page
        self._inbox = InputQueue()
        self._outbox: OutputQueue = OutputQueue()
        self._stop = Wakeup()
        self._attention: Attention | None = None
        self._stop_requested = False
        self.lost = False
        """Whether all front-ends have gone."""
        self._lifecycle = Lifecycle()
        self._join: Join | None = None
        self._engine: EngineCore | None = None
        self._receiver: Receiver | None = None
        self._sender: Sender | None = None
        self._loop: BusyLoop | None = None
        self._collective: RankCollective | None = None
        self._in_lockstep = False
        self.phase = "handshake"
        """What the process is doing, in people's words; for the failure record."""

    def ask_to_stop(self) -> None:
        """Record that a stop is wanted and wake whoever waits; safe in a signal handler."""
        self._stop_requested = True
        self._stop.set()
        self._inbox.wake()

    def stop_requested(self) -> bool:
        """Whether somebody asked for a stop, or nobody is left to work for."""
        return self._stop_requested or self.lost

    def start(self) -> bool:
        """Join the front-end and load the engine; False if asked to stop meanwhile. Raises what went wrong."""
        self._enter("handshake")
        self._stop.open()
        if self._stop_requested:  # before it could be heard
            self._stop.set()
        config = self._config
        if not config.local and config.curve is None:
            check_clear(config.handshake_address, config.insecure_tcp)
        self._join = Join(
            config.handshake_address,
            rank=EngineRank(config.rank),
            local=config.local,
            headless=config.headless,
            stop=self._stop,
            dial=Dial(config.curve),
        )
        init = self._join.greet(None if config.rejoin else config.handshake_timeout)
        if init is None:
            return self._stopped_early()
        self._heed(init)
        self._enter("loading")
        engine = self._engine = self._load(self._report)
        if self.stop_requested():
            return self._stopped_early()
        self._enter("connecting")
        self._await_receiver(self._connect(engine, init, self._join_group(engine)))
        if self.stop_requested():
            return self._stopped_early()
        self._join.ready(group_hash(self._config) if self._in_lockstep else None)
        self._lifecycle.fire(Step.READY)
        self._enter("serving")
        return True

    def run(self) -> None:
        """Turn the busy loop until asked to stop. Raises what ended the engine."""
        if self._loop is None:
            raise InternalError("run() was called before start() had succeeded")
        # What start-up made lives as long as the process: the collector need not look at it again. What a step
        # makes is gone soon, and none of it is in cycles: looking after every 700 objects finds nothing.
        gc.collect()
        gc.freeze()
        threshold = gc.get_threshold()
        gc.set_threshold(GC_THRESHOLD, 20, 20)
        try:
            self._loop.run()
        except BaseException:
            self._lifecycle.fire(Step.FAIL)
            raise
        finally:
            gc.set_threshold(*threshold)
            gc.unfreeze()

    def announce_death(self) -> None:
        """Send the death notice to every client; waits up to `FLUSH_TIMEOUT` for it to have left."""
        if self._sender is not None:
            self._outbox.put(Control.DEAD)
            self._sender.join(FLUSH_TIMEOUT)

    def close(self, *, keep_engine: bool = False) -> None:
        """Answer what is queued, send it, release everything. Idempotent; raises what the engine's shutdown raises.

        With `keep_engine` the engine is not shut down: whoever has given it to us goes on with it.
        """
        self._enter("stopping")
        if self.lost and self._join is not None:
            self._join.close(lost=True)  # first of all: it would dial the next front-end, in our name
        if self._collective is not None:
            self._collective.close()
        if self._receiver is not None:
            self._receiver.stop()
        if self._sender is not None:
            if self._loop is not None and self._lifecycle.state is State.STOPPED:
                self._loop.reject_rest()
            self._outbox.put(Control.LOST if self.lost else Control.END)
            if self._sender.join(FLUSH_TIMEOUT) and self._attention is not None:
                self._attention.news.close()  # nobody can be inside its `set` any more
        if self._join is not None:
            self._join.close(lost=self.lost)
        self._stop.close()
        engine, self._engine = self._engine, None
        if engine is not None and not keep_engine:
            engine.shutdown()

    def _front_end_lost(self) -> None:
        """All front-ends have gone (receiver thread)."""
        self.lost = True
        self._stop.set()
        self._inbox.wake()

    def _stopped_early(self) -> bool:
        self._lifecycle.fire(Step.STOP_NOW)
        return False

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self._page.set_phase(phase, 0.0)

    def _report(self, phase: str, percent: float) -> None:
        self.phase = f"loading: {phase}"
        self._page.set_phase(self.phase, percent)

    def _connect(self, engine: EngineCore, init: Init, collective: Collective | None) -> Receiver:
        """Build the host and its threads, and start them; returns the one to wait for."""
        config, addresses = self._config, init.addresses
        engine.on_executor_failure(lambda cause: self._inbox.put(ExecutorFailed(cause)))
        admission = Admission(config.limits)
        host = self._host(engine, admission)
        ours = init.muro is not None and HEARTBEAT in init.muro.features
        dial = Dial(config.curve, heartbeat=ours and not config.local)
        attention = self._attention = Attention(len(addresses.inputs))
        attention.news.open()
        peers = PeerLayouts(len(addresses.outputs), config.peer_release, ours=init.muro is not None)
        sender = self._sender = Sender(
            addresses=addresses,
            peers=peers,
            inbox=self._inbox,
            outbox=self._outbox,
            attention=attention,
            limits=config.limits,
            dial=dial,
        )
        policy = self._policy(host, engine, collective, told=addresses.coordinator_output is not None)
        self._loop = BusyLoop(
            host,
            self._inbox,
            self._outbox,
            self._page,
            policy,
            self._lifecycle,
            send_now=sender.send_now,
            stop_requested=self.stop_requested,
            drain=config.shutdown_timeout,
        )
        receiver = self._receiver = Receiver(
            addresses=addresses,
            identity=identity_of(EngineRank(config.rank)),
            ready_response=ready_response(
                host.info, init, config.rank, config.lockstep if collective else None
            ).encode(),
            host=host,
            admission=admission,
            peers=peers,
            inbox=self._inbox,
            outbox=self._outbox,
            attention=attention,
            limits=config.limits,
            page=self._page,
            dial=dial,
            on_lost=None if config.local else self._front_end_lost,
            comes_back=config.local and len(addresses.inputs) > 1,
            on_coordinator_up=lambda: self._post_at_once(policy.coordinator_up()),
        )
        sender.start()
        receiver.start()
        return receiver

    def _host(self, engine: EngineCore, admission: Admission) -> EngineHost:
        config = self._config
        return EngineHost(
            engine,
            rank=EngineRank(config.rank),
            name=f"engine {config.engine!r}",
            admission=admission,
            clock=time.monotonic,
            post_late=self._post_late,
            log_stats=config.log_stats,
        )

    def _heed(self, init: Init) -> None:
        """Take note of what INIT says of other ranks. Raises ConfigError."""
        self._config = group_settings(self._config, init)
        coordinator = init.addresses.coordinator_input, init.addresses.coordinator_output
        for address in coordinator if not self._config.local else ():
            if address is not None:  # it speaks in the clear, whatever keys there are
                check_clear(address, self._config.insecure_tcp)

    def _join_group(self, engine: EngineCore) -> Collective | None:
        collective = join_group(engine, self._config, self._inbox, self._stop)
        self._in_lockstep = collective is not None
        if isinstance(collective, RankCollective):
            self._collective = collective
            collective.open()
        return collective

    def _policy(self, host: EngineHost, engine: EngineCore, collective: Collective | None, *, told: bool) -> TickPolicy:
        """What the rank does beside stepping; `told`: whether there is a coordinator to be told of load."""
        rank, settings = EngineRank(self._config.rank), self._config.lockstep
        reports = LoadReports(rank, lambda: host.load, time.monotonic) if told else None
        if collective is None or settings is None:
            return Independent(reports)
        return Lockstep(
            rank,
            engine,
            collective,
            interval=settings.interval,
            timeout=settings.timeout,
            reports=reports,
            clock=time.monotonic,
        )

    def _await_receiver(self, receiver: Receiver) -> None:
        """Return when the receiver is ready, however long the coordinator takes, or when a stop was asked for."""
        pump = Pump()
        for news in (self._stop, receiver.news):
            pump.add(news.fileno(), lambda: None)
        while not (receiver.ready or self.stop_requested()):
            if receiver.failure is not None or not receiver.alive:
                cause = f": {receiver.failure}" if receiver.failure is not None else ""
                raise StartupError(
                    f"input thread died during start-up{cause}", rank=self._config.rank, phase=self.phase
                ) from receiver.failure
            pump.poll(READY_STEP_MS)

    def _post_at_once(self, routed: list[Routed]) -> None:
        if routed:
            self._outbox.put(routed)

    def _post_late(self, routed: Routed) -> None:
        self._outbox.put([routed])


def ready_response(info: EngineInfo, init: Init, rank: int = 0, group: LockstepConfig | None = None) -> ReadyResponse:
    """What an engine says of itself: all keys of 0.33, which every front-end accepts (protocol section 16.5).

    Ranks that do not run in lockstep are engines of their own, each the only one of its group.
    """
    return ReadyResponse(
        max_model_len=info.max_model_len,
        num_gpu_blocks=info.num_gpu_blocks,
        block_size=info.block_size,
        kv_cache_size_tokens=info.kv_cache_size_tokens,
        dp_stats_address=init.addresses.frontend_stats_publish_address,
        dtype=info.dtype,
        vllm_version=f"muro-{VERSION}",
        world_size=1,
        data_parallel_size=1 if group is None else group.size,
        data_parallel_rank=0 if group is None else rank,
        max_num_seqs=info.max_num_seqs,
        max_num_batched_tokens=info.max_num_batched_tokens,
        instance_id=f"muro-{os.getpid()}",
        enable_sleep_mode=bool(info.releasable),
        muro=_features(info) if init.muro is not None else None,
    )


def _features(info: EngineInfo) -> Features:
    promised = {
        RESUMED_TOKENS: info.understands_resumed_tokens,
        SAMPLING_OPTIONS: info.honours_sampling_options,
    }
    return Features(VERSION, [name for name, holds in promised.items() if holds])
