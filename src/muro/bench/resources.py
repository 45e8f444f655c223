"""What muro costs besides time per token: import, start, memory, and CPU while nobody asks for anything.

Each figure comes from a fresh interpreter, so that nothing which the benchmark itself has loaded counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from muro.bench.streams import process_clock
from muro.errors import InternalError

_IMPORT = """
import sys, time
sys.dont_write_bytecode = False  # installed packages come with theirs; ours shall have it, too
start = time.perf_counter()
{statement}
print((time.perf_counter() - start) * 1000)
"""
_BASE = "import zmq, msgspec, asyncio"
_OURS = "import muro; muro.AsyncMPClient"

_CLIENT = """
import json, os, sys, time
import muro
start = time.perf_counter()
with muro.connect(engine="echo") as client:
    took = time.perf_counter() - start
    print(json.dumps([took, os.getpid(), client.engines()[0].pid]), flush=True)
    sys.stdin.readline()
"""
_TIMEOUT = 60.0


class Resident(msgspec.Struct):
    """One client and its engine: start in seconds, resident MB, per cent of a core while idle."""

    startup_s: float
    rss_mb: dict[str, float]
    idle_cpu_percent: dict[str, float]


def import_ms(*, base: bool) -> float:
    """Milliseconds that a fresh interpreter needs for the import (base: of what we stand on)."""
    program = _IMPORT.format(statement=_BASE if base else _OURS)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=_TIMEOUT, check=True)
    return float(done.stdout)


def observe_resident(idle_seconds: float) -> Resident:
    """Start a client with an echo engine, and watch both for `idle_seconds` while nothing happens."""
    command = [sys.executable, "-c", _CLIENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdin is None or process.stdout is None:
                raise InternalError("a pipe was asked for and did not come")
            startup, client, engine = json.loads(process.stdout.readline())
            pids = {"client": client, "engine": engine}
            time.sleep(0.5)  # what the start has left to do shall not count as idling
            before = {name: time.clock_gettime(process_clock(pid)) for name, pid in pids.items()}
            time.sleep(idle_seconds)
            idle = {
                name: round((time.clock_gettime(process_clock(pid)) - before[name]) / idle_seconds * 100, 3)
                for name, pid in pids.items()
            }
            memory = {name: round(resident_mb(pid), 1) for name, pid in pids.items()}
            process.stdin.write("\n")
            process.stdin.flush()
            process.wait(_TIMEOUT)
        except BaseException:
            process.kill()
            raise
    return Resident(startup, memory, idle)


def resident_mb(pid: int) -> float:
    """Resident memory of a process in MB (10**6 bytes)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise InternalError(f"process {pid} has no resident memory: it has ended")
