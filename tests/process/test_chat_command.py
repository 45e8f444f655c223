"""`muro chat` against an echo: the conversation is kept, an answer can be stopped, and errors do not end the talk."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.deadline import until
from tests.support.server import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("secret\n")
    with Server("--engine", "echo", "--api-key-file", str(keys)) as running:
        running.ready()
        running.keys = str(keys)  # type: ignore[attr-defined]
        yield running


def command(server: Server, *arguments: str) -> list[str]:
    keys: str = server.keys  # type: ignore[attr-defined]
    return [sys.executable, "-m", "muro", "chat", server.url, "--api-key-file", keys, *arguments]


def chat(server: Server, said: str, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    ended = subprocess.run(
        command(server, *arguments), input=said, capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == code, ended.stderr
    return ended


def test_the_conversation_is_kept(server: Server) -> None:
    first = "system: S\nuser: hé\nassistant: "
    limit = len(first.encode())
    answers = chat(server, "hé\nyou\n", "--system-prompt", "S", "--max-tokens", str(limit)).stdout
    second = f"{first}{first}\nuser: you"[: limit - 1]
    assert answers == f"{first}\n{second}\n"


def test_lines_that_go_on_and_empty_ones(server: Server) -> None:
    assert chat(server, "\n \none\\\ntwo\n", "--max-tokens", "13").stdout == "user: one\ntwo\n"


def test_one_message(server: Server) -> None:
    assert chat(server, "", "--quick", "hello", "--max-tokens", "11").stdout == "user: hello\n"


def test_what_the_server_refuses_does_not_end_the_talk(server: Server) -> None:
    limit = ("--max-tokens", "20")
    ended = chat(server, "x" * (1 << 20) + "\nhello\n", *limit)
    assert ended.stdout == "user: hello\nassistant"[:20] + "\n", "what was refused is forgotten"
    assert "prompt" in ended.stderr
    failed = chat(server, "", "--quick", "hello", "--model", "other", code=1)
    assert "there is no model 'other' here" in failed.stderr


def test_bytes_that_are_no_text(server: Server) -> None:
    ended = subprocess.run(
        command(server, "--max-tokens", "9"), input=b"\xff\n", capture_output=True, timeout=30, check=True
    )
    assert ended.stdout.decode() == "user: \ufffd\n"


@pytest.mark.parametrize(
    ("address", "words"), [("http://127.0.0.1:1", "nobody answers"), ("ftp://x", "not the address"), ("", "API key")]
)
def test_nobody_there_and_no_key(server: Server, address: str, words: str) -> None:
    arguments = [sys.executable, "-m", "muro", "chat", address or server.url]
    ended = subprocess.run(arguments, input="", capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == (2 if address else 1) and words in ended.stderr


def test_a_key_file_without_a_key(server: Server, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    arguments = [sys.executable, "-m", "muro", "chat", server.url, "--api-key-file", str(tmp_path / "empty")]
    assert subprocess.run(arguments, capture_output=True, timeout=30, check=False).returncode == 2


TAKE_TERMINAL = """\
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """The other end of a pseudo-terminal."""

    def __init__(self, arguments: list[str]) -> None:
        self.end, child_end = pty.openpty()
        environment = {**os.environ, "TERM": "dumb"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL, *arguments],
            stdin=child_end,
            stdout=child_end,
            stderr=child_end,
            env=environment,
        )
        os.close(child_end)
        os.set_blocking(self.end, False)
        self.shown = ""

    def sees(self, words: str) -> None:
        until(lambda: words in self._read(), within=20, what=f"the terminal shows {words!r}")

    def type(self, keys: str) -> None:
        self.shown = ""
        os.write(self.end, keys.encode())

    def _read(self) -> str:
        with contextlib.suppress(OSError):
            self.shown += os.read(self.end, 1 << 16).decode(errors="replace")
        return self.shown

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.end)


def test_an_answer_is_stopped_and_the_talk_goes_on(server: Server) -> None:
    """The echo would go on to the end of its context; Ctrl-C at the prompt ends nothing, Ctrl-D ends all."""
    with server.http() as http:
        talk_and_stop(server, http)


def talk_and_stop(server: Server, http: httpx.Client) -> None:
    def in_flight() -> int:
        return http.get("/health").json()["engines"][0]["in_flight"]  # type: ignore[no-any-return]

    terminal = Terminal(command(server))
    try:
        terminal.sees("> ")
        terminal.type("hello\n")
        terminal.sees("assistant: user: hello")
        assert in_flight() == 1
        terminal.type("\x03")
        terminal.sees("(stopped)")
        terminal.sees("> ")
        until(lambda: in_flight() == 0, what="the request has ended")
        terminal.type("\x03")
        terminal.sees("(Ctrl-D ends)")
        terminal.sees("> ")
        terminal.type("\x04")
        assert terminal.process.wait(10) == 0
    finally:
        terminal.close()
