"""pyzmq's own collector thread starts with the first tracked frame and stays: let it be there from the beginning."""

import pytest
import zmq

from muro.transport.sockets import bind_pull, bound_address, connect_push


@pytest.fixture(scope="session", autouse=True)
def collector_thread_is_there() -> None:
    pull = bind_pull("tcp://127.0.0.1:0")
    push = connect_push(bound_address(pull), linger_ms=0)
    tracker = push.send(zmq.Frame(b"first", track=True, copy=False), copy=False, track=True)
    assert pull.recv() == b"first"
    tracker.wait(5)
    push.close()
    pull.close()
