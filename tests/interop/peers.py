"""The foreign front-ends: what each is, and how it is started in front of engines that dial in."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from tests.interop.fetch import KEPT
from tests.support.elsewhere import PORT_HOST, free_port

MODEL_NAME = "m"
"""What callers call the model."""


class Setting(msgspec.Struct, frozen=True):
    """What one start of a front-end is given."""

    model: Path
    """Directory with tokenizer, configuration and chat template."""
    port: int
    """For HTTP."""
    engine_port: int
    """Where engines dial."""
    engines: int
    directory: Path
    """A private one, with a short path."""


class Peer(msgspec.Struct, frozen=True):
    """One release of a front-end.

    `command` gives the arguments, `environment` adds to ours; `engine_port` picks the port that engines dial, in a
    private directory. `release` is the release of vLLM whose layout it reads. `readiness` is the path that answers 200
    once requests are taken.
    """

    name: str
    release: str
    command: Callable[[Setting], list[str]]
    engine_port: Callable[[Path], int]
    environment: dict[str, str] = {}
    readiness: str = "/health"


def _vllm_rs(release: str) -> Peer:
    program = KEPT / f"vllm-rs-{release}"

    def command(setting: Setting) -> list[str]:
        arguments: list[object] = [program, "serve", setting.model, "--host", PORT_HOST, "--port", setting.port]
        arguments += ["--served-model-name", MODEL_NAME]
        arguments += ["--data-parallel-size", setting.engines, "--data-parallel-size-local", 0]
        arguments += ["--data-parallel-address", PORT_HOST, "--data-parallel-rpc-port", setting.engine_port]
        return list(map(str, arguments))

    # The routes that control an engine are open in developer mode alone.
    environment = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
    return Peer(f"vllm-rs-{release}", release, command, lambda directory: free_port(), environment)


def _smg(release: str) -> Peer:
    packages = KEPT / f"smg-{release}"

    def command(setting: Setting) -> list[str]:
        arguments: list[object] = [sys.executable, packages / "bin" / "smg", "launch", "--backend", "vllm"]
        arguments += ["--host", PORT_HOST, "--port", setting.port]
        arguments += ["--worker-urls", f"ipc://{_smg_path(setting.directory)}"]
        arguments += ["--model-path", setting.model, "--tokenizer-path", setting.model]
        arguments += ["--model-alias", f"{MODEL_NAME}={setting.model}", "--prometheus-port", free_port()]
        arguments += ["--health-check-interval-secs", 2, "--health-success-threshold", 1]
        arguments += ["--zmq-engine-count", setting.engines]
        return list(map(str, arguments))

    environment = {"PYTHONPATH": str(packages)}
    # vLLM's 0.28 has ADDs of as many elements.
    return Peer(
        f"smg-{release}", "0.28", command, lambda directory: _smg_port(_smg_path(directory)), environment, "/readiness"
    )


def _smg_path(directory: Path) -> str:
    return str(directory / "engine-31000")


def _smg_port(path: str) -> int:
    """Where SMG greets engines: 20000 + FNV-1a-64 of the path of its worker, modulo 10000."""
    value = 0xCBF29CE484222325
    for byte in path.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return 20_000 + value % 10_000


RUST_OLD = _vllm_rs("0.25.1")
RUST_NEW = _vllm_rs("0.33.0")
SMG = _smg("1.13.0")
RUST = (RUST_OLD, RUST_NEW)
PEERS = (RUST_OLD, RUST_NEW, SMG)


def environment(peer: Peer) -> dict[str, str]:
    """Ours, without proxies that would get between processes of one machine, and without a hub to ask."""
    kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return kept | {"HF_HUB_OFFLINE": "1", "NO_COLOR": "1"} | peer.environment
