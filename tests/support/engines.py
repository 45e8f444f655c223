"""Engines for tests that need one of their own."""

from __future__ import annotations

import atexit
import random
import subprocess
import sys
import threading
import zlib
from functools import reduce

from muro.engine.interface import Report, StepResult, TakeAborts
from muro.engines.echo import EchoEngine
from muro.testing.faulty import FaultyEngine, FaultyOptions
from muro.wire.arrays import Tensor
from muro.wire.output import Logprobs


class HangsInCleanUp(EchoEngine):
    """Fails while its cache is made, and never gets through its clean-up."""

    def __init__(self) -> None:
        super().__init__()
        atexit.register(threading.Event().wait)
        raise RuntimeError("no block fits into 0 bytes")


class WithWorker(FaultyEngine):
    """Has a process of its own, as engines of several devices do."""

    def __init__(self, options: FaultyOptions, report: Report) -> None:
        self._worker = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        super().__init__(options, report)

    def shutdown(self) -> None:
        super().shutdown()
        self._worker.kill()
        self._worker.wait()


class Checksummed(EchoEngine):
    """Adds to each token a body of 1 KiB to 1 MiB and small tensors behind it, with their checksums."""

    def __init__(self) -> None:
        super().__init__()
        self._choose = random.Random(42)
        self._noise = self._choose.randbytes(2 << 20)

    def step(self, take_aborts: TakeAborts) -> StepResult:
        result = super().step(take_aborts)
        for output in result.outputs:
            size = int(2 ** self._choose.uniform(10, 20))
            start = self._choose.randrange(len(self._noise) - size)
            body = self._noise[start : start + size]
            ids = Tensor("int32", [1, 128], self._choose.randbytes(512))  # large enough for a frame of its own
            rank = self._choose.randrange(1, 1 << 31).to_bytes(4, "little")
            ranks = Tensor("int32", [1], rank)  # small enough to lie inline
            output.new_logprobs = Logprobs(ids, Tensor("float32", [1, 128], bytes(512)), ranks)
            output.kv_transfer_params = {"body": body, "checksum": checksum(body, ids.data, ranks.data)}
        return result


def checksum(*parts: bytes) -> int:
    """One number for all parts."""
    return reduce(lambda so_far, part: zlib.crc32(part, so_far), parts, 0)
