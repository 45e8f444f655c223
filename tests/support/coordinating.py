"""A coordinator on a thread, with engines and front-ends of bare sockets around it."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

from muro.config import CoordinatorConfig
from muro.coordinator.service import Coordinator
from muro.transport.pump import Pump
from muro.transport.sockets import Frame, close, connect_push, connect_xsub, receive_nowait, send_nowait
from muro.transport.wakeup import Wakeup
from muro.wire.codec import OutputEncoder
from muro.wire.coordination import Publication, decode_publication
from muro.wire.frames import SUBSCRIBE, identity_of
from muro.wire.output import EngineCoreOutputs
from muro.wire.releases import SAFE
from muro.wire.stats import SchedulerStats
from tests.support.rawpeer import PATIENCE


class Ear:
    """An XSUB socket, and all that came."""

    def __init__(self, address: str, identity: bytes | None = None) -> None:
        self.socket = connect_xsub(address, identity)
        self.heard: list[list[Frame]] = []
        self._pump = Pump()
        self._pump.add(self.socket, self._read)

    def send(self, *frames: Frame) -> None:
        assert send_nowait(self.socket, frames)

    def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            assert self._pump.poll(int(PATIENCE * 1000)), f"nothing more comes; heard so far: {self.heard}"

    def next(self) -> list[Frame]:
        """The next message."""
        self.until(lambda: bool(self.heard))
        return self.heard.pop(0)

    def all(self) -> list[list[Frame]]:
        """What has come, without waiting."""
        while self._pump.poll(0):
            pass
        heard, self.heard = self.heard, []
        return heard

    def close(self) -> None:
        close(self.socket, 0)

    def _read(self) -> None:
        if (frames := receive_nowait(self.socket)) is not None:
            self.heard.append([bytes(frame) for frame in frames])


class Engine(Ear):
    """An engine as the coordinator sees it."""

    def __init__(self, config: CoordinatorConfig, rank: int) -> None:
        super().__init__(config.input_address, identity_of(rank))
        self.rank = rank
        self.mouth = connect_push(config.output_address, linger_ms=0)
        self._encoder = OutputEncoder(SAFE)

    def says(self, **parts: Any) -> None:
        message = EngineCoreOutputs(engine_index=self.rank, **parts)
        assert send_nowait(self.mouth, self._encoder.encode(message, bytearray()))

    def reports(self, waiting: int, running: int, kv_usage: float = 0.0) -> None:
        self.says(scheduler_stats=SchedulerStats(running, waiting, kv_cache_usage=kv_usage))

    def close(self) -> None:
        super().close()
        close(self.mouth, 0)


class FrontEnd(Ear):
    """A front-end as the coordinator sees it."""

    def __init__(self, config: CoordinatorConfig) -> None:
        super().__init__(config.stats_address)
        self.send(SUBSCRIBE)

    def news(self) -> Publication:
        return decode_publication(self.next()[0])

    def news_until(self, condition: Callable[[Publication], bool]) -> Publication:
        while not condition(news := self.news()):
            pass
        return news


class Coordinated:
    """The coordinator of a test."""

    def __init__(self, config: CoordinatorConfig) -> None:
        self.config = config
        self._stop = Wakeup().open()
        self.coordinator = Coordinator(config, self._stop)
        self._thread = threading.Thread(target=self.coordinator.run, name="coordinator")
        self._peers: list[Ear] = []
        self.coordinator.open()
        self._thread.start()

    def engine(self, rank: int, *, subscribe: bool = True) -> Engine:
        engine = Engine(self.config, rank)
        self._peers.append(engine)
        if subscribe:
            engine.send(SUBSCRIBE)
        return engine

    def engines(self, count: int) -> list[Engine]:
        """All engines, each with its READY."""
        made = [self.engine(rank) for rank in range(count)]
        for engine in made:
            assert engine.next() == [b"READY"]
        return made

    def front_end(self) -> FrontEnd:
        """A front-end that has heard the first publication."""
        front_end = FrontEnd(self.config)
        self._peers.append(front_end)
        front_end.news()
        return front_end

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)
        self.coordinator.close()
        self._stop.close()
        for peer in self._peers:
            peer.close()
        assert not self._thread.is_alive()


@contextlib.contextmanager
def coordinated(num_engines: int = 2, **settings: Any) -> Iterator[Coordinated]:
    with tempfile.TemporaryDirectory(prefix="co-", ignore_cleanup_errors=True) as directory:
        config = CoordinatorConfig(
            num_engines=num_engines,
            input_address=f"ipc://{directory}/i",
            output_address=f"ipc://{directory}/o",
            stats_address=f"ipc://{directory}/s",
            **settings,
        )
        one = Coordinated(config)
        try:
            yield one
        finally:
            one.close()
