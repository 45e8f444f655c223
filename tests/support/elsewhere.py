"""Engines and front-ends that are started apart from each other, as on two machines."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from muro.config import EngineConfig
from tests.support.programs import ROOT, environment

PORT_HOST = "127.0.0.1"

_ENGINE = """
import json, sys, logging
import msgspec
from muro.config import EngineConfig
from muro.process.main import run_headless
logging.basicConfig(level="WARNING", stream=sys.stderr, format="%(message)s")
sys.exit(run_headless(msgspec.json.decode(sys.stdin.buffer.read(), type=EngineConfig)))
"""

_FRONT_END = """
import json, sys
from muro import EngineDeadError, connect
from tests.support.asking import FOREVER, ask
where = dict(host=sys.argv[1], handshake_port=int(sys.argv[2]), num_engines=1, num_local_engines=0, startup_timeout=30)
with connect(**where, **json.loads(sys.argv[3])) as client:
    streams = [client.generate(ask(f"s{n}", FOREVER, [n + 1])) for n in range(3)]
    for stream in streams:
        next(stream)
    print("serving", flush=True)
    if sys.argv[4] == "until lost":
        try:
            list(streams[0])
        except EngineDeadError as error:
            print(error.message, flush=True)
    sys.stdin.readline()
    print(client.call("num_live"), flush=True)
"""


def free_port(host: str = PORT_HOST) -> int:
    """A port at which nobody listens, outside the range from which outgoing connections get theirs.

    Inside it somebody else's connection may take it meanwhile; and who dials it on loopback again and again, while
    nobody listens, may at last be connected with itself.
    """
    while True:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            try:
                probe.bind((host, random.randint(10_000, 30_000)))
            except OSError:
                continue
            return int(probe.getsockname()[1])


@contextlib.contextmanager
def engine_elsewhere(
    address: str, engine: str = "faulty", *, prefix: tuple[str, ...] = (), **settings: Any
) -> Iterator["subprocess.Popen[str]"]:
    """An engine that dials in; its log is in `stderr`. It is killed if it still runs at the end."""
    options = settings.pop("options", {"step_ms": 1})
    config = EngineConfig(
        engine=engine, options=options, local=False, headless=True, handshake_address=address, **settings
    )
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", _ENGINE],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stderr is not None
    try:
        process.stdin.write(msgspec.json.encode(config).decode())
        process.stdin.close()
        yield process
    finally:
        _end(process)


@contextlib.contextmanager
def front_end_elsewhere(
    host: str, port: int, *, prefix: tuple[str, ...] = (), until_lost: bool = False, **settings: Any
) -> Iterator["subprocess.Popen[str]"]:
    """A front-end with three streams that never end; says "serving" when they run, and at a line of input ends.

    With `until_lost` it says meanwhile how a stream has failed.
    """
    mode = "until lost" if until_lost else ""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", _FRONT_END, host, str(port), json.dumps(settings), mode],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        _end(process)


def _end(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
