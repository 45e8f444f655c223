"""The pairs of which one half, or both, is vLLM 0.25.1 in Python: each front-end and engine as a user would start it.

vLLM lives in an environment of its own (`scripts/install_vllm.py`), with muro beside it for the pairs in which its
engine is hosted behind our wall.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import msgspec

from tests.support.deadline import until
from tests.support.elsewhere import PORT_HOST, free_port
from tests.support.leaks import TAG
from tests.support.programs import ROOT, environment

PLACE = Path(os.environ.get("MURO_INTEROP_VLLM", ROOT / ".interop" / "vllm"))
MODEL_NAME = "m"
CONTEXT = 2048
_START = 900.0
"""Seconds; vLLM imports for half a minute on a busy machine, and loads for as long."""
_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "NO_COLOR": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
_RUNNING = re.compile(r"^vllm:num_requests_(?:running|waiting)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


class Program:
    """One process, in a group of its own and with a place of its own for temporary files; its log is kept.

    What it starts while it runs, and ends with it, is its own business, so the tag of the session does not go to it.
    """

    def __init__(self, *command: object) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._place = tempfile.TemporaryDirectory(prefix="v-")
        kept = {name: value for name, value in environment().items() if "proxy" not in name.lower()}
        kept = {name: value for name, value in kept.items() if name != TAG} | {"TMPDIR": self._place.name}
        self.process = subprocess.Popen(
            list(map(str, command)),
            cwd=ROOT,
            env=kept | _ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def poll(self) -> int | None:
        return self.process.poll()

    def wait(self, within: float = 30.0) -> int:
        return self.process.wait(within)

    def log(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def _has_members(self) -> bool:
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def close(self) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        with contextlib.suppress(AssertionError):
            # What is left of it may be about to tidy up after it: Python's resource tracker, for instance.
            until(lambda: not self._has_members(), within=10, what="the group has ended")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()
        self._place.cleanup()


class World:
    """A front-end that serves, and its engine."""

    def __init__(self, name: str, port: int, front: Program, engine: Program | None) -> None:
        self.name = name
        self.url = f"http://{PORT_HOST}:{port}"
        self.front = front
        self.engine = engine
        """None where the front-end has started the engine itself."""
        self.ended = False
        """Whether a test has ended it."""

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=120)

    def status(self, path: str = "/health") -> int:
        """Of one request on a connection of its own; 0 if nobody listens."""
        try:
            return httpx.get(self.url + path, timeout=10).status_code
        except httpx.HTTPError:
            return 0

    def is_idle(self) -> bool:
        """Whether no request runs or waits in the engine, by what the front-end has heard from it."""
        numbers = _RUNNING.findall(httpx.get(f"{self.url}/metrics", timeout=10).text)
        return bool(numbers) and not any(map(float, numbers))

    def engine_pid(self) -> int:
        """The process that holds the engine."""
        if self.engine is None:
            return process_of(self.front.process.pid, "muro.process.main")
        found = process_of(self.engine.process.pid, "EngineCore", missing=0)
        return found or self.engine.process.pid


def process_of(parent: int, words: str, missing: int | None = None) -> int:
    """The one of a process's descendants whose name or command line has these words."""
    waiting = [parent]
    while waiting:
        for task in Path(f"/proc/{waiting.pop()}/task").iterdir():
            for pid in map(int, (task / "children").read_text().split()):
                said = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if words in said or words.startswith(Path(f"/proc/{pid}/comm").read_text().strip()):
                    return pid
                waiting.append(pid)
    assert missing is not None, f"process {parent} has no descendant with {words!r}"
    return missing


class Setting(msgspec.Struct, frozen=True):
    """One start."""

    model: Path
    port: int
    """For HTTP."""
    engine_port: int
    """Where engines dial."""


def _address(setting: Setting) -> list[object]:
    return ["--data-parallel-address", PORT_HOST, "--data-parallel-rpc-port", setting.engine_port]


def _vllm(*arguments: object) -> Program:
    return Program(PLACE / "bin" / "vllm", "serve", *arguments)


_SMALL = ("--max-num-batched-tokens", 256, "--max-num-seqs", 64)
"""A step of the warm-up has so many tokens: on two CPUs more of them take minutes."""


