"""EngineHost and requests: every one that was admitted ends exactly once, whatever ids, aborts and errors do."""

import pytest

from muro.config import Limits
from muro.engine.events import Abort, Add
from muro.engine.interface import EngineInfo, StepResult, TakeAborts
from muro.errors import InvalidRequestError, OverloadedError, RequestFailedError
from muro.ids import ClientIndex
from muro.testing.harness import StepHarness, generate_request
from muro.wire.arrays import Tensor
from muro.wire.output import EngineCoreOutput, FinishReason
from muro.wire.request import PoolingParams
from muro.wire.stats import PrefillStats
from tests.support.scripted import Scripted, assert_nothing_left

ERROR, LENGTH = FinishReason.ERROR, FinishReason.LENGTH
C0, C1 = ClientIndex(0), ClientIndex(1)


# One request


def test_a_request_gets_its_deltas_and_one_final_output(harness: StepHarness, engine: Scripted) -> None:
    harness.submit(generate_request("a", (5, 6), max_tokens=3))
    harness.run()
    assert harness.tokens("a") == [5, 6, 5]
    assert [o.finish_reason for o in harness.outputs("a")] == [None, None, LENGTH]
    assert_nothing_left(harness, engine)


def test_the_first_output_says_how_long_the_prompt_was(harness: StepHarness, engine: Scripted) -> None:
    """Some front-ends count it by this alone; an engine need not know."""
    harness.submit(generate_request("a", (5, 6, 7), max_tokens=3))
    harness.run()
    assert [o.prefill_stats for o in harness.outputs("a")] == [PrefillStats(3, 3), None, None]


def test_what_an_engine_says_of_its_prompt_stands() -> None:
    class Knowing(Scripted):
        def step(self, take_aborts: TakeAborts) -> StepResult:
            result = super().step(take_aborts)
            for output in result.outputs:
                output.prefill_stats = PrefillStats(3, 1, 2, 2)
            return result

    harness = StepHarness(Knowing())
    harness.submit(generate_request("a", (5, 6, 7), max_tokens=1))
    harness.run()
    assert [o.prefill_stats for o in harness.outputs("a")] == [PrefillStats(3, 1, 2, 2)]


def test_messages_are_stamped(engine: Scripted) -> None:
    harness = StepHarness(engine)
    harness.clock.advance(12.5)
    harness.submit(generate_request("a", max_tokens=1))
    harness.run()
    assert {(r.message.engine_index, r.message.timestamp) for r in harness.messages} == {(0, 12.5)}


def test_outputs_for_ids_that_nobody_knows_vanish(harness: StepHarness, engine: Scripted) -> None:
    engine.ghosts = [EngineCoreOutput("ghost", [1]), EngineCoreOutput("ghost", [], finish_reason=LENGTH)]
    harness.submit(generate_request("a", max_tokens=2))
    harness.run()
    assert not harness.outputs("ghost")
    assert harness.finishes("a") == [LENGTH]


def test_nothing_follows_a_final_output(harness: StepHarness, engine: Scripted) -> None:
    harness.submit(generate_request("a", max_tokens=1))
    harness.step()
    engine.ghosts = [EngineCoreOutput("a", [1]), EngineCoreOutput("a", [], finish_reason=LENGTH)]
    harness.step()
    assert harness.finishes("a") == [LENGTH] and len(harness.outputs("a")) == 1


# What cannot be served


def test_what_no_engine_can_serve_is_refused_before_the_engine_sees_it(engine: Scripted) -> None:
    engine.max_model_len = 8
    harness = StepHarness(engine)
    neither = generate_request("neither")
    neither.sampling_params = None
    both = generate_request("both")
    both.pooling_params = PoolingParams()
    pooling = generate_request("pooling")
    pooling.sampling_params, pooling.pooling_params = None, PoolingParams(task="embed")
    no_prompt = generate_request("no prompt")
    no_prompt.prompt_token_ids = None
    embeds = generate_request("long embeds")
    embeds.prompt_token_ids, embeds.prompt_embeds = None, Tensor("float32", [8, 1], bytes(32))
    refused = [
        (neither, "validation_error"),
        (both, "validation_error"),
        (pooling, "unsupported_option"),
        (no_prompt, "validation_error"),
        (embeds, "prompt_too_long"),
        (generate_request("empty", ()), "validation_error"),
        (generate_request("long", range(8)), "prompt_too_long"),
        (generate_request("none wanted", max_tokens=0), "validation_error"),
    ]
    for request, code in refused:
        harness.submit(request)
        (output,) = harness.outputs(request.request_id)
        assert output.finish_reason is ERROR and output.error is not None
        assert output.error.code == code, request.request_id
    harness.submit(generate_request("fits", range(7)))
    harness.run()
    assert harness.finishes("fits") == [LENGTH]
    assert engine.added == ["fits"]
    assert_nothing_left(harness, engine)


