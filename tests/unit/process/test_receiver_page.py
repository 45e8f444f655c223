"""What the input thread says on the progress page: whoever watches must see what hangs, and what the loop leaves."""

import threading

from muro.engine.interface import EngineCore
from muro.wire.progress import Progress
from muro.wire.request import EngineCoreRequest
from tests.support.asking import ask
from tests.support.deadline import until
from tests.support.hosted import Hosted, hosted
from tests.support.scripted import Scripted


class Slow(Scripted):
    """Prepares requests when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()

    def preprocess(self, request: EngineCoreRequest) -> EngineCoreRequest:
        self.begun.set()
        assert self.go_on.wait(10)
        return request


def counts(engine: Hosted) -> tuple[int, int, int, int]:
    page: Progress = engine.page.read()
    return page.messages_begun, page.messages_done, page.events_queued, page.events_taken


def test_what_is_prepared_passed_on_and_taken() -> None:
    core = Slow()

    def load(report: object) -> EngineCore:
        return core

    with hosted(load) as engine:
        engine.join()
        (client,) = engine.clients
        assert counts(engine) == (0, 0, 0, 0)
        client.add(ask("a"))
        assert core.begun.wait(10)
        assert counts(engine) == (1, 0, 0, 0), "it is being prepared"
        core.go_on.set()
        client.finish("a")
        until(lambda: counts(engine) == (1, 1, 1, 1))
        client.call("is_sleeping")
        until(lambda: counts(engine) == (2, 2, 2, 2))
        client.send(b"\x09", b"junk")
        until(lambda: counts(engine) == (3, 3, 2, 2) and engine.page.read().idle)
        assert engine.page.read().dropped_frames == 1


def test_clients_that_are_not_read_from_are_told() -> None:
    with hosted(clients=2) as engine:
        engine.join()
        attention = engine.proc._attention
        assert attention is not None
        attention.ignore(engine.clients[1].index, True)
        until(lambda: engine.page.read().ignored_clients == 1)
        attention.ignore(engine.clients[1].index, False)
        until(lambda: engine.page.read().ignored_clients == 0)
