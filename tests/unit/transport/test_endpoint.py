import fcntl
import os
import re
import socket
import stat
import tempfile
import threading
from pathlib import Path

import pytest

from muro.errors import ConfigError
from muro.transport import endpoint
from muro.transport.endpoint import (
    PATH_LIMIT,
    Endpoint,
    EndpointDirectory,
    check_clear,
    ipc_endpoint,
    parse_address,
    remove_stale,
    resolve,
    tcp_endpoint,
)
from muro.transport.sockets import bind_pull, close, connect_push, send_nowait
from tests.support.counts import count


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("ipc:///tmp/a b/ä", Endpoint("ipc:///tmp/a b/ä", path="/tmp/a b/ä")),
        ("tcp://127.0.0.1:0", Endpoint("tcp://127.0.0.1:0", host="127.0.0.1", port=0)),
        ("tcp://head.example:29550", Endpoint("tcp://head.example:29550", host="head.example", port=29550)),
        ("tcp://[fd00::1]:5555", Endpoint("tcp://[fd00::1]:5555", host="fd00::1", port=5555)),
        ("tcp://[fe80::1%eth0]:5555", Endpoint("tcp://[fe80::1%eth0]:5555", host="fe80::1%eth0", port=5555)),
    ],
)
def test_addresses_are_taken_apart(address: str, expected: Endpoint) -> None:
    found = parse_address(address)
    assert found == expected
    assert found.is_ipc == address.startswith("ipc")
    assert found.is_ipv6 == ("[" in address)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "ipc://",
        "ipc:///tmp/a\0b",
        "inproc://x",
        "tcp://127.0.0.1",
        "tcp://:5555",
        "tcp://fd00::1:5555",
        "tcp://a[b]:5555",
        "tcp://[]:5555",
        "tcp://host:٣",
        "tcp:/127.0.0.1:5555",
        "tcp://[fd00::1]",
        "tcp://[127.0.0.1]:5555",
        "tcp://[name]:5555",
        "tcp://127.0.0.1:65536",
        "tcp://127.0.0.1:-1",
        "tcp://127.0.0.1:5555/path",
        "tcp://eth0;127.0.0.1:x",
    ],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError):
        parse_address(address)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "tcp://127.0.0.1:7"),
        ("localhost", "tcp://localhost:7"),
        ("::1", "tcp://[::1]:7"),
        ("[fd00::1]", "tcp://[fd00::1]:7"),
    ],
)
def test_hosts_become_addresses(host: str, address: str) -> None:
    assert tcp_endpoint(host, 7) == address


@pytest.mark.cases
@pytest.mark.parametrize("host", ["", "*", "0.0.0.0", "::", "[::]", "::ffff:0.0.0.0"])
def test_fc54_a_wildcard_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match=r"every interface.*127\.0\.0\.1"):
        tcp_endpoint(host)


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_out_of_range_is_refused(port: int) -> None:
    with pytest.raises(ConfigError, match=r"0 \.\.\. 65535"):
        tcp_endpoint("127.0.0.1", port)


@pytest.mark.cases
def test_fc25_a_name_is_resolved_before_binding() -> None:
    found = resolve(parse_address("tcp://localhost:7"))
    assert found in (parse_address("tcp://127.0.0.1:7"), parse_address("tcp://[::1]:7"))
    literal = parse_address("tcp://[::1]:7")
    assert resolve(literal) is literal


def test_a_name_without_an_address_is_named() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.invalid"):
        resolve(parse_address("tcp://nowhere.invalid:7"))


def test_the_directory_is_private_and_goes_away(tmp_path: Path) -> None:
    directory = EndpointDirectory(str(tmp_path))
    assert directory.path == ""
    with directory:
        status = os.stat(directory.path)
        assert stat.S_IMODE(status.st_mode) == 0o700
        assert status.st_uid == os.geteuid()
        made = directory.path
        assert directory.open().path == made
        receiving = bind_pull(ipc_endpoint(directory, "output-0"))
        assert (Path(made) / "output-0").is_socket()
        # left open: as after a crash, the socket's file is still there
        directory.close()
        assert not os.path.exists(made)
        close(receiving)
    directory.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("role", ["", "a/b", "..", "Input", "x" * 21])
def test_a_role_is_one_short_word(tmp_path: Path, role: str) -> None:
    with EndpointDirectory(str(tmp_path)) as directory, pytest.raises(ConfigError, match="role"):
        ipc_endpoint(directory, role)


def test_a_closed_directory_has_no_addresses() -> None:
    with pytest.raises(ConfigError, match="not open"):
        ipc_endpoint(EndpointDirectory(), "input")


@pytest.mark.cases
def test_fc24_a_long_temporary_directory_is_left_for_a_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setenv("MURO_SOCKET_DIR", str(long))
    with EndpointDirectory() as directory:
        assert not directory.path.startswith(str(long))
        assert stat.S_IMODE(os.stat(directory.path).st_mode) == 0o700
        close(bind_pull(ipc_endpoint(directory, "input-65535")))


