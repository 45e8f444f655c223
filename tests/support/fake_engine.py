"""An engine for start-up tests: speaks the handshake over real sockets, and misbehaves as its options say."""

import os
import signal
import threading
from collections.abc import Callable

import msgspec

from muro.child.context import ChildContext
from muro.config import EngineConfig
from muro.ids import EngineRank
from muro.transport.pump import Pump
from muro.transport.sockets import Socket, close, connect_dealer, receive_nowait, send_nowait
from muro.wire.failure import FailureRecord
from muro.wire.frames import identity_of
from muro.wire.handshake import EngineHandshake, ReadyResponse

TARGET = "tests.support.fake_engine:run"
RESPONSE = ReadyResponse(
    max_model_len=128,
    num_gpu_blocks=0,
    block_size=16,
    dp_stats_address=None,
    dtype="float32",
    vllm_version="0",
    world_size=1,
    data_parallel_size=1,
)


def run(context: ChildContext) -> int:
    """Join, then wait for SIGTERM; `options` may name an action for each phase: "greeting", "loading", "ready"."""
    config = msgspec.convert(context.payload, EngineConfig)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    actions: dict[str, str] = config.options.get("at", {})

    def at(phase: str) -> None:
        context.page.set_phase(phase)
        if action := actions.get(phase) if config.rank == config.options.get("rank", config.rank) else None:
            name, _, argument = action.partition(" ")
            _ACTIONS[name](context, argument)

    at("greeting")
    rank = EngineRank(config.options.get("identity", config.rank))
    local = config.options.get("local", config.local)
    handshake = EngineHandshake(local=local, headless=config.headless)
    socket = connect_dealer(config.handshake_address, identity_of(rank))
    send_nowait(socket, [handshake.hello()])
    init = handshake.receive(_receive(socket))
    at("loading")
    inputs = connect_dealer(init.addresses.inputs[0], identity_of(rank))
    if not config.options.get("no_response"):
        send_nowait(inputs, [RESPONSE.encode()])
    ready = handshake.ready()
    for _ in range(config.options.get("ready_times", 1)):
        send_nowait(socket, [ready])
    at("ready")
    stop.wait()
    close(inputs, 0)
    close(socket, 0)
    return 0


def _receive(socket: Socket) -> bytes:
    received: list[bytes] = []

    def read() -> None:
        if frames := receive_nowait(socket):
            received.append(bytes(frames[0]))

    pump = Pump()
    pump.add(socket, read)
    while not received:
        pump.poll()
    return received[0]


def _die(context: ChildContext, argument: str) -> None:
    print("about to die", flush=True)
    os.kill(os.getpid(), int(argument))
    signal.pause()


def _exit(context: ChildContext, argument: str) -> None:
    os._exit(int(argument))


def _raise(context: ChildContext, argument: str) -> None:
    raise RuntimeError(argument)


def _report_and_hang(context: ChildContext, argument: str) -> None:
    context.report_failure(FailureRecord.of("loading", RuntimeError(argument)))
    _hang(context, argument)


def _hang(context: ChildContext, argument: str) -> None:
    threading.Event().wait()


def _crawl(context: ChildContext, argument: str) -> None:
    """Progress, slower than anybody likes: so many steps, one each time the parent had time to look."""
    pause = threading.Event()
    for step in range(int(argument)):
        context.page.set_phase("crawling", step)
        pause.wait(0.25)


_ACTIONS: dict[str, Callable[[ChildContext, str], None]] = {
    "die": _die,
    "exit": _exit,
    "raise": _raise,
    "report_and_hang": _report_and_hang,
    "hang": _hang,
    "crawl": _crawl,
}
