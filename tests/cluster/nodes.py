"""A Ray cluster of several nodes on this machine, by Ray's own cluster utility."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

from tests.support.programs import children

RANK = {"CPU": 0.5, "rank": 1}
"""What each rank asks for: a node has room for one."""


def add_node(cluster: Cluster) -> Any:
    return cluster.add_node(num_cpus=1, resources={"rank": 1}, object_store_memory=80 << 20, include_dashboard=False)


@contextlib.contextmanager
def two_nodes() -> Iterator[tuple[Cluster, Any]]:
    """The cluster that RAY_ADDRESS then names, and a node that may be killed, as the first one may not."""
    cluster = Cluster(shutdown_at_exit=False)
    try:
        add_node(cluster)
        second = add_node(cluster)
        os.environ["RAY_ADDRESS"] = cluster.address
        yield cluster, second
    finally:
        cluster.shutdown()


def kill_node(cluster: Cluster, node: Any) -> None:
    """End everything that runs there at once, as a machine does that loses its power; engines die with their hosts."""
    (raylet,) = node.all_processes["raylet"]
    for pid in (raylet.process.pid, *children(raylet.process.pid)):
        kill(pid)
    cluster.remove_node(node, allow_graceful=False)


def agents_of(cluster: Cluster) -> list[int]:
    """Ray's helper processes on all nodes."""
    nodes = [cluster.head_node, *cluster.worker_nodes]
    return [
        pid for node in nodes for (raylet,) in [node.all_processes["raylet"]] for pid in children(raylet.process.pid)
    ]


def alive(pid: int) -> bool:
    """Whether a process runs, and is no zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    return False


def host_of(pid: int) -> int:
    """The process of the actor that hosts an engine."""
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def main(story: Callable[[], dict[str, Any]]) -> None:
    """Run a story and print its facts as the last line."""
    print(json.dumps(story()), flush=True)
    sys.exit()
