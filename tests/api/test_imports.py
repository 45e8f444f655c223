"""The direction of imports: the contracts hold, they catch what they are for, and lightness is real."""

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import grimp
import pytest

import muro
from scripts.import_contracts import OutsideContract, RoomsContract, allowed_rooms

ROOT = Path(__file__).parents[2]
CONTRACTS = {
    contract["id"]: contract
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
}
TYPES = {"rooms": RoomsContract, "outside": OutsideContract}
HEAVY = ["core", "engines", "process", "server", "llm", "text", "models"]
OUTSIDE_HEAVY = ["numpy", "openvino", "starlette", "tokenizers", "typer", "rich"]


def broken(contract: str, package: str = "muro") -> list[str]:
    graph = grimp.build_graph(package, include_external_packages=True, cache_dir=None)
    options = CONTRACTS[contract] | {"package": package}
    if package != "muro":
        options = {key: _renamed(value, package) for key, value in options.items()}
    return TYPES[contract]("", {}, options).check(graph, verbose=False).metadata["broken"]


def _renamed(value: object, package: str) -> object:
    """The row of the package's own ``__init__`` goes by the package's name."""
    return [row.replace("muro:", f"{package}:") for row in value] if isinstance(value, list) else value


@pytest.mark.parametrize("contract", CONTRACTS)
def test_contract_holds(contract: str) -> None:
    assert broken(contract) == []


@pytest.mark.parametrize(
    ("contract", "files"),
    [
        ("rooms", {"clients/a": "import {p}.core.b", "core/b": ""}),
        ("rooms", {"launch/a": "def f():\n    from {p}.process import b", "process/b": ""}),
        ("rooms", {"wire/a": "import {p}.transport.b", "transport/b": ""}),
        ("rooms", {"errors/a": "import {p}.wire.b", "wire/b": ""}),
        ("rooms", {"bench/a": "import {p}.server.b", "server/b": ""}),
        ("rooms", {"engine/a": "import {p}.testing.b", "testing/b": ""}),
        ("rooms", {"nowhere/a": ""}),
        ("outside", {"clients/a": "import zmq.asyncio"}),
        ("outside", {"wire/a": "import time"}),
        ("outside", {"engine/host": "from threading import Lock"}),
        ("outside", {"observe/a": "import pickle"}),
    ],
)
def test_contract_catches(
    contract: str, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = f"pretend_{abs(hash(tmp_path))}"
    for name, text in {"__init__": "", **files}.items():
        file = tmp_path / package / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        (file.parent / "__init__.py").touch()
        file.write_text(text.format(p=package))
    monkeypatch.syspath_prepend(tmp_path)
    assert len(broken(contract, package)) == 1


def test_no_road_leads_from_clients_to_an_engine() -> None:
    allowed = allowed_rooms(CONTRACTS["rooms"]["rooms"], CONTRACTS["rooms"]["commons"])
    reached, new = set(), {"clients"}
    while new:
        reached |= new
        new = set().union(*(allowed[room] for room in new)) - reached
    assert reached.isdisjoint({"core", "engines", "process", "server", "testing", "models"})


def loaded_by(statement: str) -> set[str]:
    """Names of the modules that a fresh interpreter has loaded after `statement`."""
    program = f"{statement}\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_root_loads_no_room() -> None:
    assert {name for name in loaded_by("import muro") if name.startswith("muro.")} == set()


@pytest.mark.skipif(not importlib.util.find_spec("muro.clients"), reason="muro.clients is not built yet")
def test_clients_load_no_engine() -> None:
    statement = "import muro.clients"
    if "AsyncMPClient" in getattr(muro, "__all__", ()):
        statement += "; import muro; muro.AsyncMPClient, muro.SyncMPClient, muro.InprocClient"
    loaded = loaded_by(statement)
    assert "muro.clients" in loaded
    assert loaded.isdisjoint({f"muro.{room}" for room in HEAVY} | set(OUTSIDE_HEAVY))
