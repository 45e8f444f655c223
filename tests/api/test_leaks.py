"""The leak check sees each kind of thing that a test can leave behind."""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import zmq

from muro.transport.context import context, flush
from tests.support.deadline import process_ended, until
from tests.support.leaks import Belongings, left_behind


@contextmanager
def a_thread() -> Iterator[str]:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="forgotten")
    thread.start()
    yield "thread 'forgotten'"
    stop.set()
    thread.join()


@contextmanager
def a_descriptor() -> Iterator[str]:
    reader, writer = os.pipe()
    yield f"descriptor {reader} -> pipe"
    os.close(reader)
    os.close(writer)


@contextmanager
def a_zmq_socket() -> Iterator[str]:
    socket = context().socket(zmq.PAIR)
    yield "descriptor "
    socket.close()


@contextmanager
def a_file() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="muro-") as directory:
        yield f"file {directory}"


@contextmanager
def shared_memory() -> Iterator[str]:
    path = Path(f"/dev/shm/muro-test-{os.getpid()}")
    path.touch()
    yield f"shared memory {path}"
    path.unlink()


@contextmanager
def a_child() -> Iterator[str]:
    with subprocess.Popen(["sleep", "100"]) as child:
        yield f"process {child.pid}: sleep 100"
        process_ended(child.pid)  # the check has killed it


@contextmanager
def an_orphan() -> Iterator[str]:
    program = "import subprocess as s; print(s.Popen(['sleep', '100'], stdout=s.DEVNULL).pid)"
    done = subprocess.run([sys.executable, "-Wignore", "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    yield f"process {done.stdout.strip()}: sleep 100"
    process_ended(int(done.stdout))


@pytest.mark.parametrize("leak", [a_thread, a_descriptor, a_zmq_socket, a_file, shared_memory, a_child, an_orphan])
def test_leak_is_named(leak: Callable[[], AbstractContextManager[str]]) -> None:
    before = Belongings.now(deep=True)
    with leak() as words:
        assert any(left.startswith(words) for left in left_behind(before, deep=True, within=0.05))
    assert left_behind(before, deep=True) == []


def test_what_goes_away_by_itself_is_no_leak() -> None:
    before = Belongings.now(deep=False)
    looked = threading.Event()
    thread = threading.Thread(target=looked.wait)
    thread.start()
    threading.Timer(0.02, looked.set).start()
    assert left_behind(before, deep=False) == []
    thread.join()


def test_a_new_zmq_context_is_no_leak() -> None:
    before = Belongings.now(deep=False)
    assert flush(5.0)
    context().socket(zmq.PAIR).close()
    assert left_behind(before, deep=False) == []


def test_until_returns_the_value_or_says_what_did_not_happen() -> None:
    assert until(lambda: 7) == 7
    with pytest.raises(AssertionError, match=r"not within 0\.01 s: the moon"):
        until(lambda: False, within=0.01, what="the moon")
