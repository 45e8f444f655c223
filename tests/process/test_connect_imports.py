"""A client of engines that were started elsewhere loads nothing of an engine."""

import json

import pytest

from tests.support.elsewhere import PORT_HOST, engine_elsewhere, free_port
from tests.support.programs import run

CLIENT = """
import json, sys
from muro import connect
from muro.wire.request import EngineCoreRequest, SamplingParams
where = dict(host=sys.argv[1], handshake_port=int(sys.argv[2]), num_local_engines=0, startup_timeout=30)
with connect(**where) as client:
    request = EngineCoreRequest("a", [7, 8, 9], sampling_params=SamplingParams(max_tokens=3))
    tokens = [token for output in client.generate(request) for token in output.new_token_ids]
    assert client.call("is_sleeping") is False
print(json.dumps({"tokens": tokens, "loaded": sorted(sys.modules)}))
"""
FOREIGN = ("core", "engines", "process", "coordinator", "models", "text", "llm", "server", "cli", "testing", "bench")
"""Rooms that have no business in a client; `engine` is the contract, of which there are only words and checks."""
HEAVY = ("openvino", "torch", "vllm", "transformers", "tokenizers", "starlette", "llguidance", "numpy")


@pytest.mark.timeout(120)
def test_connect_loads_nothing_of_an_engine() -> None:
    port = free_port()
    with engine_elsewhere(f"tcp://{PORT_HOST}:{port}"):
        done = run(["-c", CLIENT, PORT_HOST, str(port)])
    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert said["tokens"] == [7, 8, 9]
    rooms = {name.split(".")[1] for name in said["loaded"] if name.startswith("muro.")}
    assert rooms.isdisjoint(FOREIGN), rooms
    assert set(said["loaded"]).isdisjoint(HEAVY)
