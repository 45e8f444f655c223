"""What an engine is asked, a case each. Pure.

A case is a function that gets an `Exam` whose engine has nothing to do, and leaves it so. It returns what was seen, or
raises `Broken` with it. Each looks at one demand alone, so that one fault fails one case. The rough ones are in
`engine_rough`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from muro.errors import MuroError
from muro.probe.check.engine_exam import FENCE, PROMPT, Exam
from muro.probe.check.report import Broken, Case, NotAsked
from muro.wire.ops import OPS, WAKE_UP
from muro.wire.output import FinishReason, UtilityOutput

Examine = Callable[[Exam], str]

CASES: Final[list[tuple[Case, Examine]]] = []
"""All cases, in the order in which they are asked."""

FOREVER: Final = 100_000
"""Tokens of a request that is not waited for."""
LONGEST_PROMPT: Final = 1 << 21
QUIET_S: Final = 0.3
"""How long nothing may come before it is taken for silence."""


def case(why: str) -> Callable[[Examine], Examine]:
    """Put a function on the list, under its own name; its docstring says what must hold."""

    def enlist(examine: Examine) -> Examine:
        CASES.append((Case(examine.__name__, examine.__doc__ or "", why), examine))
        return examine

    return enlist


@case("Front-ends in Python call both before they open their door.")
def first_calls(exam: Exam) -> str:
    """reset_mm_cache and get_supported_tasks succeed."""
    _value(exam.call("reset_mm_cache"), "reset_mm_cache")
    tasks = _value(exam.call(FENCE), FENCE)
    if not isinstance(tasks, list) or not tasks or not all(isinstance(task, str) for task in tasks):
        raise Broken(f"{FENCE} gave {tasks!r:.80}")
    if "generate" not in tasks:
        raise Broken(f"{FENCE} gave {', '.join(tasks)}; the cases that follow need generate")
    return ", ".join(tasks)


@case("It is the caller's only way to tell answers apart; Python's ids do not fit a signed integer.")
def call_ids(exam: Exam) -> str:
    """The id of a call comes back unchanged, up to 64 bits."""
    for call_id in (1, 2**32, 2**63 + 5, 2**64 - 1):
        exam.begin_call(FENCE, call_id=call_id)
        exam.until(lambda: bool(exam.watch.answers), f"no answer to call {call_id}")
        (_, came), _ = exam.watch.answers.popitem()
        if came != call_id:
            raise Broken(f"call {call_id} was answered as {came}")
    return "1 to 2^64 - 1"


@case("A newer front-end calls what an older engine does not have.")
def unknown_method(exam: Exam) -> str:
    """A call of an unknown method is answered with a failure."""
    answer = exam.call("no_such_method_of_any_engine")
    if answer.failure_message is None:
        raise Broken("it was answered as a success")
    return answer.failure_message


@case("Front-ends convert them; Rust takes nil for nothing but nil.")
def call_types(exam: Exam) -> str:
    """Answers of calls have the types of their operations."""
    seen = []
    for method, args in (
        ("is_sleeping", []),
        ("is_scheduler_paused", []),
        ("reset_prefix_cache", [False, False]),
        ("reset_encoder_cache", []),
        ("list_loras", []),
    ):
        answer = exam.call(method, *args)
        if answer.failure_message is not None:
            continue
        try:
            OPS[method].check_reply(answer.result[1])
        except MuroError as error:
            raise Broken(error.message) from error
        seen.append(method)
    if not seen:
        raise NotAsked("it offers none of the operations")
    return ", ".join(seen)


@case("Users pay for tokens, and contexts are planned by them.")
def max_tokens(exam: Exam) -> str:
    """A request gets exactly max_tokens tokens, and ends with LENGTH."""
    for limit in (1, 2, 7):
        course = exam.run(exam.request(max_tokens=limit))
        if len(course.tokens) != limit or course.finish is not FinishReason.LENGTH:
            raise Broken(f"{len(course.tokens)} tokens and {ending(course.finish)} for max_tokens={limit}")
    return "1, 2 and 7 tokens"


@case("Engines serve many at once.")
def together(exam: Exam) -> str:
    """Eight requests at once all end."""
    exam.finish(*[exam.add(exam.request([3 + n, 4, 5], max_tokens=5 + n)) for n in range(8)])
    return "8 requests"


@case("An engine serves several front-end processes, each with an output socket of its own.")
def clients(exam: Exam) -> str:
    """Each front-end process gets the outputs of its own requests, and no others."""
    number = len(exam.link.addresses.inputs)
    courses = [exam.add(exam.request(), client) for client in range(number)]
    exam.finish(*courses)
    for client in range(number):
        exam.call(FENCE, client=client)
    return f"{number} processes"


@case("A front-end of another release writes fewer or more, and leaves defaults out.")
def other_lengths(exam: Exam) -> str:
    """An ADD of 9 elements, one of 30 and one with unknown sampling keys are served."""

    def spoil(tree: list[Any]) -> None:
        tree[3]["a_key_of_the_future"] = {"x": 1}
        tree[3]["temperature"] = 0  # an integer where a number is expected

    changes: list[Callable[[list[Any]], Any]] = [
        lambda tree: tree.__delitem__(slice(9, None)),
        lambda tree: tree.extend([None] * (30 - len(tree))),
        spoil,
    ]
    for change in changes:
        course = exam.add(exam.request(), changes=change)
        exam.finish(course)
        if course.finish is not FinishReason.LENGTH:
            raise Broken(f"one of them ended with {ending(course.finish)}")
    return "all three"


@case("It is what a seed is for.")
def seed(exam: Exam) -> str:
    """The same seed gives the same tokens."""
    _needs_sampling(exam)
    first, second = (exam.run(exam.request(temperature=1.0, seed=7, max_tokens=8)).tokens for _ in range(2))
    if first != second:
        raise Broken(f"{first} and {second}")
    return f"{first}, twice"


@case("The engine alone can stop at a token: the front-end sees it too late.")
def stop_token(exam: Exam) -> str:
    """A stop token ends its request with STOP and itself as the reason; it is among the tokens."""
    _needs_sampling(exam)
    stop, before = _some_token(exam)
    course = exam.run(exam.request(max_tokens=8, stop_token_ids=[stop], all_stop_token_ids=[stop]))
    if course.finish is not FinishReason.STOP or course.stop_reason != stop:
        raise Broken(f"{ending(course.finish)} with reason {course.stop_reason!r}; the stop token was {stop}")
    if course.tokens != before:
        raise Broken(f"tokens {course.tokens} instead of {before}")
    return f"{before}, stopped by {stop}"


@case("An engine has no tokenizer; it stops at the id that the request names.")
def eos(exam: Exam) -> str:
    """The end-of-sequence token ends its request with STOP and no reason."""
    _needs_sampling(exam)
    stop, before = _some_token(exam)
    course = exam.run(exam.request(max_tokens=8, ignore_eos=False, eos_token_id=stop, all_stop_token_ids=[stop]))
    if course.finish is not FinishReason.STOP or course.stop_reason is not None:
        raise Broken(f"{ending(course.finish)} with reason {course.stop_reason!r}")
    if course.tokens != before:
        raise Broken(f"tokens {course.tokens} instead of {before}")
    return f"{before}"


@case("Callers who ask for so many get so many.")
def min_tokens(exam: Exam) -> str:
    """No stop token ends a request before it has min_tokens."""
    _needs_sampling(exam)
    stop, before = _some_token(exam)
    least = len(before) + 2
    course = exam.run(exam.request(max_tokens=16, min_tokens=least, stop_token_ids=[stop], all_stop_token_ids=[stop]))
    if len(course.tokens) < least:
        raise Broken(f"{len(course.tokens)} tokens for min_tokens={least}")
    return f"{len(course.tokens)} tokens for min_tokens={least}"


@case("Callers see them; a front-end in Rust refuses what has another shape.")
def logprobs(exam: Exam) -> str:
    """Log-probabilities have their shapes; ranks count from 1."""
    course = exam.run(exam.request(logprobs=2))
    if not course.logprobs:
        raise NotAsked("none came, although they were asked for")
    if course.logprobs != course.outputs:
        raise Broken(f"with {course.logprobs} of {course.outputs} outputs")
    return f"with all {course.outputs} outputs"


@case("Silently shortening it would answer another question.")
def long_prompt(exam: Exam) -> str:
    """A prompt longer than the model ends with ERROR."""
    if (longest := exam.max_model_len) is None:
        raise NotAsked("its ready response does not say how long its model is")
    length = longest + 1
    if length > LONGEST_PROMPT:
        raise NotAsked(f"a prompt of {length} tokens is too long to try")
    course = exam.run(exam.request([5] * length))
    if course.finish is not FinishReason.ERROR:
        raise Broken(f"{ending(course.finish)} after {len(course.tokens)} tokens")
    return f"ERROR for {length} tokens"


@case("A user who leaves should cost nothing.")
def abort(exam: Exam) -> str:
    """After its client's ABORT nothing more of a request comes, and its id can be used again."""
    request = running(exam)
    exam.abort(request.request_id)
    exam.fence()
    late = exam.watch.courses[0, request.request_id]
    outputs = late.outputs
    exam.listen(QUIET_S)
    exam.settle(request.request_id)
    if late.outputs > outputs + 1:
        raise Broken(f"{late.outputs - outputs} outputs came in the {QUIET_S:g} s after it was done")
    again = exam.request(max_tokens=3)
    again.request_id = request.request_id
    course = exam.run(again)
    if course.finish is not FinishReason.LENGTH:
        raise Broken(f"the id again: {len(course.tokens)} tokens and {ending(course.finish)}")
    return "silence, and the id was served again"


