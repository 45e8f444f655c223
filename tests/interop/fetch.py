"""The programs of foreign peers, fetched once into `.interop`, which git does not see.

    python -m tests.interop.fetch            all of them
    python -m tests.interop.fetch smg-1.13.0

Of a wheel of vLLM (250 MB and more) only the stand-alone front-end `vllm-rs` is kept; none of its sources is unpacked.
SMG is installed with what it needs into a directory of its own.
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

KEPT = Path(__file__).parents[2] / ".interop"
_MEMBER = "vllm/vllm-rs"


def _vllm_rs(release: str, place: Path) -> None:
    with tempfile.TemporaryDirectory(dir=KEPT) as directory:
        _pip("download", "--no-deps", "--only-binary", ":all:", "--dest", directory, f"vllm=={release}")
        (wheel,) = Path(directory).glob("*.whl")
        unpacked = Path(directory) / "vllm-rs"
        with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as packed, unpacked.open("wb") as file:
            shutil.copyfileobj(packed, file)
        unpacked.chmod(0o755)
        unpacked.rename(place)


def _smg(release: str, place: Path) -> None:
    with tempfile.TemporaryDirectory(dir=KEPT) as directory:
        target = Path(directory) / "smg"
        _pip("install", "--only-binary", ":all:", "--target", str(target), f"smg=={release}")
        target.rename(place)


PROGRAMS: dict[str, Callable[[Path], None]] = {
    "vllm-rs-0.25.1": lambda place: _vllm_rs("0.25.1", place),
    "vllm-rs-0.33.0": lambda place: _vllm_rs("0.33.0", place),
    "smg-1.13.0": lambda place: _smg("1.13.0", place),
}
"""Name of a peer, and what puts its program at a path."""


def fetch(name: str) -> Path:
    """The program of a peer (a binary, or a directory of packages), fetched if it is not there yet."""
    place = KEPT / name
    if not place.exists():
        KEPT.mkdir(exist_ok=True)
        PROGRAMS[name](place)
    return place


def _pip(*arguments: str) -> None:
    """pip, with its progress shown; it needs room for a wheel in the temporary directory, so that is ours, too."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True)


def main(names: list[str]) -> int:
    for name in names or PROGRAMS:
        if name not in PROGRAMS:
            print(f"{name!r} is none of {', '.join(PROGRAMS)}", file=sys.stderr)
            return 2
        print(f"{name}: {fetch(name)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
