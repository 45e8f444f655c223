"""FC-08: junk on internal sockets costs nobody else anything: no thread, no memory, no token of a stream."""

import ctypes
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from muro import SyncMPClient, connect
from muro.config import RestartPolicy
from muro.errors import RequestFailedError
from muro.transport.endpoint import parse_address
from muro.transport.sockets import bound_address, close, connect_dealer, connect_push, send_nowait
from tests.support.asking import FOREVER, ask
from tests.support.counts import FULL, count
from tests.support.deadline import until
from tests.support.elsewhere import PORT_HOST, engine_elsewhere, free_port
from tests.support.rawpeer import IDENTITY, RawClient, pack, raw_peer
from tests.support.strangers import mutated, request_templates, strangers

pytestmark = pytest.mark.cases

FRAMES = count(20_000, 1_000_000)
FLAT_MB = 24
"""By so much the memory of a process may differ, whatever number of messages came."""
PROMPT = [5, 6, 7]


def rss_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def flat(*pids: int) -> Iterator[None]:
    """The memory of these processes is afterwards what it was."""
    before = {pid: rss_mb(pid) for pid in pids}
    yield
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)  # what a queue of junk has left free in here is not held by anybody
    after = {pid: rss_mb(pid) for pid in pids}
    assert all(after[pid] - before[pid] < FLAT_MB for pid in pids), f"{before} MB before, {after} MB after"


@pytest.fixture
def client() -> Iterator[SyncMPClient]:
    """Over TCP, where strangers can be."""
    with connect(engine="faulty", host="127.0.0.1", options={"step_ms": 1}) as client:
        yield client


def engine_pid(client: SyncMPClient) -> int:
    (status,) = client.engines()
    assert status.pid is not None
    return status.pid


def addresses(client: SyncMPClient) -> dict[str, tuple[str, str]]:
    """The sockets that engines dial: who would send to each, and where it was bound."""
    doors = client._link._doors
    return {
        "handshake": ("router", doors.handshake_address),
        "inputs": ("router", bound_address(doors.inputs)),
        "outputs": ("pull", bound_address(doors.outputs)),
    }


def stream_exactly(client: SyncMPClient, request_id: str, tokens: int) -> None:
    got = [token for output in client.generate(ask(request_id, tokens, PROMPT)) for token in output.new_token_ids]
    assert got == [PROMPT[place % 3] for place in range(tokens)]


def read_all_junk(client: SyncMPClient) -> None:
    """A client reads while somebody waits, so what strangers have sent faster is still queued when they end."""
    dropped = -1
    while client._link.dropped_messages > dropped:
        dropped = client._link.dropped_messages
        stream_exactly(client, "late", 200)


def stream_beside(client: SyncMPClient, stranger: "subprocess.Popen[bytes]") -> None:
    """Requests come out exactly as long as the stranger talks, and it gets to its end."""
    try:
        rounds = 0
        while stranger.poll() is None or rounds < 2:
            stream_exactly(client, f"stream-{rounds}", 300)
            rounds += 1
        assert stranger.returncode == 0
    finally:
        stranger.kill()
        stranger.wait()