def test_pooling_is_for_engines_that_pool() -> None:
    class Pooling(Scripted):
        def info(self) -> EngineInfo:
            return EngineInfo(supported_tasks=("embed",), max_model_len=4)

    harness = StepHarness(Pooling())
    request = generate_request("full", (1, 2, 3, 4))
    request.sampling_params, request.pooling_params = None, PoolingParams(task="embed")
    harness.submit(request)
    assert harness.host.num_live == 1, "a pooling request may fill the whole context"


def test_a_rejection_goes_to_its_client_and_names_the_request(harness: StepHarness) -> None:
    routed = harness.host.rejection(C1, "a", OverloadedError("full"))
    assert routed.client == C1 and routed.message.finished_requests == ["a"]
    (output,) = routed.message.outputs
    assert (output.request_id, output.finish_reason, output.new_token_ids) == ("a", ERROR, [])
    assert output.error is not None and (output.error.code, output.error.retryable) == ("overloaded", True)


def test_over_the_limit_a_request_ends_at_once_and_the_door_opens_again(engine: Scripted) -> None:
    harness = StepHarness(engine, limits=Limits(max_requests=1))
    harness.submit(generate_request("a", max_tokens=2))
    harness.submit(generate_request("b"))
    assert harness.finishes("b") == [ERROR]
    harness.run()
    harness.submit(generate_request("c"))
    harness.run()
    assert harness.finishes("c") == [LENGTH]
    assert_nothing_left(harness, engine)


def test_an_engine_that_refuses_a_request_loses_that_request_alone(harness: StepHarness, engine: Scripted) -> None:
    harness.submit(generate_request("a"))
    engine.refuse_add = RuntimeError("no room")
    harness.submit(generate_request("b"))
    engine.refuse_add = None
    harness.run()
    assert harness.finishes("a") == [LENGTH]
    (output,) = harness.outputs("b")
    assert output.error is not None and output.error.message == "RuntimeError: no room"
    assert_nothing_left(harness, engine)


# Steps that fail


@pytest.mark.parametrize("error", [RuntimeError("dead"), RequestFailedError("whose?"), MemoryError()])
def test_what_a_step_raises_ends_the_engine(harness: StepHarness, engine: Scripted, error: Exception) -> None:
    harness.submit(generate_request("a"))
    engine.fail_step = error
    with pytest.raises(type(error)):
        harness.step()