@case("Front-ends abort more than once, and what has ended meanwhile.")
def abort_again(exam: Exam) -> str:
    """ABORTs of aborted, ended and unknown requests are ignored."""
    request, ended = running(exam), exam.request()
    exam.run(ended)
    exam.abort(request.request_id, request.request_id)
    exam.abort(request.request_id, ended.request_id, "nobody-knows-this-id")
    exam.settle(request.request_id)
    exam.fence()
    return "ignored"


@case("A front-end updates weights meanwhile.")
def pause(exam: Exam) -> str:
    """pause_scheduler(abort) ends what runs with ABORT, holds back what comes, and resume_scheduler lets it go on."""
    request = running(exam)
    course = exam.watch.courses[0, request.request_id]
    answer = exam.call("pause_scheduler", "abort", True)
    if answer.failure_message is not None:
        exam.abort(request.request_id)
        exam.settle(request.request_id)
        raise NotAsked(f"it cannot pause: {answer.failure_message:.80}")
    held = exam.add(exam.request())
    is_paused = exam.call("is_scheduler_paused")
    exam.listen(QUIET_S)
    came = held.outputs
    exam.call("resume_scheduler")
    exam.finish(held)
    if course.finish is not FinishReason.ABORT:
        raise Broken(f"the running request: {ending(course.finish)}")
    if is_paused.failure_message is None and is_paused.result[1] is not True:
        raise Broken(f"is_scheduler_paused gave {is_paused.result[1]!r}")
    if came:
        raise Broken("a request that came during the pause was served")
    return "ABORT, silence, and the request that waited was served"


