"""A synchronous client used in a signal handler that runs on top of the same client: refused, never stuck."""

import itertools
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from muro import ClientClosedError, InprocClient, SyncMPClient, connect
from muro.errors import UsageError
from tests.support.asking import FOREVER, ask
from tests.support.counts import count
from tests.support.deadline import until

Client = SyncMPClient | InprocClient


@pytest.fixture(params=["process", "inproc"])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    options = {"step_ms": 1}
    makers = {
        "process": lambda: connect(engine="faulty", options=options),
        "inproc": lambda: InprocClient.create("faulty", options=options),
    }
    with makers[request.param]() as client:
        yield client


@pytest.fixture
def on_signal() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Sets what SIGUSR1 does."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, lambda *_: handler())  # type: ignore[func-returns-value]
    signal.signal(signal.SIGUSR1, before)


def tokens(stream: object) -> list[int]:
    return [token for item in stream for token in item.new_token_ids]  # type: ignore[attr-defined]


def signal_until(condition: Callable[[], object]) -> threading.Thread:
    """A thread that sends SIGUSR1 to this process again and again, until the condition holds."""
    process = os.getpid()
    thread = threading.Thread(target=lambda: until(lambda: condition() or os.kill(process, signal.SIGUSR1)))
    thread.start()
    return thread


_numbers = itertools.count()  # a handler may be interrupted by itself
USES: dict[str, Callable[[Client], object]] = {
    "call": lambda client: client.call("is_sleeping"),
    "generate": lambda client: tokens(client.generate(ask(f"on top {next(_numbers)}"))),
}
ENTERS: dict[str, Callable[[Client], object]] = {
    **USES,
    "abort": lambda client: client.abort(["a"]),
    "engines": lambda client: client.engines(),
    "check_health": lambda client: client.check_health(),
}


@pytest.mark.parametrize("use", USES)
def test_what_waits_is_refused_while_the_thread_below_waits(
    client: Client, on_signal: Callable[[Callable[[], object]], None], use: str
) -> None:
    refused = []

    def handler() -> None:
        if client._seat.held_here and not refused:
            with pytest.raises(UsageError, match="set a flag"):
                USES[use](client)
            refused.append(use)

    on_signal(handler)
    stream = client.generate(ask("a", 400))
    next(stream)
    sender = signal_until(lambda: refused)
    assert len(tokens(stream)) == 399, "the stream below loses nothing"
    sender.join()
    assert refused == [use]
    until(lambda: client.call("num_live") == 0)


@pytest.mark.parametrize("use", ENTERS)
def test_all_is_refused_on_top_of_a_bookkeeping(
    client: Client, on_signal: Callable[[Callable[[], object]], None], use: str
) -> None:
    seen = []

    def handler() -> None:
        with pytest.raises(UsageError, match="set a flag"):
            ENTERS[use](client)
        seen.append(use)

    on_signal(handler)
    with client._lock:
        signal.raise_signal(signal.SIGUSR1)
    assert seen == [use]
    assert tokens(client.generate(ask("a"))) == [7, 8, 9]


def test_a_stream_that_is_being_read_is_not_lost_to_who_may_not_read_it(
    client: Client, on_signal: Callable[[Callable[[], object]], None]
) -> None:
    refused = []

    def handler() -> None:
        if client._seat.held_here and not refused:
            with pytest.raises(UsageError, match="under this signal handler"):
                next(stream)
            refused.append(1)

    on_signal(handler)
    stream = client.generate(ask("a", 400))
    sender = signal_until(lambda: refused)
    assert len(tokens(stream)) == 400
    sender.join()
    assert refused


def test_closing_on_top_of_a_bookkeeping(client: Client, on_signal: Callable[[Callable[[], object]], None]) -> None:
    on_signal(client.close)
    stream = client.generate(ask("a", FOREVER))
    with client._lock:
        signal.raise_signal(signal.SIGUSR1)
    with pytest.raises(ClientClosedError):
        tokens(stream)
    until(lambda: not any(thread.name == "muro-close" for thread in threading.enumerate()))


@pytest.mark.timeout(120)
def test_signals_at_random_moments(client: Client, on_signal: Callable[[Callable[[], object]], None]) -> None:
    """Wherever the handler falls: it is served or refused, and what it interrupts goes on."""
    met = {"served": 0, "refused": 0}
    order = random.Random(5)

    def handler() -> None:
        try:
            USES[order.choice(list(USES))](client)
            met["served"] += 1
        except UsageError:
            met["refused"] += 1

    on_signal(handler)
    over = threading.Event()
    main = threading.main_thread().ident

    def fire() -> None:
        while not over.wait(order.random() * 0.004):
            signal.pthread_kill(main, signal.SIGUSR1)

    sender = threading.Thread(target=fire)
    sender.start()
    try:
        for number in range(count(60, 1000)):
            assert tokens(client.generate(ask(f"r{number}", 3, [number]))) == [number] * 3
            assert client.call("is_sleeping") is False
    finally:
        over.set()
        sender.join()
    assert met["refused"] > 0
    until(lambda: client.call("num_live") == 0)
