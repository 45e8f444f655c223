"""CURVE keys on disk: one directory per machine, with its own pair and the public keys of its peers.

    DIR/muro.key_secret     this machine's pair; mode 0600, or it is refused
    DIR/muro.key            its public half, to be copied to peers
    DIR/peers/NAME.key      public keys of peers: a front-end lets only these in; an engine finds its front-end's here

The files are ZeroMQ certificates, as czmq and `zmq.auth` write them. The secret one may come through an inherited
descriptor instead. Keys never stand on a command line or in the environment, which others can read.
"""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

import zmq
import zmq.utils.z85

from muro.config import CurveKeys
from muro.errors import ConfigError

NAME = "muro"
SECRET_FILE, PUBLIC_FILE, PEERS = f"{NAME}.key_secret", f"{NAME}.key", "peers"
_MAX_BYTES = 4096


def make_keys(directory: str) -> Path:
    """Make a pair and an empty directory for peers; returns the public file. Raises ConfigError, never overwrites."""
    import tempfile  # with zmq.auth 15 ms, which every client would pay at its import

    import zmq.auth

    where = Path(directory)
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (where / SECRET_FILE).exists():
            raise ConfigError(f"{where / SECRET_FILE} exists; take another directory, or remove it to have new keys")
        (where / PEERS).mkdir(exist_ok=True)
        # Made where nobody else can look and moved as a whole: the secret is never readable for others.
        with tempfile.TemporaryDirectory(dir=where) as private:
            public, secret = map(Path, zmq.auth.create_certificates(private, NAME))
            secret.chmod(0o600)
            public.chmod(0o644)
            public.rename(where / PUBLIC_FILE)
            secret.rename(where / SECRET_FILE)
    except OSError as error:
        raise ConfigError(f"keys cannot be made in {directory}: {error.strerror}") from error
    return where / PUBLIC_FILE


def own_pair(directory: str, secret_fd: int | None = None) -> tuple[str, str]:
    """Public and secret key of this machine, from its directory or an inherited descriptor. Raises ConfigError."""
    path = Path(directory) / SECRET_FILE
    if secret_fd is not None:
        return _pair(_read(secret_fd, f"descriptor {secret_fd}"), f"descriptor {secret_fd}")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; `muro keys new {directory}` makes keys") from error
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if status.st_uid not in (0, os.geteuid()):
            raise ConfigError(f"{path} belongs to user {status.st_uid}, not to you")
        if status.st_mode & 0o077:
            mode = stat.filemode(status.st_mode)
            raise ConfigError(
                f"{path} can be read by others ({mode}); chmod 600 it, and make new keys if they may have"
            )
        return _pair(file.read(_MAX_BYTES), str(path))


def peer_files(directory: str) -> list[tuple[str, int, int, int]]:
    """Name, inode, size and time of change of each file of the list: another list where a file was replaced or edited.

    Raises ConfigError if they cannot be looked at.
    """
    try:
        with os.scandir(os.path.join(directory, PEERS)) as entries:
            found = [(entry.name, entry.stat()) for entry in entries]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"the keys in {directory}/{PEERS} cannot be looked at: {error}") from error
    return sorted((name, seen.st_ino, seen.st_size, seen.st_mtime_ns) for name, seen in found)


def peer_keys(directory: str) -> dict[str, str]:
    """Public keys of the peers, and the name of the file of each. Raises ConfigError for what is no key."""
    import zmq.auth

    found = {}
    for path in sorted((Path(directory) / PEERS).glob("*.key")):
        try:
            public, _ = zmq.auth.load_certificate(path)
            found[_checked(public, str(path))] = path.stem
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} is no public key: {error}") from error
    return found


def engine_keys(directory: str, secret_fd: int | None = None) -> CurveKeys:
    """What an engine needs to dial: its own pair, and the key of the one front-end among its peers."""
    public, secret = own_pair(directory, secret_fd)
    peers = peer_keys(directory)
    if len(peers) != 1:
        names = ", ".join(peers.values()) or "none"
        raise ConfigError(
            f"{directory}/{PEERS} must hold the public key of one front-end, and holds {len(peers)} ({names}); "
            f"copy the front-end's {PUBLIC_FILE} to {directory}/{PEERS}/front-end.key"
        )
    return CurveKeys(server=next(iter(peers)), public=public, secret=secret)


def new_pair() -> tuple[str, str]:
    """A pair that lives as long as who holds it."""
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def _read(descriptor: int, what: str) -> bytes:
    try:
        with open(descriptor, "rb") as file:
            return file.read(_MAX_BYTES)
    except OSError as error:
        raise ConfigError(f"the secret key cannot be read from {what}: {error.strerror}") from error


def _pair(content: bytes, what: str) -> tuple[str, str]:
    """Both keys of a secret certificate."""
    found = {}
    for line in io.BytesIO(content):
        name, equals, value = line.partition(b"=")
        if equals and not name.lstrip().startswith(b"#"):
            found[name.strip()] = value.strip(b" \t\r\n'\"")
    try:
        public, secret = found[b"public-key"], found[b"secret-key"]
    except KeyError:
        raise ConfigError(f"{what} is no secret key file: public-key and secret-key must stand in it") from None
    if zmq.curve_public(_checked(secret, what).encode()) != public:
        raise ConfigError(f"the two keys in {what} are no pair")
    return public.decode(), secret.decode()


def _checked(key: bytes, what: str) -> str:
    """A key in Z85: forty characters."""
    try:
        text = key.decode("ascii")
        if len(text) != 40 or len(zmq.utils.z85.decode(key)) != 32:
            raise ValueError
    except (ValueError, KeyError, IndexError):
        raise ConfigError(f"{what} holds no CURVE key: 40 characters of Z85") from None
    return text
