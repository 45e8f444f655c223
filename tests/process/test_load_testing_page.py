"""docs/load-testing.md: its programs run, as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "load-testing.md").read_text()


@pytest.mark.parametrize("number", [0, 1])
def test_programs(tmp_path: Path, number: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[number])
    ran = subprocess.run([sys.executable, str(program)], check=False, capture_output=True, text=True, timeout=50)
    assert ran.returncode == 0, ran.stderr