def vllm_front(setting: Setting) -> Program:
    """vLLM's front-end, which waits for an engine."""
    http = ["--host", PORT_HOST, "--port", setting.port, "--served-model-name", MODEL_NAME]
    away = ["--data-parallel-size", 1, "--data-parallel-size-local", 0, *_address(setting)]
    return _vllm(setting.model, *http, *away, "--dtype", "float32", "--max-model-len", CONTEXT)


def vllm_engine(setting: Setting) -> Program:
    """vLLM's engine, which dials a front-end."""
    away = ["--headless", "--data-parallel-size", 1, "--data-parallel-size-local", 1, *_address(setting)]
    return _vllm(setting.model, *away, "--dtype", "float32", "--enforce-eager", "--max-model-len", CONTEXT, *_SMALL)


HOSTED = ("--engine", "vllm", "--max-model-len", CONTEXT, *_SMALL)
HOSTED_OPTIONS = ("dtype=float32", "enforce_eager=true")


def _hosted(setting: Setting) -> list[object]:
    options = [word for option in HOSTED_OPTIONS for word in ("--engine-option", option)]
    return [setting.model, *HOSTED, *options]


def _muro(python: Path | str, *arguments: object) -> Program:
    return Program(python, "-m", "muro", "serve", *arguments)


def _http(setting: Setting) -> list[object]:
    return ["--port", setting.port, "--served-model-name", MODEL_NAME, "--enable-dev-mode", "--restart", "never"]


def our_front(setting: Setting) -> Program:
    """Our front-end, which waits for an engine."""
    away = ["--data-parallel-size-local", 0, *_address(setting)]
    return _muro(sys.executable, setting.model, *_http(setting), *away)


def our_engine(setting: Setting) -> Program:
    """Our engine with the demo model, which dials a front-end."""
    return _muro(sys.executable, setting.model, "--headless", "--max-model-len", CONTEXT, *_address(setting))


def hosted_engine(setting: Setting) -> Program:
    """vLLM's engine behind our wall, which dials a front-end."""
    return _muro(PLACE / "bin" / "python", *_hosted(setting), "--headless", *_address(setting))


def hosted_whole(setting: Setting) -> Program:
    """vLLM's engine behind our wall, started by our front-end."""
    return _muro(PLACE / "bin" / "python", *_hosted(setting), *_http(setting))


class Kind(msgspec.Struct, frozen=True):
    """A column of the table."""

    slug: str
    name: str
    front: Callable[[Setting], Program]
    engine: Callable[[Setting], Program] | None
    front_is_ours: bool
    engine_is_ours: bool
    """Whether it has our wall around it."""
    model_is_ours: bool = False
    """Whether our scheduler and sampler run the model."""


KINDS = (
    Kind("ours", "vllm front-end, our engine", vllm_front, our_engine, False, True, True),
    Kind("hosted-under-vllm", "vllm front-end, vllm behind our wall", vllm_front, hosted_engine, False, True),
    Kind("vllm-under-ours", "our front-end, vllm engine", our_front, vllm_engine, True, False),
    Kind("hosted", "our front-end, vllm behind our wall", hosted_whole, None, True, True),
)


@contextlib.contextmanager
def world(kind: Kind, model: Path) -> Iterator[World]:
    """Both halves, ready; ended afterwards. Their logs are printed, for pytest to show if the test fails."""
    setting = Setting(model, free_port(), free_port())
    with contextlib.ExitStack() as stack:
        programs = []
        for start in (kind.front, kind.engine):
            if start is not None:
                program = start(setting)
                stack.callback(program.close)
                stack.callback(lambda program=program: print(program.log()))
                programs.append(program)
        found = World(kind.name, setting.port, programs[0], programs[1] if len(programs) > 1 else None)

        def serves_or_ended() -> bool:
            return found.status() == 200 or any(program.poll() is not None for program in programs)

        until(serves_or_ended, within=_START, what=f"{kind.name} serves")
        assert not any(program.poll() is not None for program in programs), f"{kind.name} has ended instead of serving"
        yield found


def events(lines: Iterator[str]) -> Iterator[dict]:
    """The JSON of a stream of server-sent events."""
    for line in lines:
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))
