"""examples/kubernetes: valid by Kubernetes' schemas, and its commands are ones that `muro serve` takes."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.deadline import until
from tests.support.elsewhere import free_port
from tests.support.programs import ROOT
from tests.support.server import Server

MANIFEST = ROOT / "examples" / "kubernetes" / "muro.yaml"
RELEASES = ("1.28.0", "1.30.0", "1.34.0", "1.37.0")

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("kubernetes_validate") is None,
    reason="kubernetes-validate is not installed: make kubernetes",
)


def documents() -> list[dict[str, Any]]:
    import yaml

    return [document for document in yaml.safe_load_all(MANIFEST.read_text()) if document]


def named(kind: str) -> dict[str, Any]:
    (found,) = [document for document in documents() if document["kind"] == kind]
    return found


def container(kind: str) -> dict[str, Any]:
    (found,) = named(kind)["spec"]["template"]["spec"]["containers"]
    return found


def arguments(kind: str, **values: str) -> list[str]:
    """The flags of a pod, with what the downward API fills in."""
    found = container(kind)
    names = set(re.findall(r"\$\((\w+)\)", " ".join(found["args"])))
    assert names <= {entry["name"] for entry in found["env"]}
    return [re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], text) for text in found["args"]]


def options(kind: str) -> Any:
    """The command of a pod, as `muro serve` understands it."""
    import click
    import typer

    from muro.cli.options import ServeOptions, flags

    texts = [*container(kind)["command"][2:], *arguments(kind, POD_IP="10.1.2.3", RANK="3")]
    seen: list[ServeOptions] = []
    app = typer.Typer()
    app.command()(flags(ServeOptions)(seen.append))
    command: click.Command = typer.main.get_command(app)  # type: ignore[assignment]
    command.main(texts, standalone_mode=False)
    return seen[0]


@pytest.mark.parametrize("release", RELEASES)
def test_every_document_is_valid(release: str) -> None:
    from kubernetes_validate import validate

    kinds = [document["kind"] for document in documents() if validate(document, release, strict=True)]
    assert sorted(kinds) == ["Deployment", "Service", "Service", "Service", "StatefulSet"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "replica"), 4),
        (("spec", "replicas"), "four"),
        (("spec", "template", "spec", "containers", 0, "ports", 0, "containerPort"), "http"),
        (("spec", "template", "spec", "containers", 0, "readinessProbe", "httpGet", "url"), "/readyz"),
    ],
)
def test_the_check_sees_what_is_wrong(path: tuple[Any, ...], value: object) -> None:
    from kubernetes_validate import ValidationError, validate

    broken: Any = copy.deepcopy(named("Deployment"))
    place = broken
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(ValidationError):
        validate(broken, RELEASES[-1], strict=True)


def test_front_end_and_engines_fit_together() -> None:
    front, engine = options("Deployment"), options("StatefulSet")
    wire = next(
        d for d in documents() if d["kind"] == "Service" and d["metadata"]["name"] == engine.data_parallel_address
    )
    assert front.data_parallel_size == named("StatefulSet")["spec"]["replicas"]
    assert (front.data_parallel_size_local, front.headless, engine.headless, engine.rejoin) == (0, False, True, True)
    assert front.data_parallel_rpc_port == engine.data_parallel_rpc_port == wire["spec"]["ports"][0]["port"]
    assert (front.data_parallel_address, engine.data_parallel_start_rank) == ("10.1.2.3", 3)
    assert wire["spec"]["clusterIP"] == "None" and wire["spec"]["publishNotReadyAddresses"]
    assert front.model == engine.model and front.curve_dir == engine.curve_dir == "/keys"
    assert not front.insecure_tcp and not engine.insecure_tcp
    ports = {port["name"]: port["containerPort"] for port in container("Deployment")["ports"]}
    assert ports == {"http": front.port, "health": front.health_port, "handshake": front.data_parallel_rpc_port}
    for kind, one in (("Deployment", front), ("StatefulSet", engine)):
        assert named(kind)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > one.shutdown_timeout


def test_probes_ask_what_is_answered_from_the_beginning() -> None:
    front = container("Deployment")
    assert front["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "health"}
    assert front["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "health"}


def test_keys_get_the_mode_that_is_asked_for(tmp_path: Path) -> None:
    """The command of the init container, run here on keys as a secret holds them."""
    from muro.transport.keys import engine_keys, make_keys

    make_keys(str(tmp_path / "own"))
    make_keys(str(tmp_path / "other"))
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "muro.key_secret").symlink_to(tmp_path / "own" / "muro.key_secret")
    (secret / "peer.key").symlink_to(tmp_path / "other" / "muro.key")
    (found,) = named("StatefulSet")["spec"]["template"]["spec"]["initContainers"]
    script = found["command"][2].replace("/secret/", f"{secret}/").replace("/keys/", f"{tmp_path}/keys/")
    subprocess.run(["sh", "-c", script], check=True)
    assert engine_keys(str(tmp_path / "keys")).server


def keys_for(directory: Path) -> None:
    """Keys of both sides, as the README makes them."""
    from muro.transport.keys import make_keys

    for own in ("front", "engines"):
        make_keys(str(directory / own))
    for own, other in (("front", "engines"), ("engines", "front")):
        shutil.copy(directory / own / "muro.key", directory / other / "peers" / "peer.key")


@pytest.mark.timeout(120)
def test_the_commands_serve_here(tmp_path: Path) -> None:
    """On one machine, with the simulator in the model's place and ports that are free."""
    keys_for(tmp_path)
    health, wire = free_port(), free_port()
    here = {
        "--port": "0",
        "--health-port": str(health),
        "--data-parallel-rpc-port": str(wire),
        "--data-parallel-address": "127.0.0.1",
        "--host": "127.0.0.1",
    }

    def flags(kind: str, side: str, **values: str) -> list[str]:
        given = dict(text.partition("=")[::2] for text in arguments(kind, **values))
        given |= {name: value for name, value in here.items() if name in given}
        given["--curve-dir"] = str(tmp_path / side)
        return ["--engine", "sim", *(f"{name}={value}" if value else name for name, value in given.items())]

    def asked(path: str) -> int:
        try:
            return httpx.get(f"http://127.0.0.1:{health}{path}", timeout=5).status_code
        except httpx.HTTPError:
            return 0

    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Server(*flags("Deployment", "front", POD_IP="127.0.0.1")))
        until(lambda: asked("/livez") == 200, within=30)
        assert asked("/readyz") == 503, "no engine has dialled"
        for rank in range(4):
            command = [sys.executable, "-m", "muro", "serve", *flags("StatefulSet", "engines", RANK=str(rank))]
            engine = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(engine.wait)
            stack.callback(engine.terminate)
        server.ready(within=60)
        until(lambda: asked("/readyz") == 200)
        with server.http() as http:
            answer = http.post("/v1/completions", json={"model": "sim", "prompt": "abc", "max_tokens": 8})
        assert answer.json()["usage"]["completion_tokens"] == 8
