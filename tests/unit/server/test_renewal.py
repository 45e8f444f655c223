"""renewal.py: replaced keys and certificates count from then on; what cannot be used changes nothing."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from muro.errors import ConfigError, UnauthorizedError
from muro.server.gate import read_api_keys
from muro.server.listening import tls_context
from muro.server.renewal import Source, key_source, renewing, tls_source
from tests.support.deadline import until_async

TLS = Path(__file__).parents[2] / "data/tls"


def knows(path: Path, key: str) -> tuple[Source, Callable[[str], bool]]:
    path.write_text(f"{key}\n")
    keys = read_api_keys(path)

    def let_in(key: str) -> bool:
        try:
            keys.check(b"Bearer " + key.encode())
        except UnauthorizedError:
            return False
        return True

    return key_source(str(path), keys), let_in


def test_replaced_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys"
    source, let_in = knows(path, "one")
    source.look()
    assert let_in("one") and not caplog.records, "nothing has changed"
    path.write_text("two\n")
    source.look()
    assert let_in("two") and not let_in("one")
    (tmp_path / "new").write_text("six\n")
    (tmp_path / "new").replace(path)
    source.look()
    assert let_in("six") and not let_in("two")
    assert caplog.text.count("read again") == 2 and "six" not in caplog.text


@pytest.mark.parametrize("text", [None, "", "# nobody\n", "two words\n"])
def test_what_cannot_be_used_changes_nothing(
    text: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    source, let_in = knows(path, "one")
    path.unlink() if text is None else path.write_text(text)
    for _ in range(3):
        source.look()
    assert let_in("one")
    assert caplog.text.count("goes on to hold") == 1
    path.write_text("three\n")
    source.look()
    assert let_in("three") and not let_in("one")


def test_a_certificate_is_shown_to_whoever_comes_next(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    async def subject(port: int, trusted: str) -> bool:
        trusting = ssl.create_default_context(cafile=str(TLS / trusted))
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
        except ssl.SSLCertVerificationError:
            return False
        writer.close()
        return True

    async def main() -> None:
        shutil.copy(TLS / "cert.pem", cert)
        shutil.copy(TLS / "key.pem", key)
        context = tls_context(str(cert), str(key))
        assert context is not None
        source = tls_source(str(cert), str(key), context)
        async with await asyncio.start_server(
            lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=context
        ) as door:
            port = door.sockets[0].getsockname()[1]
            assert await subject(port, "cert.pem")
            shutil.copy(TLS / "other_cert.pem", cert)  # one file after the other, as whoever renews them does
            source.look()
            assert await subject(port, "cert.pem") and not await subject(port, "other_cert.pem")
            shutil.copy(TLS / "other_key.pem", key)
            source.look()
            assert await subject(port, "other_cert.pem") and not await subject(port, "cert.pem")

    asyncio.run(main())


def test_they_are_looked_at_while_a_server_runs(tmp_path: Path) -> None:
    async def main() -> None:
        source, let_in = knows(tmp_path / "keys", "one")
        async with renewing([source], every=0.005):
            (tmp_path / "keys").write_text("two\n")
            await until_async(lambda: let_in("two"))
        async with renewing([]):
            assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_a_source_that_fails_is_no_end() -> None:
    def read() -> None:
        raise ConfigError("no")

    source = Source(("/no/such/file",), read)
    source.look()
    source.look()
    assert source.complaint == "no" and not source.state
