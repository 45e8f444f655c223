"""`python -m tests.chaos`: a server under random faults and real load, and the account of every request.

Exit code 0: every request got what it must, and nothing was left; 1: not so, and what was seen is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import sys
from functools import partial

from tests.chaos.apart import elsewhere
from tests.chaos.report import summary
from tests.chaos.run import Plan, run
from tests.chaos.world import World


def main(arguments: list[str] | None = None) -> int:
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of faults (60)")
    parser.add_argument("--rate", type=float, default=50.0, help="requests per second (50)")
    parser.add_argument("--seed", type=int, default=None, help="that of an earlier run")
    parser.add_argument(
        "--policy", choices=("fail", "replay", "both"), default="both", help="after a death (both: half the time each)"
    )
    parser.add_argument("--engine", default="sim", help="sim, or a model: then only the number of tokens is known")
    parser.add_argument(
        "--only", action="append", default=[], metavar="FAULT", help="this fault alone; may be repeated"
    )
    parser.add_argument("--apart", action="store_true", help="the engine on another machine, and a cable to cut (root)")
    parser.add_argument("--growth", action="store_true", help="fail if the server grows")
    asked = parser.parse_args(arguments)
    seed = secrets.randbits(31) if asked.seed is None else asked.seed
    policies = ["fail", "replay"] if asked.policy == "both" else [asked.policy]
    results = [_run(asked, policy, asked.seconds / len(policies), seed) for policy in policies]
    return 0 if all(results) else 1


def _run(asked: argparse.Namespace, policy: str, seconds: float, seed: int) -> bool:
    """One run; whether all was well."""
    plan = Plan(seconds, asked.rate, seed, policy == "replay", tuple(asked.only), asked.engine)
    print(f"seed {seed}: {seconds:g} s at {asked.rate:g} requests/s, policy {policy}, {asked.engine}", flush=True)
    engine = ["--engine", "sim"] if asked.engine == "sim" else [asked.engine]
    with elsewhere() if asked.apart else contextlib.nullcontext() as there:
        if asked.apart and there is None:
            raise SystemExit("network namespaces cannot be made here; root may")
        flags = [] if there is None else there.server_flags
        with World(*engine, "--on-engine-death", policy, *flags) as world:
            result = asyncio.run(run(world, plan, there, partial(print, flush=True)))
    print(f"{summary(result)}\n", flush=True)
    problems = [*result.violations, *(result.growth_problems() if asked.growth else ())]
    if problems:
        print(f"{len(problems)} violations; the same faults again: --seed {seed} --policy {policy}")
        print("\n".join(problems[:40]))
        print(f"\nThe end of the server's log:\n{result.log}", flush=True)
    return not problems


if __name__ == "__main__":
    sys.exit(main())
