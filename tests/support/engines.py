"""Engines for tests that need one of their own."""

from __future__ import annotations

import atexit
import gc
import logging
import multiprocessing
import os
import random
import subprocess
import sys
import threading
import time
import weakref
import zlib
from functools import reduce
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import msgspec

from muro.engine.interface import Report, StepResult, TakeAborts, operation
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


class WithFamily(FaultyEngine):
    """Has one worker in its group, one in a session of its own, and an orphan in another one."""

    def __init__(self, options: FaultyOptions, report: Report) -> None:
        sleeper = ["sleep", "3601"]
        self._workers = [subprocess.Popen(sleeper), subprocess.Popen(sleeper, start_new_session=True)]
        again = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True)"
        subprocess.run([sys.executable, "-S", "-c", again, *sleeper], check=True)
        super().__init__(options, report)


class WithSharedMemory(FaultyEngine):
    """Has shared memory and a semaphore of Python's own, which nothing but Python's resource tracker removes."""

    def __init__(self, options: FaultyOptions, report: Report) -> None:
        self._memory = SharedMemory(create=True, size=1 << 20)
        self._semaphore = multiprocessing.get_context("spawn").Semaphore()
        super().__init__(options, report)

    def shutdown(self) -> None:
        self._memory.close()
        self._memory.unlink()


class TidiesUp(WithFamily):
    """Takes two seconds to clean up, and notes in the file $MURO_TEST_TIDY when it begins and when it is done."""

    def shutdown(self) -> None:
        notes = Path(os.environ["MURO_TEST_TIDY"])
        notes.write_text("begun")
        threading.Event().wait(2)
        notes.write_text("done")


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


class Littering(EchoEngine):
    """Keeps a million objects that the collector knows, and makes garbage in cycles with every step."""

    def __init__(self, options: LitteringOptions) -> None:
        super().__init__()
        self._options = options
        self._kept = [[number] for number in range(options.kept)]
        self._alive: weakref.WeakSet[Cycle] = weakref.WeakSet()
        self._made = 0
        self._began = 0.0
        self._pauses: list[tuple[int, float]] = []
        gc.callbacks.append(self._observe)

    def step(self, take_aborts: TakeAborts) -> StepResult:
        for _ in range(self._options.cycles):
            self._made += 1
            cycle = Cycle()
            if self._made % 1000 == 0:
                self._alive.add(cycle)
        return super().step(take_aborts)

    def shutdown(self) -> None:
        gc.callbacks.remove(self._observe)

    @operation
    def pauses(self) -> list[tuple[int, float]]:
        """Collections so far: generation and seconds of processor time, to which a busy machine adds nothing."""
        return self._pauses

    @operation
    def collect(self) -> None:
        """Look through all generations, as the collector may do at any time."""
        gc.collect()

    @operation
    def cycles(self) -> tuple[int, int]:
        """Cycles made, and how many of every thousandth of them are not reclaimed yet."""
        return self._made, len(self._alive)

    def _observe(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time()
        else:
            self._pauses.append((info["generation"], time.thread_time() - self._began))


class LitteringOptions(msgspec.Struct, frozen=True):
    """`kept`: long-lived objects. `cycles`: made by each step, two objects each."""

    kept: int = 1_000_000
    cycles: int = 500


class Cycle:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = [self]


class Talkative(EchoEngine):
    """Logs what it is told to, as libraries do: `say`; or so many records with each step: `flood`."""

    def __init__(self) -> None:
        super().__init__()
        logging.getLogger("third.party").warning("a warning while it loads")
        self._flood = 0

    @operation
    def say(self, name: str, level: int, text: str, error: bool = False) -> None:
        try:
            if error:
                raise ValueError("the cause")
            logging.getLogger(name).log(level, text)
        except ValueError:
            logging.getLogger(name).log(level, text, exc_info=True)

    @operation
    def flood(self, records: int) -> None:
        self._flood = records

    def step(self, take_aborts: TakeAborts) -> StepResult:
        for number in range(self._flood):
            logging.getLogger("third.party").warning("record %d %s", number, "x" * 500)
        return super().step(take_aborts)


class Surveyor(EchoEngine):
    """Tells of its surroundings, after it has made a BLAS library start its threads."""

    def __init__(self) -> None:
        super().__init__()
        before = len(os.listdir("/proc/self/task"))
        import numpy as np

        np.ones((600, 600)) @ np.ones((600, 600))
        self._blas_threads = len(os.listdir("/proc/self/task")) - before

    @operation
    def survey(self) -> dict[str, str]:
        return {**os.environ, "blas threads": str(self._blas_threads)}
