"""Who may use the server: API keys, TLS, web pages of other origins. Over real HTTP."""

import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.support.deadline import command_line, until
from tests.support.server import Server

TLS = Path(__file__).parents[1] / "data/tls"
KEYS = ("first-key-0123", "second-key-4567")
PAGE = "https://page.example"


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(f"# who may come\n{KEYS[0]}   # the first\n\n{KEYS[1]}\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def server(key_file: Path) -> Iterator[Server]:
    with Server("--engine", "echo", "--api-key-file", str(key_file), "--allowed-origins", PAGE) as running:
        yield running.ready()


def models(server: Server, authorization: str | None) -> httpx.Response:
    headers = {} if authorization is None else {"Authorization": authorization}
    return httpx.get(f"{server.url}/v1/models", headers=headers)


@pytest.mark.parametrize("key", KEYS, ids=["first", "second"])
def test_a_known_key_is_let_in(server: Server, key: str) -> None:
    assert models(server, f"Bearer {key}").status_code == 200
    assert models(server, f"bearer  {key}").status_code == 200
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client:
        assert client.completions.create(model="", prompt="abc", max_tokens=3).choices[0].text == "abc"


WRONG = (None, "", "Bearer", "Bearer wrong", f"Basic {KEYS[0]}", KEYS[0], f"Bearer {KEYS[0]}x", "Bearer " + "x" * 9000)


@pytest.mark.parametrize("authorization", WRONG, ids=range(len(WRONG)))
def test_others_are_not(server: Server, authorization: str | None) -> None:
    answer = models(server, authorization)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert KEYS[0] not in answer.text


@pytest.mark.parametrize("path", ["/v1/models", "/nothing"])
@pytest.mark.parametrize("key", [KEYS[0], "wrong"])
def test_every_answer_is_named(server: Server, path: str, key: str) -> None:
    asked = {"Authorization": f"Bearer {key}"}
    assert httpx.get(server.url + path, headers=asked | {"X-Request-Id": "mine"}).headers["X-Request-Id"] == "mine"
    assert len(httpx.get(server.url + path, headers=asked | {"X-Request-Id": "x" * 257}).headers["X-Request-Id"]) == 32


def test_what_openais_client_makes_of_it(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            client.completions.create(model="", prompt="abc", max_tokens=3)


@pytest.mark.parametrize(
    "path", ["/v1/completions", "/v1/chat/completions", "/metrics", "/version", "/nothing", "/health?deep=1"]
)
def test_whatever_makes_work_or_tells_of_it_wants_a_key(server: Server, path: str) -> None:
    assert httpx.post(server.url + path, json={"prompt": "abc"}).status_code == 401
    assert httpx.get(server.url + path).status_code == 401


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health"])
def test_health_is_open(server: Server, path: str) -> None:
    assert httpx.get(server.url + path).status_code == 200


def test_no_key_is_to_be_seen_anywhere(server: Server) -> None:
    models(server, f"Bearer {KEYS[0]}")
    models(server, "Bearer hidden-wrong-key")
    seen = command_line(server.process.pid) + command_line(server.engine_pid) + server.output() + server.errors()
    for pid in (server.process.pid, server.engine_pid):
        seen += Path(f"/proc/{pid}/environ").read_text(errors="replace")
    assert not any(key in seen for key in (*KEYS, "hidden-wrong-key"))


def test_a_web_page_that_was_named_may_ask(server: Server) -> None:
    ask = {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    preflight = httpx.options(f"{server.url}/v1/completions", headers=ask)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == PAGE
    answer = httpx.get(f"{server.url}/v1/models", headers={"Origin": PAGE, "Authorization": f"Bearer {KEYS[0]}"})
    assert answer.headers["access-control-allow-origin"] == PAGE
    refused = httpx.get(f"{server.url}/v1/models", headers={"Origin": PAGE})
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE)


def test_other_web_pages_may_not(server: Server) -> None:
    ask = {"Origin": "https://other.example", "Access-Control-Request-Method": "POST"}
    assert httpx.options(f"{server.url}/v1/completions", headers=ask).status_code == 400
    answer = httpx.get(f"{server.url}/health", headers={"Origin": "https://other.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_by_default_no_web_page_may_and_no_key_is_wanted() -> None:
    with Server("--engine", "echo") as server:
        server.ready()
        answer = httpx.get(f"{server.url}/v1/models", headers={"Origin": PAGE, "Authorization": "Bearer whatever"})
        assert answer.status_code == 200
        assert "access-control-allow-origin" not in answer.headers


def test_https() -> None:
    files = ("--ssl-certfile", str(TLS / "cert.pem"), "--ssl-keyfile", str(TLS / "key.pem"))
    with Server("--engine", "echo", *files) as server:
        server.ready()
        assert server.url.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=str(TLS / "cert.pem"))
        with httpx.Client(base_url=server.url, verify=trusting) as client:
            assert client.get("/health").status_code == 200
            body = {"prompt": "abc", "max_tokens": 30, "stream": True}
            assert client.post("/v1/completions", json=body).text.endswith("[DONE]\n\n")
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"{server.url}/health")
        with pytest.raises(httpx.HTTPError):
            httpx.get(server.url.replace("https", "http") + "/health")
        assert "Traceback" not in server.errors()


def test_keys_and_certificates_may_be_replaced(tmp_path: Path) -> None:
    cert, key, keys = (tmp_path / name for name in ("cert.pem", "key.pem", "keys"))
    shutil.copy(TLS / "cert.pem", cert)
    shutil.copy(TLS / "key.pem", key)
    keys.write_text(f"{KEYS[0]}\n")
    files = ("--ssl-certfile", str(cert), "--ssl-keyfile", str(key), "--api-key-file", str(keys))
    with Server("--engine", "echo", *files) as server:
        server.ready()

        def status(trusted: str, shown: str) -> int | None:
            asked = {"Authorization": f"Bearer {shown}"}
            try:
                context = ssl.create_default_context(cafile=str(TLS / trusted))
                return httpx.get(f"{server.url}/v1/models", headers=asked, verify=context).status_code
            except httpx.ConnectError:
                return None

        assert (status("cert.pem", KEYS[0]), status("cert.pem", KEYS[1])) == (200, 401)
        keys.write_text(f"{KEYS[1]}\n")
        shutil.copy(TLS / "other_cert.pem", cert)
        shutil.copy(TLS / "other_key.pem", key)
        until(lambda: status("other_cert.pem", KEYS[1]) == 200, within=20)
        assert (status("cert.pem", KEYS[1]), status("other_cert.pem", KEYS[0])) == (None, 401)


def test_what_cannot_be_used_is_told_at_once() -> None:
    for files in (("--ssl-certfile", "/no/such/file"), ("--api-key-file", "/no/such/file")):
        with Server("--engine", "faulty", "--engine-option", "fault=loading:hang", *files) as server:
            assert server.exit_code(20) == 2
            assert "/no/such/file" in server.errors().replace("\n", " ")
            assert "Traceback" not in server.errors()