@pytest.mark.cases
def test_fc24_a_long_directory_that_was_asked_for_is_refused(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    with pytest.raises(ConfigError) as caught:
        EndpointDirectory(str(long)).open()
    for part in (str(PATH_LIMIT), str(long), "MURO_SOCKET_DIR", "/tmp"):
        assert part in str(caught.value)


@pytest.mark.cases
def test_fc24_spaces_and_other_alphabets_work() -> None:
    with tempfile.TemporaryDirectory(prefix="a b ü 墙") as root, EndpointDirectory(root) as directory:
        address = ipc_endpoint(directory, "output")
        receiving = bind_pull(address)
        sending = connect_push(address)
        assert send_nowait(sending, [b"x"])
        assert receiving.recv() == b"x"
        close(sending)
        close(receiving)


@pytest.mark.cases
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "not usable"),
        (lambda path: path.write_text(""), "not a directory"),
        (lambda path: (path.mkdir(), path.chmod(0o777)), "not sticky"),
    ],
)
def test_fc24_an_unusable_directory_is_named(tmp_path: Path, make: object, said: str) -> None:
    root = tmp_path / "root"
    make(root)  # type: ignore[operator]
    with pytest.raises(ConfigError, match=f"{root}.*{said}"):
        EndpointDirectory(str(root)).open()


@pytest.mark.cases
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_fc24_a_read_only_directory_is_named(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir(mode=0o500)
    with pytest.raises(ConfigError, match=f"{root}.*Permission"):
        EndpointDirectory(str(root)).open()


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    root = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    os.mkdir(root)
    with pytest.raises(ConfigError, match="UTF-8"):
        EndpointDirectory(root).open()
    os.rmdir(root)


def test_what_dead_processes_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    dead = tmp_path / "muro-deadbeefdead"
    dead.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(dead / "input"))
    foreign = tmp_path / "muro-keepsake-of-somebody-else"
    foreign.mkdir(mode=0o700)
    open_to_others = tmp_path / "muro-openopenopen"
    open_to_others.mkdir()
    open_to_others.chmod(0o755)
    linked = tmp_path / "muro-linklinklink"
    linked.symlink_to(foreign)
    with_files = tmp_path / "muro-filefilefile"
    with_files.mkdir(mode=0o700)
    (with_files / "notes.txt").write_text("not a socket")
    with EndpointDirectory(str(tmp_path)) as living:
        assert not dead.exists()
        remove_stale(str(tmp_path))
        assert os.path.isdir(living.path)
        assert foreign.is_dir()
        assert open_to_others.is_dir()
        assert linked.is_symlink()
        assert (with_files / "notes.txt").exists()


def test_a_directory_in_use_elsewhere_is_left_alone(tmp_path: Path) -> None:
    used = tmp_path / "muro-inuseinusein"
    used.mkdir(mode=0o700)
    lock = os.open(used, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert remove_stale(str(tmp_path)) == []
    os.close(lock)
    assert remove_stale(str(tmp_path)) == [str(used)]


@pytest.mark.cases
def test_fc23_many_at_once_get_directories_of_their_own(tmp_path: Path) -> None:
    """Each sweeps what looks stale while the others are between making and locking theirs."""
    paths: list[str] = []
    failures: list[BaseException] = []
    rounds = count(10, 200)

    def churn() -> None:
        try:
            for _ in range(rounds):
                with EndpointDirectory(str(tmp_path)) as directory:
                    paths.append(directory.path)
                    close(bind_pull(ipc_endpoint(directory, "input")))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=churn) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(paths) == 8 * rounds
    assert list(tmp_path.iterdir()) == []


def test_a_forked_copy_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = EndpointDirectory(str(tmp_path)).open()
    path = directory.path
    monkeypatch.setattr(endpoint.os, "getpid", lambda: -1)
    directory.close()
    monkeypatch.undo()
    assert os.path.isdir(path)
    assert remove_stale(str(tmp_path)) == [path]


@pytest.mark.parametrize("address", ["tcp://10.1.2.3:0", "tcp://10.1.2.3:29550"])
def test_other_machines_in_the_clear_are_refused_by_their_address(address: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(address.removesuffix(':0'))} is not on this machine only"):
        check_clear(address, False)


def test_who_is_attached_to_a_directory_removes_nothing(tmp_path: Path) -> None:
    with EndpointDirectory(str(tmp_path)) as made:
        attached = EndpointDirectory.attach(made.path)
        assert ipc_endpoint(attached, "role") == ipc_endpoint(made, "role")
        attached.close()
        attached.close()
        assert os.path.isdir(made.path)
    assert not os.path.exists(made.path)
