"""The real `huggingface_hub` against a server in this process that answers as the hub does."""

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from muro.errors import ConfigError
from muro.models.config import open_model
from muro.models.hub import HubName, HuggingFaceHub
from muro.models.pull import pull_from_hub

FAMILY = Path(__file__).parents[1] / "data" / "families" / "qwen2-bias"
COMMIT = "c0ffee" + "0" * 34
FILES = ("config.json", "model.safetensors")


class Answers(BaseHTTPRequestHandler):
    """The description of one repository, and its files."""

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        path = self.path.partition("?")[0]
        if path in ("/api/models/org/tiny", "/api/models/org/tiny/revision/main"):
            self._send(json.dumps(description()).encode(), {"Content-Type": "application/json"}, body)
        elif path.startswith(f"/org/tiny/resolve/{COMMIT}/") and (name := path.rpartition("/")[2]) in FILES:
            content = (FAMILY / name).read_bytes()
            etag = hashlib.sha256(content).hexdigest()
            self._send(content, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, body)
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _send(self, content: bytes, headers: dict[str, str], body: bool) -> None:
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        """Quiet."""


def description() -> dict[str, object]:
    siblings = []
    for name in FILES:
        content = (FAMILY / name).read_bytes()
        entry: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": "0"}
        if name.endswith(".safetensors"):
            checksum = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"size": len(content), "sha256": checksum, "pointerSize": 1}
        siblings.append(entry)
    return {"id": "org/tiny", "modelId": "org/tiny", "sha": COMMIT, "siblings": siblings, "tags": [], "private": False}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HuggingFaceHub]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield HuggingFaceHub(f"http://127.0.0.1:{server.server_address[1]}")
    from huggingface_hub import close_session

    close_session()
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_model_of_the_hub(tmp_path: Path, hub: HuggingFaceHub) -> None:
    seen: list[tuple[str, int, int]] = []
    name = HubName("org/tiny", None, None)
    directory = pull_from_hub(name, tmp_path, hub, progress=lambda *what: seen.append(what))
    model = open_model(directory)
    assert model.config.decoder is not None and model.config.decoder.family == "qwen2"
    assert {path.name for path in directory.iterdir()} == {*FILES, ".complete"}
    total = sum((FAMILY / name).stat().st_size for name in FILES)
    assert seen[-1] == ("download", total, total)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_what_the_hub_says_is_passed_on(tmp_path: Path, hub: HuggingFaceHub) -> None:
    with pytest.raises(ConfigError, match=r"hf:org/none could not be fetched: RepositoryNotFoundError: .*404"):
        pull_from_hub(HubName("org/none", None, None), tmp_path, hub)
