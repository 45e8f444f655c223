"""Story: what outlives what. Engines end with a front-end that is killed; a front-end outlives the whole cluster."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from tests.cluster.nodes import agents_of, alive, kill, main, two_nodes
from tests.support.deadline import until
from tests.support.programs import go, line


@contextlib.contextmanager
def front_end() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.cluster.front_end"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def story() -> dict[str, Any]:
    facts: dict[str, Any] = {}
    with two_nodes() as (cluster, _):
        with front_end() as process:
            pids = json.loads(line(process))
            killed = time.monotonic()
            process.kill()
            until(lambda: not any(map(alive, pids)), within=20)
            facts["engines ended"] = time.monotonic() - killed
        with front_end() as process:
            pids = json.loads(line(process))
            agents = agents_of(cluster)
            (tables,) = cluster.head_node.all_processes["gcs_server"]
            kill(tables.process.pid)
            go(process)
            facts |= json.loads(line(process))
            go(process)
            asked = time.monotonic()
            facts["closed"] = json.loads(line(process))
            facts["code"] = process.wait(30)
            facts["closing took"] = time.monotonic() - asked
            for pid in filter(alive, agents):  # Ray leaves them behind when a raylet has given up
                kill(pid)
            facts["left"] = [pid for pid in pids if alive(pid)]
    return facts


if __name__ == "__main__":
    main(story)