def nobody_listens(address: str) -> bool:
    where = parse_address(address)
    try:
        socket.create_connection((where.host, where.port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


@contextmanager
def hung_up_on(client: SyncMPClient) -> Iterator[None]:
    """The connections of strangers who have gone are closed here, too."""

    def descriptors() -> int:
        client.check_health()
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    yield
    until(lambda: descriptors() <= before, what="no descriptor of a stranger is left")


@pytest.mark.timeout(1200 if FULL else 60)
@pytest.mark.parametrize("door", ["inputs", "outputs"])
def test_fc08_mutated_frames_at_every_listening_socket(client: SyncMPClient, door: str) -> None:
    stream_exactly(client, "warm", 200)
    assert nobody_listens(addresses(client)["handshake"][1])
    kind, address = addresses(client)[door]
    with flat(os.getpid(), engine_pid(client)):
        stream_beside(client, strangers(kind, address, FRAMES))
        if door == "outputs":
            read_all_junk(client)
            assert client._link.dropped_messages > FRAMES / 4
    stream_exactly(client, "after", 200)
    client.check_health()
    assert client.call("num_live") == 0


@pytest.mark.parametrize("door", ["inputs", "outputs"])
def test_strangers_who_have_gone_leave_no_descriptor(client: SyncMPClient, door: str) -> None:
    """Nobody receives at the one, but whether all is well is asked now and then."""
    stream_exactly(client, "warm", 200)
    kind, address = addresses(client)[door]
    with hung_up_on(client):
        for number in range(20):
            stranger = connect_push(address) if kind == "pull" else connect_dealer(address, b"stranger %d" % number)
            for _ in range(20):
                assert send_nowait(stranger, [b"x"])
            close(stranger, 200)
        if door == "outputs":
            read_all_junk(client)


@pytest.mark.timeout(1200 if FULL else 60)
@pytest.mark.parametrize("door", ["handshake", "inputs", "outputs"])
def test_fc08_where_the_engine_is_elsewhere(door: str) -> None:
    """Its front-end goes on reading the handshake socket: a successor may greet there."""
    port = free_port()
    where = {"host": PORT_HOST, "handshake_port": port, "num_local_engines": 0}
    with (
        engine_elsewhere(f"tcp://{PORT_HOST}:{port}") as engine,
        connect(**where, restart=RestartPolicy(policy="on-failure")) as client,
    ):
        stream_exactly(client, "warm", 200)
        kind, address = addresses(client)[door]
        with flat(os.getpid(), engine.pid):
            stream_beside(client, strangers(kind, address, FRAMES // 4))
            if door == "outputs":
                read_all_junk(client)
        stream_exactly(client, "after", 200)
        assert client.call("num_live") == 0 and client.engines()[0].generation == 0


@pytest.mark.timeout(1200 if FULL else 60)
def test_fc08_mutated_frames_from_a_front_end() -> None:
    """The engine listens nowhere, but dials front-ends that may be broken; whoever can be told is told."""
    with raw_peer("faulty", step_ms=1) as peer:
        (client,) = peer.clients
        client.add(ask("stream", FOREVER, PROMPT))
        client.read_until(lambda: client.tokens.get("stream"))
        messages = mutated(request_templates(), seed=2)
        drop_junk(client)
        with flat(peer.child.pid):
            for number in range(FRAMES):
                send_raw(client, next(messages))
                if number % 500 == 0:
                    client.call("num_live")  # an engine that is behind is waited for
                    client.answers.clear()
            assert client.call("num_live").failure_message is None
        assert peer.child.progress().dropped_frames > FRAMES / 20
        assert "stream" not in client.ended
        assert client.tokens["stream"] == [PROMPT[n % 3] for n in range(len(client.tokens["stream"]))]


def drop_junk(client: RawClient) -> None:
    """Keep nothing of what is said about requests that came out of junk: they may well use an id twice."""

    def read(message: object) -> None:
        message.outputs = [o for o in message.outputs if o.request_id == "stream"]  # type: ignore[attr-defined]
        RawClient._read(client, message)  # type: ignore[arg-type]

    client._read = read  # type: ignore[method-assign, assignment]


def send_raw(client: RawClient, frames: list[bytes]) -> None:
    if frames:
        client.send(*frames)


@pytest.mark.parametrize("door", ["inputs", "handshake"])
def test_a_stranger_who_calls_itself_engine_0_changes_nothing(door: str) -> None:
    port = free_port()
    where = {"host": PORT_HOST, "handshake_port": port, "num_local_engines": 0}
    with (
        engine_elsewhere(f"tcp://{PORT_HOST}:{port}"),
        connect(**where, restart=RestartPolicy(policy="on-failure")) as client,
    ):
        stream = client.generate(ask("stream", FOREVER, PROMPT))
        next(stream)
        stranger = connect_dealer(addresses(client)[door][1], IDENTITY, linger_ms=200)
        for _ in range(100):
            assert send_nowait(stranger, [b"me"])
        for _ in range(20):
            assert client.call("num_live", timeout=10) == 1
        assert not stranger.poll(0), "it hears what is meant for the engine"
        close(stranger)
        assert [next(stream).finish_reason for _ in range(20)] == [None] * 20
        stream.close()


def test_what_a_client_does_not_read_stays_with_its_sender(client: SyncMPClient) -> None:
    """A client reads while somebody waits; until then a million messages cost it next to nothing."""
    total = count(50_000, 1_000_000)
    stream_exactly(client, "warm", 200)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    taken = 0
    with flat(os.getpid(), engine_pid(client)):
        stranger = context.socket(zmq.PUSH)
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.setsockopt(zmq.SNDHWM, 100)
        stranger.connect(addresses(client)["outputs"][1])
        assert stranger.poll(5000, zmq.POLLOUT)
        for _ in range(total):
            try:
                stranger.send(b"x" * 100, zmq.NOBLOCK)
                taken += 1
            except zmq.Again:
                pass
        read_all_junk(client)
        stranger.close()
    context.term()
    assert 0 < taken < total / 5 or not FULL, f"{taken} of {total} messages were taken"


def test_an_engine_is_told_that_its_words_are_lost(client: SyncMPClient) -> None:
    """It would compute for ever what nobody can read."""
    stream = client.generate(ask("lost", FOREVER))
    next(stream)
    (wire_id,) = client._session._live
    door = connect_push(bound_address(client._link.outputs))
    assert send_nowait(door, [pack([0, [[wire_id, "no list of tokens"]], None, 0.0])])
    close(door)
    with pytest.raises(RequestFailedError, match="cannot be read"):
        list(stream)
    until(lambda: client.call("num_live") == 0)


def test_junk_while_the_engines_start() -> None:
    """What strangers say meanwhile is refused, and the start goes on."""
    port = free_port()
    stranger: subprocess.Popen[bytes] | None = None

    def on_progress(news: object) -> None:
        nonlocal stranger
        if stranger is None:
            stranger = strangers("visitor", f"tcp://127.0.0.1:{port}", 3000)

    try:
        options = {"step_ms": 1, "fault": "loading:sleep=0.5"}
        with connect(
            engine="faulty", host="127.0.0.1", handshake_port=port, options=options, on_progress=on_progress
        ) as client:
            assert stranger is not None
            stream_exactly(client, "first", 100)
    finally:
        assert stranger is not None
        stranger.kill()
        stranger.wait()
