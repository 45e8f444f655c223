"""Two lockstep engines of ours behind one foreign front-end.

It takes the model for a mixture of experts, so the one in Rust is their coordinator, too; SMG starts waves itself.
"""

import json
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.interop.asking import User
from tests.interop.pair import Pair, paired
from tests.interop.peers import Peer
from tests.interop.table import case
from tests.support.deadline import until
from tests.support.elsewhere import free_port

pytestmark = [pytest.mark.timeout(600), pytest.mark.model]

SIM = ("step_us=2000", "lockstep=true", "max_model_len=8192", "vocab_size=49152")
GROUP = ("--data-parallel-lockstep", "--data-parallel-size", "2")


EXPERTS = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def experts(model: Path) -> Iterator[Path]:
    """The model, which says of itself that it has experts. Front-ends read no weights."""
    with tempfile.TemporaryDirectory(prefix="experts-") as directory:
        for file in model.iterdir():
            (Path(directory) / file.name).symlink_to(file)
        config = Path(directory) / "config.json"
        settings = json.loads(config.read_text()) | EXPERTS
        config.unlink()
        config.write_text(json.dumps(settings))
        yield Path(directory)


@pytest.fixture(scope="module")
def ranks(peer: Peer, experts: Path) -> Iterator[Pair]:
    options = [part for option in SIM for part in ("--engine-option", option)]
    group = [*GROUP, "--data-parallel-group-port", str(free_port())]
    with paired(peer, experts, "--engine", "sim", *options, *group, engines=2) as pair:
        yield pair
        assert [engine.poll() for engine in pair.engines] == [None, None]


def at_rest(ranks: Pair) -> bool:
    return all(engine.progress().idle for engine in ranks.engines)


def complete(ranks: Pair, number: int, tokens: int) -> int:
    with ranks.http() as http:
        answer = User(ranks.front.peer, http).complete(f"number {number}", max_tokens=tokens, ignore_eos=True)
    return int(answer["usage"]["completion_tokens"])


@case("two lockstep ranks")
def test_one_request_has_both_step_and_pause_together(ranks: Pair) -> None:
    for number in range(4):
        until(lambda: at_rest(ranks), what="the wave ends")
        before = [engine.progress().steps_ended for engine in ranks.engines]
        assert complete(ranks, number, 50) == 50
        until(lambda: at_rest(ranks), what="the wave ends")
        took = [engine.progress().steps_ended - was for engine, was in zip(ranks.engines, before, strict=True)]
        assert min(took) >= 50 and took[0] == took[1]


@case("two lockstep ranks")
def test_many_requests_in_many_waves(ranks: Pair) -> None:
    with ThreadPoolExecutor(8) as pool:
        for tokens in pool.map(lambda number: (number, complete(ranks, number, 5 + number % 40)), range(64)):
            assert tokens[1] == 5 + tokens[0] % 40
    until(lambda: at_rest(ranks), what="the wave ends")
    assert all(engine.progress().tokens_out > 100 for engine in ranks.engines)
