"""Agreement over a real process group of torch, if torch is installed here: it is no dependency."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import ROOT, environment

PROGRAM = """
import sys
from datetime import timedelta
import torch.distributed as dist
from muro.engine.torch_group import TorchCollective
from muro.errors import EngineDeadError
rank, size, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", f"file://{store}", timedelta(seconds=60), size, rank)
collective = TorchCollective()
for number in range(2 * size):
    assert collective.any_rank(rank == number, 30.0) is (number < size), number
if rank == size - 1:
    print("last")
    sys.stdin.read()
    sys.exit()
try:
    collective.any_rank(True, 1.0)
except EngineDeadError as error:
    print(error.message)
"""


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_ranks_agree_and_the_missing_one_is_named(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), "3", str(tmp_path / "store")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment(),
        )
        for rank in range(3)
    ]
    told = [rank.communicate(timeout=50)[0] for rank in ranks]
    assert "lockstep rank 0 waited 1 s for the others" in told[0] and "Ranks 2 failed" in told[0]
    assert "lockstep rank 1 waited 1 s for the others" in told[1]
    assert told[2] == "last\n"
