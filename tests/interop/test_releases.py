"""What an engine can know of a front-end's release, and what it has to be told."""

from pathlib import Path

import pytest

from tests.interop.asking import User
from tests.interop.pair import ECHO, Pair, paired
from tests.interop.peers import RUST, RUST_NEW, RUST_OLD, SMG, Peer
from tests.interop.table import case, limit

pytestmark = [pytest.mark.timeout(600), pytest.mark.model]

AUTO = (
    "before its first request an engine cannot know vllm-rs 0.33: a `wake_up` that comes earlier is answered as older "
    "releases want it, and the route fails although the engine is awake. `--peer-release 0.33` tells"
)


@case("--peer-release")
def test_a_release_that_is_named(peer: Peer, model: Path) -> None:
    with paired(peer, model, *ECHO, "--peer-release", peer.release) as pair, pair.http() as http:
        if peer in RUST:
            assert http.post("/sleep", params={"level": 0}).status_code == 200
            assert http.post("/wake_up").status_code == 200
        answer = User(peer, http).complete(max_tokens=3)
        assert answer["choices"][0]["text"] == "one two three" and answer["usage"]["prompt_tokens"] == 3


@case("wake before the first request", RUST_OLD)
def test_waking_before_the_first_request(doomed: Pair) -> None:
    with doomed.http() as http:
        assert http.post("/sleep", params={"level": 0}).status_code == 200
        assert http.post("/wake_up").status_code == 200
        assert User(doomed.front.peer, http).text(max_tokens=3) == "one two three"


@limit("wake before the first request", RUST_NEW, reason=AUTO)
def test_waking_before_the_first_request_says_it_failed(doomed: Pair) -> None:
    with doomed.http() as http:
        assert http.post("/sleep", params={"level": 0}).status_code == 200
        assert http.post("/wake_up").status_code == 500
        assert http.get("/is_sleeping").json() == {"is_sleeping": False}
        assert User(doomed.front.peer, http).text(max_tokens=3) == "one two three"
        assert http.post("/sleep", params={"level": 0}).status_code == 200
        assert http.post("/wake_up").status_code == 200, "now it knows"


@limit("wake before the first request", SMG, reason="SMG calls no operations of an engine: it has no route for it")
def test_no_waking(doomed: Pair) -> None:
    with doomed.http() as http:
        assert http.post("/wake_up").status_code == 404
