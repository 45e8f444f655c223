"""FC-54 and trust between machines: where internal sockets listen, who may dial, where secrets are not."""

import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from muro import EngineDeadError, connect
from muro.config import CurveKeys, RestartPolicy
from muro.errors import ConfigError, StartupError
from muro.transport.endpoint import tcp_endpoint
from muro.transport.keys import engine_keys, make_keys, own_pair
from muro.transport.sockets import bound_address, close, connect_dealer, connect_push, send_nowait
from muro.wire.failure import ExitCode
from tests.support.asking import FOREVER, ask
from tests.support.elsewhere import PORT_HOST, engine_elsewhere, free_port, front_end_elsewhere
from tests.support.networks import two_machines
from tests.support.programs import ROOT, environment, line
from tests.support.server import Server

pytestmark = pytest.mark.cases


class Keys:
    """Keys of a front-end and an engine that know each other."""

    def __init__(self, root: Path) -> None:
        self.front, self.engine = str(root / "front"), str(root / "engine")
        for one in (self.front, self.engine):
            make_keys(one)
        shutil.copy(f"{self.engine}/muro.key", f"{self.front}/peers/engine.key")
        shutil.copy(f"{self.front}/muro.key", f"{self.engine}/peers/front-end.key")

    @property
    def dialling(self) -> CurveKeys:
        return engine_keys(self.engine)

    @property
    def secrets(self) -> list[bytes]:
        return [own_pair(one)[1].encode() for one in (self.front, self.engine)]


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


