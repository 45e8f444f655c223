"""The interpreter ends promptly whatever is left open, queued or waiting; what was flushed arrives."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from muro.transport.sockets import bind_pull, close
from tests.support.counts import count

PREPARE = """
import os, sys, threading
from muro.transport.inflight import BufferPool, InFlight
from muro.transport.pump import Pump
from muro.transport.context import flush
from muro.transport.sockets import bind_pull, bind_router, close, connect_dealer, connect_push, send_nowait
address = sys.argv[1]
"""

QUEUED = """
push = connect_push(address, linger_ms=-1)
for _ in range(1000):
    send_nowait(push, [b"x" * 1000])
"""

ENDINGS = {
    "messages queued to nobody": QUEUED,
    "the same, socket closed": QUEUED + "close(push)",
    "large frames in flight": """
push = connect_push(address, linger_ms=-1)
in_flight = InFlight(1 << 30, BufferPool(2))
for _ in range(10):
    in_flight.send(push, [bytes(1 << 20)])
""",
    "a pending poll": """
pull = bind_pull(address)
pump = Pump()
pump.add(pull, lambda: None)
threading.Thread(target=pump.poll, daemon=True).start()
""",
    "an exception with sockets open": QUEUED + "raise SystemExit(0)",
    "an exit from another thread": QUEUED
    + """
close(push)
thread = threading.Thread(target=lambda: os._exit(0) if not flush(0.5) else os._exit(1))
thread.start()
thread.join()
""",
    "a flush that gives up": QUEUED + "close(push); assert not flush(0.2)",
    "a flush with a socket left open": QUEUED + "assert not flush(0.2)",
    "a fork that ends first": QUEUED
    + """
child = os.fork()
if child == 0:
    own = connect_push(address, linger_ms=0)
    send_nowait(own, [b"x"])
    close(own)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
close(push, 0)
""",
}


def run(program: str, address: str) -> float:
    """Seconds from the end of the program's last line to the end of its process."""
    script = PREPARE + program
    if "SystemExit" not in program:
        script += "\nos.write(1, b'done')\n"
    else:
        script = script.replace("raise SystemExit", "os.write(1, b'done'); raise SystemExit")
    with subprocess.Popen([sys.executable, "-c", script, address], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        said = os.read(child.stdout.fileno(), 100)
        start = time.monotonic()
        try:
            status = child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            raise
        took = time.monotonic() - start
    assert (said, status) == (b"done" if "os._exit" not in program else b"", 0)
    return took


@pytest.mark.cases
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ending", ENDINGS)
def test_fc32_the_interpreter_exits(ending: str, tmp_path: Path) -> None:
    for _ in range(count(1, 25)):
        address = f"ipc://{tmp_path}/socket"
        assert run(ENDINGS[ending], address) < 2
        (tmp_path / "socket").unlink(missing_ok=True)


def test_last_words_arrive_although_the_process_ends_at_once(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/socket"
    pull = bind_pull(address)
    program = """
push = connect_push(address)
for number in range(1000):
    send_nowait(push, [b"%d" % number])
close(push)
assert flush(5)
"""
    run(program, address)
    assert [pull.recv() for _ in range(1000)] == [b"%d" % number for number in range(1000)]
    close(pull)
