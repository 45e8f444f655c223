"""A front-end with two engines on Ray, as a program: prints their process ids, ends at a line of input."""

from __future__ import annotations

import json
import sys

from muro import connect
from muro.config import ConnectConfig, EngineConfig, RayConfig, RestartPolicy
from tests.cluster.nodes import RANK
from tests.support.asking import ask
from tests.support.deadline import until

SETTINGS = ConnectConfig(
    engine=EngineConfig(engine="echo"),
    num_engines=2,
    ray=RayConfig(resources=RANK),
    restart=RestartPolicy(policy="on-failure"),
    startup_timeout=120,
)

if __name__ == "__main__":
    with connect(SETTINGS) as client:
        print(json.dumps([status.pid for status in client.engines()]), flush=True)
        sys.stdin.readline()  # the cluster's head has gone
        tokens = [token for output in client.generate(ask("a")) for token in output.new_token_ids]
        until(lambda: {status.state for status in client.engines()} == {"restarting"}, within=120)
        print(json.dumps({"meanwhile": tokens, "errors": [s.error for s in client.engines()]}), flush=True)
        sys.stdin.readline()
    print(json.dumps("closed"), flush=True)
