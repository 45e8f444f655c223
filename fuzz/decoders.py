"""One target for a while, in this process: `python -m fuzz.decoders NAME SECONDS SEED DIRECTORY`.

With atheris (extra `fuzz`), which watches what of muro's own code each input reaches and keeps what reaches more; its
corpus lies in DIRECTORY and grows from run to run. Without it bytes are only mutated at random. It says
`Done N runs` in the end; an input that breaks a promise is written to DIRECTORY and ends the process with a traceback.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

MAX_BYTES = 8192
_TOKENS = (
    b"\xc0",
    b"\xc1",
    b"\xff" * 8,
    b"\x91" * 64,
    b"\xdd\x7f\xff\xff\xff",
    b"\xc7\x04\x03",
    b"\x00",
    b"{",
    b'"',
    b"]",
)


def have_atheris() -> bool:
    """Whether inputs are guided by coverage."""
    try:
        import atheris  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


def main(name: str, seconds: int, seed: int, directory: Path) -> None:
    """Fuzz until the time is over. Raises what a target raises."""
    corpus = directory / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    (_guided if have_atheris() else _blind)(name, seconds, seed, corpus)


def _load(name: str, corpus: Path) -> Callable[[bytes], None]:
    from fuzz.targets import TARGETS, pack, unpack_frames

    target = TARGETS[name]
    for number, frames in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(pack(frames))
    return lambda data: target.run(unpack_frames(data))


def _guided(name: str, seconds: int, seed: int, corpus: Path) -> None:
    """libFuzzer prints its own account on standard error and ends the process itself."""
    import atheris

    with atheris.instrument_imports(include=["muro.wire", "muro.server.schemas"], enable_loader_override=False):
        run = _load(name, corpus)
    options = [f"-max_total_time={seconds}", f"-seed={seed % 2**31 or 1}", f"-max_len={MAX_BYTES}"]
    limits = ["-timeout=10", "-rss_limit_mb=1024", f"-artifact_prefix={corpus.parent}/"]
    atheris.Setup([sys.argv[0], *options, *limits, str(corpus)], run)
    atheris.Fuzz()


def _blind(name: str, seconds: int, seed: int, corpus: Path) -> None:
    run = _load(name, corpus)
    seeds = [path.read_bytes() for path in sorted(corpus.glob("seed-*"))]
    choose = random.Random(seed)
    end = time.monotonic() + seconds
    runs = 0
    while time.monotonic() < end:
        for _ in range(100):
            data = mutated(choose, choose.choice(seeds))
            try:
                run(data)
            except BaseException:
                (corpus.parent / f"crash-{runs}").write_bytes(data)
                raise
            runs += 1
    print(f"Done {runs} runs")


def mutated(choose: random.Random, data: bytes) -> bytes:
    """Some bytes replaced, removed or inserted."""
    for _ in range(choose.randint(1, 6)):
        start = choose.randint(0, len(data))
        piece = choose.choice(_TOKENS) if choose.random() < 0.4 else choose.randbytes(choose.randint(0, 8))
        data = data[:start] + piece + data[start + choose.randint(0, 8) :]
    return data[:MAX_BYTES]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
