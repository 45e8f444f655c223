"""gate.py: keys in, answers out."""

from __future__ import annotations

from pathlib import Path

import pytest

from muro.errors import ConfigError, OverloadedError, UnauthorizedError
from muro.server.connection import SURPLUS
from muro.server.gate import ApiKeys, check, read_api_keys


def scope(
    path: str = "/v1/models", key: bytes | None = None, query: bytes = b"", surplus: bool = False
) -> dict[str, object]:
    headers = [] if key is None else [(b"authorization", b"Bearer " + key)]
    made: dict[str, object] = {"path": path, "query_string": query, "headers": headers}
    return {**made, SURPLUS: True} if surplus else made


def test_without_keys_everybody_is_let_in() -> None:
    check(scope(), ApiKeys())
    check(scope(key=b"any"), ApiKeys())


def test_health_is_open_unless_it_makes_work() -> None:
    keys = ApiKeys(["k"])
    for path in ("/livez", "/readyz", "/health"):
        check(scope(path), keys)
        check(scope(path, surplus=True), keys)
    with pytest.raises(UnauthorizedError):
        check(scope("/health", query=b"deep=1"), keys)
    check(scope("/health", b"k", b"deep=1"), keys)


def test_a_surplus_connection_is_refused_after_its_key_was_looked_at() -> None:
    keys = ApiKeys(["k"])
    with pytest.raises(UnauthorizedError):
        check(scope(surplus=True), keys)
    with pytest.raises(OverloadedError, match="too many connections"):
        check(scope(key=b"k", surplus=True), keys)


def test_keys_are_not_kept(tmp_path: Path) -> None:
    keys = ApiKeys(["a-secret-word"])
    assert "a-secret-word" not in repr(vars(keys))


def test_a_file_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# who may come\n one # the first\n\ntwo\n")
    keys = read_api_keys(path)
    assert len(keys) == 2
    for key in (b"Bearer one", b"Bearer two"):
        keys.check(key)
    with pytest.raises(UnauthorizedError):
        keys.check(b"Bearer three")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "no API key"),
        ("# none\n", "no API key"),
        ("two words\n", "without spaces"),
        ("\N{LATIN SMALL LETTER E WITH ACUTE}\n", "cannot be read"),
        ("x" * 2000, "at most 1024 characters"),
        ("x\n" * 10_001, "at most 10000 keys"),
    ],
    ids=["empty", "comment", "spaces", "letters", "long", "many"],
)
def test_a_file_that_cannot_be_meant(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "keys"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=words):
        read_api_keys(path)
