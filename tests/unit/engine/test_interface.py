"""The defaults that an engine inherits, and the rule for how many tokens a request may get."""

import pytest

from muro.engine.interface import Engine, EngineInfo, operation
from muro.engine.operations import declared_operations
from muro.testing.harness import generate_request


class Small(Engine):
    def info(self) -> EngineInfo:
        return EngineInfo(max_model_len=10)


@pytest.mark.parametrize(
    ("prompt", "wanted", "limit"), [(3, None, 7), (3, 5, 5), (3, 100, 7), (10, None, 1), (12, 4, 1), (9, 1, 1)]
)
def test_token_limit(prompt: int, wanted: int | None, limit: int) -> None:
    assert Small().token_limit(generate_request("a", range(prompt), max_tokens=wanted)) == limit


def test_token_limit_without_sampling_parameters() -> None:
    request = generate_request("a", (1, 2))
    request.sampling_params = None
    assert Small().token_limit(request) == 8


def test_what_may_be_left_out_has_a_harmless_default() -> None:
    engine = Engine()
    request = generate_request("a")
    assert engine.info() == EngineInfo()
    assert engine.preprocess(request) is request
    assert (engine.stats(), engine.collective(), engine.phase()) == (None, None, None)
    engine.execute_dummy_batch()
    engine.on_executor_failure(lambda cause: None)
    engine.shutdown()
    assert declared_operations(engine) == {}


@pytest.mark.parametrize("missing", ["add_request", "abort_requests", "step", "has_work"])
def test_what_must_be_defined_says_so(missing: str) -> None:
    arguments = {"add_request": ("a", None), "abort_requests": ([],), "step": (tuple,), "has_work": ()}
    with pytest.raises(NotImplementedError, match=f"Small must define {missing}"):
        getattr(Small(), missing)(*arguments[missing])


def test_a_mark_changes_nothing_else() -> None:
    def method() -> int:
        return 3

    assert operation(method) is method and method() == 3
