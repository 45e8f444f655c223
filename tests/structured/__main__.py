"""`python -m tests.structured`: the demo model answers in JSON, by the schemas of a public suite, beside hostile ones.

Which schemas, and by which rule they were chosen, says `tests/data/schemas/README.md`. Exit code 0: enough answers end
within their limit, each of those is valid, and each hostile grammar has cost its own request alone; 1: not so.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from tests.structured.run import Account, Plan, run
from tests.support.server import Server

ENOUGH = 0.9
"""The part of the answers that must end within their limit."""


def main(arguments: list[str] | None = None) -> int:
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.structured", description=__doc__)
    parser.add_argument("--requests", type=int, default=1000, help="over all schemas in turn (1000)")
    parser.add_argument("--at-once", type=int, default=32, help="requests at the same time (32)")
    parser.add_argument("--max-tokens", type=int, default=256, help="of an answer (256)")
    parser.add_argument("--hostile", type=int, default=1, help="times each hostile grammar (1)")
    parser.add_argument("--model", default="demo", help="a model directory, or a name that `muro pull` knows")
    asked = parser.parse_args(arguments)
    plan = Plan(asked.requests, asked.at_once, asked.max_tokens, asked.hostile)
    with Server(asked.model) as server:
        server.ready(within=300)
        engine = server.engine_pid
        account = asyncio.run(run(server.url, plan))
        problems = account.problems(ENOUGH)
        if server.engine_pid != engine or server.process.poll() is not None:
            problems.append("the engine is not the one that it was")
    return _report(account, problems)


def _report(account: Account, problems: list[str]) -> int:
    print(account.summary(), flush=True)
    print("\n".join(problems[:40]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
