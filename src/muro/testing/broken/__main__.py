"""python -m muro.testing.broken NAME ADDRESS: start one broken peer; without a name, list them all."""

from __future__ import annotations

import argparse
import sys

from muro.errors import ConfigError
from muro.testing.broken import BROKEN_ENGINES, BROKEN_FRONTENDS
from muro.testing.broken.engine import EngineHooks
from muro.testing.broken.frontend import FrontendHooks

CORRECT_ENGINE, CORRECT_FRONTEND = "correct-engine", "correct-frontend"


def main(arguments: list[str] | None = None) -> int:
    """Start the peer that is named; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m muro.testing.broken", description="Start an engine or front-end with one deliberate fault."
    )
    parser.add_argument("name", nargs="?", help="which one; without it, all are listed")
    parser.add_argument("address", nargs="?", help="of the handshake: tcp://HOST:PORT or ipc://PATH")
    parser.add_argument("--http", type=int, default=0, metavar="PORT", help="of a front-end; default: any free one")
    asked = parser.parse_args(arguments)
    if asked.name is None:
        sys.stdout.write(listing())
        return 0
    if asked.address is None:
        parser.error("an address is needed, as tcp://127.0.0.1:29550")
    try:
        return start(asked.name, asked.address, asked.http)
    except ConfigError as error:
        sys.stderr.write(f"{error.message}\n")
        return 2


def start(name: str, address: str, http_port: int) -> int:
    """Run one peer to its end. Raises ConfigError for an unknown name, or an address that makes no sense."""
    if name == CORRECT_ENGINE or name in BROKEN_ENGINES:
        from muro.testing.broken.engine_shell import run_engine

        return run_engine(address, BROKEN_ENGINES[name].hooks if name in BROKEN_ENGINES else EngineHooks())
    if name == CORRECT_FRONTEND or name in BROKEN_FRONTENDS:
        from muro.testing.broken.frontend_shell import run_frontend

        hooks = BROKEN_FRONTENDS[name].hooks if name in BROKEN_FRONTENDS else FrontendHooks()
        return run_frontend(address, hooks, http_port)
    raise ConfigError(f"there is no broken peer {name!r}; without a name, this command lists them")


def listing() -> str:
    """All names, and what is wrong with each."""
    width = max(map(len, (*BROKEN_ENGINES, *BROKEN_FRONTENDS)))
    lines = ["Engines:"]
    lines += [f"  {name:<{width}}  {broken.wrong}" for name, broken in BROKEN_ENGINES.items()]
    lines += ["Front-ends:"]
    lines += [f"  {name:<{width}}  {broken.wrong}" for name, broken in BROKEN_FRONTENDS.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
