"""Where sockets live: addresses, and the private directory that holds the ipc ones.

Local engines talk over ipc below a directory that only its owner may enter. An ipc address is a file name
that must fit into 107 bytes, so a long temporary directory is left for a short one. TCP names exactly one
address: a wildcard is refused, because nobody can dial it and everybody can reach it. Ports are not picked
here: bind to port 0 and read the real one back (`sockets.bound_address`).

Each private directory is locked by its process for as long as that lives, whatever ends it; whoever makes the
next one removes those whose lock is gone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import logging
import os
import socket
import stat
from collections.abc import Iterable, Iterator

import msgspec
import zmq

from muro.config import socket_root
from muro.errors import ConfigError

log = logging.getLogger(__name__)

PATH_LIMIT: int = zmq.IPC_PATH_MAX_LEN
"""Longest path of an ipc socket, in bytes: 107 on Linux."""

_PREFIX = "muro-"
_RANDOM_BYTES = 6
_NAME_LENGTH = len(_PREFIX) + 2 * _RANDOM_BYTES
_LONGEST_ROLE = 20
_SHORT_ROOTS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 the directory made below is private
_HOST_ENDS = frozenset("[]:/")
_MAPPED_IPV4 = bytes(10) + b"\xff\xff"  # ::ffff:a.b.c.d
_ROLE_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")


class Endpoint(msgspec.Struct, frozen=True):
    """A parsed address. `host` (without brackets) and `port` are set for tcp, `path` for ipc."""

    address: str
    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def is_ipc(self) -> bool:
        """Whether it is a file of this machine."""
        return bool(self.path)

    @property
    def is_ipv6(self) -> bool:
        """Whether the host is an IPv6 literal."""
        return ":" in self.host


def parse_address(address: str) -> Endpoint:
    """Take "ipc://PATH" or "tcp://HOST:PORT" apart; an IPv6 host stands in brackets. Raises ConfigError."""
    if address.startswith("ipc://"):
        path = address.removeprefix("ipc://")
        if not path or "\0" in path:
            raise ConfigError(f"{address!r} names no socket file; ipc:///tmp/name works")
        _check_length(path)
        return Endpoint(address, path=path)
    host, separator, port = address.removeprefix("tcp://").rpartition(":")
    bare = _without_brackets(host)
    named = bare == host
    if (
        not address.startswith("tcp://")
        or not separator
        or not bare
        or not (port.isascii() and port.isdigit() and int(port) <= 65535)
        or (named and not _HOST_ENDS.isdisjoint(host))
    ):
        raise ConfigError(f"{address!r} is no address; tcp://127.0.0.1:5555, tcp://[::1]:5555 and ipc:///tmp/name work")
    if not named and _family(bare) != socket.AF_INET6:
        raise ConfigError(f"{address!r}: only an IPv6 address stands in brackets")
    return Endpoint(address, host=bare, port=int(port))


def tcp_endpoint(host: str, port: int = 0) -> str:
    """The address for one host (name, IPv4 or IPv6 literal, with or without brackets); port 0: any free one.

    Raises ConfigError for a wildcard and for what is no host or port.
    """
    bare = _without_brackets(host)
    if bare in ("", "*") or _is_wildcard(bare):
        raise ConfigError(
            f"host {host!r} stands for every interface; name the one address that engines shall dial, "
            "for instance 127.0.0.1"
        )
    if not 0 <= port <= 65535:
        raise ConfigError(f"port is {port}; it must lie in 0 ... 65535")
    return parse_address(f"tcp://[{bare}]:{port}" if ":" in bare else f"tcp://{bare}:{port}").address


def resolve(endpoint: Endpoint) -> Endpoint:
    """The same endpoint with a host name turned into an address: libzmq binds literals only.

    Prefers IPv4, as peers that dial the name do. May ask a name server. Raises ConfigError.
    """
    if endpoint.is_ipc or _family(endpoint.host) is not None:
        return endpoint
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"host {endpoint.host!r} of {endpoint.address} has no address: {error}") from error
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return parse_address(tcp_endpoint(str(found[0][4][0]), endpoint.port))


def is_loopback(endpoint: Endpoint) -> bool:
    """Whether only this machine can reach it. May ask a name server. Raises ConfigError."""
    return endpoint.is_ipc or ipaddress.ip_address(resolve(endpoint).host.partition("%")[0]).is_loopback


def check_clear(address: str, insecure: bool) -> None:
    """Refuse to talk in the clear with other machines, unless that is wanted. Raises ConfigError."""
    if is_loopback(parse_address(address)):
        return
    if not insecure:
        shown = address.removesuffix(":0")  # any port: none is worth telling
        raise ConfigError(
            f"{shown} is not on this machine only, and in the clear whoever reaches it could take part. Use keys: "
            "`muro keys new DIR` on both sides, then --curve-dir DIR (curve_dir); or, on a network that you trust, and "
            "for peers other than muro, ask for it: --insecure-tcp (insecure_tcp)"
        )
    log.warning("%s is in the clear (--insecure-tcp): whoever reaches it can take part", address)


class EndpointDirectory:
    """A directory (mode 0700) for this process's ipc sockets, removed by `close`.

    Args:
        root: where to make it; must be usable. None: $MURO_SOCKET_DIR or the temporary directory, and a short
            standard directory if that one is too long or not usable.

    `open` (or `with`) makes it. After a fork, only the process that made it removes it.
    """

    def __init__(self, root: str | None = None) -> None:
        self._root = root
        self._path = ""
        self._lock = -1
        self._owner = 0

    @classmethod
    def attach(cls, path: str) -> EndpointDirectory:
        """One that somebody else has made, and removes."""
        directory = cls()
        directory._path = path
        return directory

    @property
    def path(self) -> str:
        """The directory; empty before `open` and after `close`."""
        return self._path

    def open(self) -> EndpointDirectory:
        """Make the directory, after removing those that dead processes left. Raises ConfigError."""
        if self._path:
            return self
        refusals: list[str] = []
        for root in [self._root] if self._root is not None else [socket_root(), *_SHORT_ROOTS]:
            root = os.path.abspath(root)
            try:
                _check_root(root)
                remove_stale(root)
                self._path, self._lock = _make(root)
            except (ConfigError, OSError) as error:
                refusals.append(f"{root}: {error}")
                continue
            self._owner = os.getpid()
            return self
        raise ConfigError(
            f"no directory for ipc sockets ({'; '.join(refusals)}); set MURO_SOCKET_DIR (or socket_dir) to a short "
            "directory that is writable and yours, for instance /tmp"
        )

    def close(self) -> None:
        """Remove the directory and what is in it; may be called twice."""
        path, self._path = self._path, ""
        lock, self._lock = self._lock, -1
        if path and os.getpid() == self._owner:
            _remove(path)
        if lock >= 0:
            os.close(lock)

    def forget(self, roles: Iterable[str]) -> None:
        """Remove the files of sockets: nobody can dial them any more, and who is connected stays so."""
        for role in roles if self._path else ():
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self._path, role))

    def __enter__(self) -> EndpointDirectory:
        return self.open()

    def __exit__(self, *exc: object) -> None:
        self.close()


def ipc_endpoint(directory: EndpointDirectory, role: str) -> str:
    """The address of one socket by its role, for instance "handshake" or "input-0"; at most 20 characters."""
    if not directory.path:
        raise ConfigError("the socket directory is not open")
    if len(role) > _LONGEST_ROLE or not role or not _ROLE_LETTERS.issuperset(role):
        raise ConfigError(f"{role!r} is no role: at most {_LONGEST_ROLE} small letters, digits and hyphens")
    return parse_address(f"ipc://{directory.path}/{role}").address


def remove_stale(root: str) -> list[str]:
    """Remove the private directories below `root` whose processes are gone; returns their paths."""
    removed = []
    for entry in _own_directories(root):
        with contextlib.suppress(OSError):  # another process may be faster
            lock = os.open(entry, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(entry)
                removed.append(entry)
            finally:
                os.close(lock)
    return removed


def _own_directories(root: str) -> Iterator[str]:
    try:
        entries = list(os.scandir(root))
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(_PREFIX) and len(entry.name) == _NAME_LENGTH:
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and status.st_mode & 0o77 == 0:
                    yield entry.path


def _make(root: str) -> tuple[str, int]:
    while True:
        path = os.path.join(root, _PREFIX + os.urandom(_RANDOM_BYTES).hex())
        os.mkdir(path, 0o700)
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # taken for a stale one before it was locked
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), os.stat(path)):
                return path, lock
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.ENOENT):
                os.close(lock)
                _remove(path)
                raise
        os.close(lock)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        for entry in os.scandir(path):
            if stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
                os.unlink(entry.path)
        os.rmdir(path)


def _check_root(root: str) -> None:
    """Refuse a root in which others could swap our directory for theirs, or in which no socket fits."""
    try:
        status = os.stat(root)
    except OSError as error:
        raise ConfigError(f"not usable ({error.strerror})") from error
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError("not a directory")
    if status.st_uid not in (0, os.geteuid()):
        raise ConfigError(f"belongs to user {status.st_uid}, not to you")
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        raise ConfigError("others may write to it and it is not sticky")
    try:
        root.encode()
    except UnicodeEncodeError as error:
        raise ConfigError("its name is not valid UTF-8") from error
    _check_length(os.path.join(root, "x" * _NAME_LENGTH, "x" * _LONGEST_ROLE))


def _check_length(path: str) -> None:
    length = len(path.encode("utf-8", "surrogateescape"))
    if length > PATH_LIMIT:
        raise ConfigError(f"the ipc path {path} has {length} bytes; a socket path may have {PATH_LIMIT}")


def _without_brackets(host: str) -> str:
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def _packed(host: str) -> bytes:
    """The bytes of an address literal (4 or 16), none for a name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError, ValueError):
            return socket.inet_pton(family, host.partition("%")[0])
    return b""


def _family(host: str) -> socket.AddressFamily | None:
    """The family of an address literal, None for a name."""
    return {4: socket.AF_INET, 16: socket.AF_INET6}.get(len(_packed(host)))


def _is_wildcard(host: str) -> bool:
    packed = _packed(host)
    return bool(packed) and not any(packed.removeprefix(_MAPPED_IPV4))
