"""CURVE keys on disk: what is made, what is refused."""

import os
from pathlib import Path

import pytest
import zmq.auth

from muro.config import CurveKeys
from muro.errors import ConfigError
from muro.transport.keys import PUBLIC_FILE, SECRET_FILE, engine_keys, make_keys, new_pair, own_pair, peer_keys


def test_new_keys_are_a_pair_whose_secret_is_its_owners_alone(tmp_path: Path) -> None:
    public = make_keys(str(tmp_path / "new" / "keys"))
    secret = public.parent / SECRET_FILE
    assert secret.stat().st_mode & 0o777 == 0o600 and public.stat().st_mode & 0o777 == 0o644
    assert sorted(p.name for p in public.parent.iterdir()) == [PUBLIC_FILE, SECRET_FILE, "peers"]
    assert own_pair(str(public.parent))[0].encode() == zmq.auth.load_certificate(public)[0]
    assert zmq.auth.load_certificate(public)[1] is None, "the public file has no secret in it"
    assert peer_keys(str(public.parent)) == {}


def test_keys_are_never_overwritten(tmp_path: Path) -> None:
    make_keys(str(tmp_path))
    pair = own_pair(str(tmp_path))
    with pytest.raises(ConfigError, match="exists"):
        make_keys(str(tmp_path))
    assert own_pair(str(tmp_path)) == pair


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666, 0o610])
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    secret = make_keys(str(tmp_path)).with_name(SECRET_FILE)
    secret.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        own_pair(str(tmp_path))


def test_a_secret_behind_a_link_is_refused(tmp_path: Path) -> None:
    secret = make_keys(str(tmp_path)).with_name(SECRET_FILE)
    secret.rename(tmp_path / "elsewhere")
    secret.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=SECRET_FILE):
        own_pair(str(tmp_path))


def test_without_keys_it_is_told_how_to_make_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="muro keys new"):
        own_pair(str(tmp_path))


def test_the_secret_may_come_through_a_descriptor(tmp_path: Path) -> None:
    secret = make_keys(str(tmp_path)).with_name(SECRET_FILE)
    pair = own_pair(str(tmp_path))
    content = secret.read_bytes()
    secret.unlink()
    read_end, write_end = os.pipe()
    os.write(write_end, content)
    os.close(write_end)
    assert own_pair(str(tmp_path), read_end) == pair
    with pytest.raises(ConfigError, match="descriptor 999"):
        own_pair(str(tmp_path), 999)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "public-key and secret-key must stand in it"),
        ('public-key = "short"\nsecret-key = "short"\n', "no CURVE key"),
        ("public-key = {0}\nsecret-key = {1}\n", "are no pair"),
    ],
)
def test_what_is_no_pair_is_refused(tmp_path: Path, content: str, words: str) -> None:
    secret = make_keys(str(tmp_path)).with_name(SECRET_FILE)
    secret.write_text(content.format(new_pair()[0], new_pair()[1]))
    with pytest.raises(ConfigError, match=words):
        own_pair(str(tmp_path))


def test_an_engine_has_one_front_end(tmp_path: Path) -> None:
    front_end = make_keys(str(tmp_path / "front"))
    make_keys(str(tmp_path / "engine"))
    peers = tmp_path / "engine" / "peers"
    with pytest.raises(ConfigError, match="holds 0"):
        engine_keys(str(tmp_path / "engine"))
    (peers / "front-end.key").write_bytes(front_end.read_bytes())
    keys = engine_keys(str(tmp_path / "engine"))
    assert keys.server == own_pair(str(tmp_path / "front"))[0]
    assert (keys.public, keys.secret) == own_pair(str(tmp_path / "engine"))
    (peers / "other.key").write_text(f'public-key = "{new_pair()[0]}"\n')
    with pytest.raises(ConfigError, match=r"holds 2 \(front-end, other\)"):
        engine_keys(str(tmp_path / "engine"))


def test_a_file_among_the_peers_that_is_no_key_is_named(tmp_path: Path) -> None:
    make_keys(str(tmp_path))
    (tmp_path / "peers" / "odd.key").write_text("hello")
    with pytest.raises(ConfigError, match=r"odd\.key"):
        peer_keys(str(tmp_path))


def test_a_secret_is_never_shown() -> None:
    public, secret = new_pair()
    assert secret not in repr(CurveKeys(public, public, secret))