def own_address() -> str | None:
    """An address of this machine that others can reach, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # sends nothing
        except OSError:
            return None
        return str(probe.getsockname()[0])


def listening(*pids: int) -> set[tuple[str, int]]:
    """Addresses and ports on which these processes listen."""
    inodes = set()
    for pid in pids:
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(f"/proc/{pid}/fd/{number}"))
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = row.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                host, _, port = fields[1].partition(":")
                words = [bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8)]
                found.add((socket.inet_ntop(family, b"".join(words)), int(port, 16)))
    return found


# Where they listen


def test_fc54_on_one_machine_nothing_listens() -> None:
    before = listening(os.getpid())
    with connect(engine="echo", num_engines=2) as client:
        pids = [status.pid for status in client.engines() if status.pid]
        assert listening(os.getpid(), *pids) == before and len(pids) == 2
        directory = Path(bound_address(client._link.outputs).removeprefix("ipc://")).parent
        assert directory.stat().st_mode & 0o777 == 0o700 and directory.stat().st_uid == os.geteuid()


def test_fc54_a_server_listens_where_http_does() -> None:
    with Server("--engine", "echo") as server:
        server.ready()
        port = int(server.url.rpartition(":")[2])
        assert listening(server.process.pid, server.engine_pid) == {("127.0.0.1", port)}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "own"])
def test_fc54_for_engines_elsewhere_exactly_where_it_was_told(host: str) -> None:
    host = own_address() or "127.0.0.1" if host == "own" else host
    port = free_port(host)
    before = listening(os.getpid())
    with (
        engine_elsewhere(tcp_endpoint(host, port), insecure_tcp=True, rank=1) as engine,
        connect(
            engine="faulty",
            num_engines=2,
            num_local_engines=1,
            host=host,
            handshake_port=port,
            insecure_tcp=True,
            startup_timeout=30,
            restart=RestartPolicy(policy="on-failure"),
        ) as client,
    ):
        found = listening(os.getpid()) - before
        assert {address for address, _ in found} == {host} and (host, port) in found and len(found) == 3
        assert listening(*(status.pid for status in client.engines() if status.pid), engine.pid) == set()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "*", ""])
def test_fc54_a_wildcard_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="every interface"):
        connect(engine="echo", host=host, insecure_tcp=True)


# In the clear


def test_others_are_not_talked_to_in_the_clear_unless_that_is_wanted() -> None:
    for host in ("192.0.2.200", "fd00::99"):
        with pytest.raises(ConfigError, match=r"muro keys new.*--curve-dir.*--insecure-tcp"):
            connect(engine="echo", host=host)
        with engine_elsewhere(tcp_endpoint(host, 29550)) as engine:
            assert engine.wait(20) == ExitCode.CONFIG
            assert engine.stderr is not None and "--insecure-tcp" in engine.stderr.read()


def test_when_it_is_wanted_it_warns(caplog: pytest.LogCaptureFixture) -> None:
    if (host := own_address()) is None:
        pytest.skip("this machine has no address but its own loopback")
    with caplog.at_level(logging.WARNING), connect(engine="echo", host=host, insecure_tcp=True) as client:
        assert [t for o in client.generate(ask("a")) for t in o.new_token_ids] == [7, 8, 9]
    assert "is in the clear (--insecure-tcp)" in caplog.text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"curve_dir": "/nowhere"}, "all are started here"),
        ({"insecure_tcp": True}, "--data-parallel-size-local"),
        ({"host": "127.0.0.1", "curve_dir": "/nowhere"}, "muro keys new /nowhere"),
        ({"host": "127.0.0.1", "curve_dir": "/nowhere", "insecure_tcp": True}, "exclude each other"),
        ({"host": "127.0.0.1", "curve_secret_fd": 9}, "curve_dir says"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        connect(engine="echo", **settings)


# With keys


def test_engines_here_and_elsewhere_talk_with_keys(keys: Keys) -> None:
    """Those that are started here get keys of their own, which never touch a file, a command line or an environment."""
    port = free_port()
    elsewhere = engine_elsewhere(f"tcp://{PORT_HOST}:{port}", curve=keys.dialling, rank=1)
    with (
        elsewhere as engine,
        connect(
            engine="faulty",
            options={"step_ms": 1},
            num_engines=2,
            num_local_engines=1,
            host=PORT_HOST,
            handshake_port=port,
            curve_dir=keys.front,
            startup_timeout=30,
        ) as client,
    ):
        for rank in range(2):
            request = ask(f"r{rank}")
            request.data_parallel_rank = rank
            assert [t for o in client.generate(request) for t in o.new_token_ids] == [7, 8, 9]
        here = client.engines()[0].pid
        made = client._link._doors.engine_keys
        assert here is not None and made is not None
        secrets = [*keys.secrets, made.secret.encode()]
        for pid in (here, engine.pid, os.getpid()):
            said = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
            assert not any(secret in said for secret in secrets)


def test_successors_of_engines_that_were_started_here_have_keys_too(keys: Keys) -> None:
    restart = RestartPolicy(policy="on-failure")
    with connect(engine="faulty", host=PORT_HOST, curve_dir=keys.front, restart=restart) as client:
        for generation in range(2):
            [status] = client.engines()
            assert status.generation == generation and status.pid is not None
            assert [t for o in client.generate(ask("a")) for t in o.new_token_ids] == [7, 8, 9]
            os.kill(status.pid, signal.SIGKILL)
            with pytest.raises(EngineDeadError):
                list(client.generate(ask("b", FOREVER)))
            client.wait_serving(timeout=20)


def test_strangers_do_not_get_in(keys: Keys) -> None:
    """Without keys, or with keys that are not on the list, nothing reaches any of the sockets."""
    port = free_port()
    with (
        engine_elsewhere(f"tcp://{PORT_HOST}:{port}", curve=keys.dialling),
        connect(
            num_local_engines=0, host=PORT_HOST, handshake_port=port, curve_dir=keys.front, startup_timeout=30
        ) as client,
    ):
        stream = client.generate(ask("a", FOREVER))
        next(stream)
        doors = client._link._doors
        dealers = [
            connect_dealer(address, b"\0\0", linger_ms=0)
            for address in (bound_address(doors.inputs), doors.handshake_address)
        ]
        push = connect_push(bound_address(doors.outputs), linger_ms=0)
        for stranger in (*dealers, push):
            for _ in range(100):
                send_nowait(stranger, [b"ENGINE_CORE_DEAD"])
        for _ in range(300):
            next(stream)
        assert client._link.dropped_messages == 0
        client.check_health()
        for stranger in (*dealers, push):
            close(stranger)
        stream.close()


def test_an_engine_that_is_not_on_the_list_hears_why(keys: Keys) -> None:
    os.unlink(f"{keys.front}/peers/engine.key")
    port = free_port()
    where = {"host": PORT_HOST, "handshake_port": port, "curve_dir": keys.front}
    settings = {"curve": keys.dialling, "handshake_timeout": 3.0}
    with engine_elsewhere(f"tcp://{PORT_HOST}:{port}", **settings) as engine:
        with pytest.raises(StartupError):
            connect(num_local_engines=0, startup_timeout=5, **where)
        assert engine.wait(10) == ExitCode.STARTUP_FAILED
        assert engine.stderr is not None and "it refuses the key of this machine" in engine.stderr.read()


def test_from_the_command_line(keys: Keys, tmp_path: Path) -> None:
    """As its output says: keys on both sides, public ones copied, then serve; the secret of one by descriptor."""
    done = subprocess.run(
        [sys.executable, "-m", "muro", "keys", "new", str(tmp_path / "third")],
        capture_output=True,
        text=True,
        env=environment(),
        cwd=ROOT,
        check=True,
    )
    assert "peers" in done.stdout and "--curve-dir" in done.stdout and "scp" in done.stdout
    port = free_port()
    serve = [sys.executable, "-m", "muro", "serve", "--engine", "echo", "--headless", "-dpp", str(port)]
    secret = os.open(f"{keys.engine}/muro.key_secret", os.O_RDONLY)
    moved = f"{keys.engine}/muro.key_secret"
    os.unlink(moved)
    try:
        engine = subprocess.Popen(
            [*serve, "--curve-dir", keys.engine, "--curve-secret-fd", str(secret)],
            pass_fds=(secret,),
            env=environment(),
            cwd=ROOT,
        )
    finally:
        os.close(secret)
    try:
        where = ("-dp", "1", "-dpl", "0", "-dpp", str(port), "--curve-dir", keys.front)
        with Server("--engine", "echo", *where) as server:
            assert server.ready().status() == 200 and engine.poll() is None
        assert engine.wait(10) == ExitCode.LOST_PARENT
    finally:
        engine.kill()
        engine.wait()


# A cut


def test_a_cut_is_noticed_on_both_sides(keys: Keys) -> None:
    """Two machines, with keys, and a cable that is cut: nothing says that the other one has gone."""
    with two_machines() as machines:
        if machines is None:
            pytest.skip("network namespaces cannot be made here; root may")
        left, right = machines.left, machines.right
        address = tcp_endpoint(left.address, 29550)
        with (
            front_end_elsewhere(
                left.address, 29550, prefix=left.prefix, until_lost=True, curve_dir=keys.front
            ) as front,
            engine_elsewhere(address, prefix=right.prefix, curve=keys.dialling) as engine,
        ):
            assert line(front) == "serving"
            machines.cut()
            began = time.monotonic()
            assert engine.wait(8) == ExitCode.LOST_PARENT
            ended = time.monotonic() - began
            assert "its connection has ended" in line(front)
            print(f"\ncable cut: engine ended after {ended:.2f} s, caller told after {time.monotonic() - began:.2f} s")