@case("Front-ends in Rust fail on a bool up to 0.30, and on nil from 0.31 on.")
def wake_up(exam: Exam) -> str:
    """wake_up answers nil up to release 0.30, a bool from 0.31 on."""
    asleep = exam.call("sleep", 1, "abort")
    if asleep.failure_message is not None:
        asleep = exam.call("sleep", 0, "abort")
    answer = exam.call(WAKE_UP.name, None)
    if asleep.failure_message is not None or answer.failure_message is not None:
        raise NotAsked(f"it cannot sleep: {asleep.failure_message or answer.failure_message:.80}")
    value = answer.result[1]
    wanted = "a bool" if exam.layout.wake_up_gives_bool else "nil"
    if isinstance(value, bool) is not exam.layout.wake_up_gives_bool:
        raise Broken(f"{value!r}; for release {exam.layout.name} it is {wanted}")
    return f"{value!r}"


def running(exam: Exam) -> Any:
    """A request that has given a token and goes on."""
    room = FOREVER if exam.max_model_len is None else exam.max_model_len - 64
    request = exam.request(max_tokens=max(1, min(FOREVER, room)))
    course = exam.add(request)
    exam.until(lambda: course.outputs > 0, "no first token of a request")
    return request


def _some_token(exam: Exam) -> tuple[int, list[int]]:
    """A token that greedy decoding gives, and all tokens up to its first occurrence."""
    tokens = exam.run(exam.request(max_tokens=5)).tokens
    if not tokens:
        raise Broken("no tokens came")
    first = tokens.index(tokens[-1])
    return tokens[first], tokens[: first + 1]


def _needs_sampling(exam: Exam) -> None:
    if exam.repeats is None:
        exam.repeats = exam.run(exam.request(max_tokens=len(PROMPT))).tokens == list(PROMPT)
    if exam.repeats:
        raise NotAsked("this engine repeats its prompt: it chooses no tokens")


def _value(answer: UtilityOutput, method: str) -> Any:
    if answer.failure_message is not None:
        raise Broken(f"{method}: {answer.failure_message:.120}")
    return answer.result[1]


def ending(finish: FinishReason | None) -> str:
    """How a request ended, in a word."""
    return "no end" if finish is None else finish.name