def test_a_step_that_gives_something_else_is_told_so(
    harness: StepHarness, engine: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.submit(generate_request("a"))
    monkeypatch.setattr(engine, "step", lambda _take_aborts: [])
    with pytest.raises(TypeError, match="gave list, not a StepResult"):
        harness.step()


def test_an_error_that_names_a_request_nobody_knows_ends_the_engine(harness: StepHarness, engine: Scripted) -> None:
    harness.submit(generate_request("a"))
    engine.fail_step = RequestFailedError("?", request_id="b")
    with pytest.raises(RequestFailedError):
        harness.step()


def test_an_error_that_names_its_request_ends_that_request(harness: StepHarness, engine: Scripted) -> None:
    harness.submit(generate_request("a"))
    harness.submit(generate_request("b"))
    engine.fail_step = InvalidRequestError("bad grammar", request_id="a")
    harness.run()
    assert (harness.finishes("a"), harness.finishes("b")) == ([ERROR], [LENGTH])
    assert harness.outputs("a")[-1].error is not None
    assert_nothing_left(harness, engine)


def test_an_error_of_a_request_whose_abort_the_step_took_is_nobodys(harness: StepHarness, engine: Scripted) -> None:
    harness.submit(generate_request("a"))
    harness.submit(generate_request("b"))
    harness.abort_during_step("a")
    engine.fail_step = RequestFailedError("late", request_id="a")
    harness.run()
    assert (harness.outputs("a"), harness.finishes("b")) == ([], [LENGTH])
    assert_nothing_left(harness, engine)


# Ids


def test_an_id_in_flight_ends_as_a_whole_when_it_comes_again(harness: StepHarness, engine: Scripted) -> None:
    harness.submit(generate_request("a"))
    harness.step()
    harness.submit(generate_request("a"))
    harness.run()
    assert harness.finishes("a") == [ERROR]
    assert "already in flight" in harness.outputs("a")[-1].error.message  # type: ignore[union-attr]
    assert_nothing_left(harness, engine)


@pytest.mark.cases
def test_two_clients_may_use_the_same_id(harness: StepHarness, engine: Scripted) -> None:
    harness.submit(generate_request("a", (1,), max_tokens=2), client=0)
    harness.submit(generate_request("a", (2,), max_tokens=3), client=1)
    harness.run()
    assert harness.tokens("a", client=0) == [1, 1]
    assert harness.tokens("a", client=1) == [2, 2, 2]
    assert harness.finishes("a", client=0) == harness.finishes("a", client=1) == [LENGTH]
    assert_nothing_left(harness, engine)


def test_no_choice_of_ids_makes_two_requests_one(harness: StepHarness, engine: Scripted) -> None:
    """The host renames an id that another client uses; that name may be taken as well."""
    for client, request_id in ((0, "a"), (0, "a#1"), (0, "a#2"), (1, "a"), (1, "a#1"), (2, "a"), (2, "a#1#2")):
        harness.submit(generate_request(request_id, (client + 1,), max_tokens=2), client=client)
    assert harness.host.num_live == 7 == len(engine.held)
    harness.run()
    for client, request_id in ((0, "a"), (0, "a#1"), (0, "a#2"), (1, "a"), (1, "a#1"), (2, "a"), (2, "a#1#2")):
        assert harness.tokens(request_id, client=client) == [client + 1] * 2
    assert_nothing_left(harness, engine)


def test_one_clients_abort_leaves_the_others_request_alone(harness: StepHarness, engine: Scripted) -> None:
    for client in (0, 1):
        harness.submit(generate_request("a", (client + 1,)), client=client)
    harness.abort("a", client=0)
    harness.run()
    assert not harness.outputs("a", client=0)
    assert harness.tokens("a", client=1) == [2] * 4
    assert_nothing_left(harness, engine)


def test_a_peer_that_speaks_for_others(harness: StepHarness, engine: Scripted) -> None:
    """Answers go to the client that the request names; the abort comes from where the request came from."""
    harness.admission.admit(0)
    harness.host.apply(Add(C1, C0, "a", 0, generate_request("a")))
    harness.step()
    assert [routed.client for routed in harness.messages] == [C1]
    harness.abort("a", client=1)
    assert harness.host.num_live == 1
    harness.abort("a", client=0)
    assert_nothing_left(harness, engine)


# Aborts


def test_a_clients_abort_gives_no_output(harness: StepHarness, engine: Scripted) -> None:
    harness.submit(generate_request("a"))
    harness.step()
    before = len(harness.outputs("a"))
    harness.abort("a")
    harness.run()
    assert len(harness.outputs("a")) == before and not harness.finishes("a")
    assert_nothing_left(harness, engine)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_aborts_are_idempotent_and_unknown_ids_nobodys(harness: StepHarness, engine: Scripted, times: int) -> None:
    harness.submit(generate_request("a"))
    for _ in range(times):
        harness.abort("a", "unknown", "a")
        harness.abort_during_step("a")
    assert engine.aborted == ["a"], "the engine is asked once, and never for what it does not hold"
    assert_nothing_left(harness, engine)


def test_an_abort_takes_effect_in_the_step_in_which_it_arrives(harness: StepHarness, engine: Scripted) -> None:
    harness.submit(generate_request("a"))
    harness.submit(generate_request("b"))
    harness.abort_during_step("a")
    harness.step()
    assert not harness.outputs("a") and len(harness.outputs("b")) == 1
    assert engine.held == {"b"}


@pytest.mark.cases
def test_an_id_that_comes_again_right_after_its_abort_is_a_new_request(harness: StepHarness) -> None:
    """The abort lies on both lanes; whichever is read first, it must not hit the second request."""
    for order in ("ordered lane first", "fast lane first"):
        harness.submit(generate_request("a", (1,), max_tokens=9))
        harness.step()
        abort = Abort(C0, ["a"])
        harness.host.abort_soon(abort)
        if order == "fast lane first":
            harness.step()
        harness.messages.clear()
        harness.host.apply(abort)
        harness.submit(generate_request("a", (2,), max_tokens=3))
        harness.run()
        assert harness.tokens("a") == [2, 2, 2], order
        harness.messages.clear()


def test_the_fast_lane_is_cleared_when_idle(harness: StepHarness) -> None:
    harness.abort_during_step("a")  # unknown by then
    assert harness.host.went_idle() == []
    harness.submit(generate_request("a"))
    harness.host.step()
    assert harness.host.num_live == 1


def test_an_abort_that_arrives_before_its_request_was_applied(harness: StepHarness, engine: Scripted) -> None:
    abort = Abort(C0, ["a"])
    harness.host.abort_soon(abort)
    harness.submit(generate_request("b"))
    harness.step()  # takes the fast abort, which finds nothing
    harness.submit(generate_request("a"))
    harness.host.apply(abort)
    harness.run()
    assert not harness.outputs("a")
    assert_nothing_left(harness, engine)
