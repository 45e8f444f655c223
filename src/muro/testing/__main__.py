"""python -m muro.testing ENGINE: run the conformance suite and print how each case went.

Exit code 0: all passed; 1: some failed; 2: the engine could not be built as asked.
"""

from __future__ import annotations

import argparse
import sys

from muro.errors import MuroError
from muro.testing.conformance import CASES, check_engine


def main(arguments: list[str] | None = None) -> int:
    """Run the suite; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m muro.testing", description="Check an engine against the contract of muro.engine.interface."
    )
    parser.add_argument("engine", help='a built-in name, "module:factory" or "path.py:factory"')
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the engine")
    parser.add_argument("--model", help="model directory, for engines that take one")
    parser.add_argument("--reuse", action="store_true", help="one engine for all cases: for engines that load slowly")
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES], help="run only this one")
    asked = parser.parse_args(arguments)
    options = {}
    for text in asked.option:
        name, separator, value = text.partition("=")
        if not separator:
            parser.error(f"--option {text}: it has the form NAME=VALUE")
        options[name] = value
    cases = [case for case in CASES if asked.case is None or case.name in asked.case]
    try:
        report = check_engine(asked.engine, options=options, model=asked.model, cases=cases, reuse=asked.reuse)
    except MuroError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{report}\n")
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
