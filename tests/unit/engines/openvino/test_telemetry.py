"""Importing OpenVINO calls nobody."""

import subprocess
import sys
from pathlib import Path

from tests.support.programs import environment

PROGRAM = """
import sys, threading
import muro.engines.openvino.compiled
loaded = [name for name, module in sys.modules.items() if name.startswith("openvino_telemetry") and module is not None]
print(loaded, threading.active_count())
"""


def test_importing_the_engine_calls_nobody_and_leaves_nothing_at_home(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment(HOME=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split("\n")[0] == "[] 1"
    assert list(tmp_path.iterdir()) == []
