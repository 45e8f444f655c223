"""What an engine may never send, whatever it was asked: rules for each message to a front-end. Pure.

A `Watch` takes every message of an engine as frames, notes which rules it broke, and keeps what the cases want to know:
the course of each request, the answers of calls, whether the death notice came. The cases `clients` and `logprobs` of
`engine_cases` are judged here, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from muro.errors import MuroError
from muro.probe.check.report import Case, Findings
from muro.wire.codec import OutputDecoder
from muro.wire.frames import ENGINE_CORE_DEAD, Frame
from muro.wire.output import EngineCoreOutput, EngineCoreOutputs, FinishReason, Logprobs, UtilityOutput
from muro.wire.releases import Layout

RULES: Final = [
    Case("readable", "Every message can be read.", "A front-end in Rust ends at the first one that cannot."),
    Case(
        "layout",
        "Messages and outputs are arrays that the front-end's release reads.",
        "Positions moved in 0.26, and up to 0.30 a front-end in Rust refuses elements that it does not know.",
    ),
    Case("not_empty", "No message is empty.", "For a front-end in Rust an empty one is fatal."),
    Case(
        "one_kind",
        "A message holds a batch, or the answer of a call, or a wave notice.",
        "A front-end in Python reads the answer and drops the rest; in Rust a mixture is fatal.",
    ),
    Case("engine_index", "Messages carry the rank of the identity.", "Load balancing counts by it."),
    Case("one_end", "A request ends once, and nothing follows its end.", "Its stream is closed by then."),
    Case(
        "prefill",
        "Prefill statistics come once, with the first output.",
        "Front-ends take the usage of prompt tokens from them.",
    ),
    Case(
        "stats",
        "Scheduler statistics have all compulsory keys.",
        "A front-end in Rust does not read a message with fewer.",
    ),
    Case(
        "answers",
        "The answer of a call is the pair [nil, value], or a text and nil.",
        "A bare nil ends a Python front-end's reader; type information is refused.",
    ),
    Case(
        "death_notice",
        "A death notice is one frame, ENGINE_CORE_DEAD, on every output socket.",
        "Who does not get it waits for ever.",
    ),
]

STATS_KEYS = (
    "num_running_reqs",
    "num_waiting_reqs",
    "step_counter",
    "current_wave",
    "kv_cache_usage",
    "prefix_cache_stats",
    "kv_cache_eviction_events",
)
PREFIX_KEYS = (
    "reset",
    "requests",
    "queries",
    "hits",
    "preempted_requests",
    "preempted_queries",
    "preempted_hits",
)
UNKNOWN = -1
"""The length of a prompt of which nothing is known."""
_BATCH = (1, 2, 5)
_ANSWER, _WAVES = 4, (6, 7)


class Course(msgspec.Struct):
    """One request: what was asked and what has come."""

    prompt: int
    """Tokens of its prompt, or `UNKNOWN`."""
    tokens: list[int] = []
    outputs: int = 0
    finish: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: int = 0
    """Outputs with log-probabilities."""
    settled: bool = False
    """Whether outputs are no news any more: the front-end has aborted it, and what was under way has come."""


class Watch:
    """Takes what one engine sends to all its clients.

    Args:
        findings: where broken rules are noted.
        layout: of the release for which the engine is examined.
        rank: what its identity says.
    """

    def __init__(self, findings: Findings, layout: Layout, rank: int) -> None:
        self.courses: dict[tuple[int, str], Course] = {}
        self.answers: dict[tuple[int, int], UtilityOutput] = {}
        self.dead: set[int] = set()
        """Clients that were told of the engine's death."""
        self.messages = 0
        self._findings = findings
        self._layout = layout
        self._rank = rank
        self._decoder = OutputDecoder(layout)

    def take(self, client: int, frames: Sequence[Frame]) -> None:
        """A message that came on the output socket of a client."""
        self.messages += 1
        if bytes(frames[0][: len(ENGINE_CORE_DEAD)]) == ENGINE_CORE_DEAD:
            self._notice(client, frames)
            return
        try:
            tree = msgspec.msgpack.decode(frames[0], ext_hook=lambda code, data: data)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            self._findings.fails("readable", f"not msgpack: {error}")
            return
        if not isinstance(tree, list):
            self._findings.fails("readable", f"a {type(tree).__name__} instead of an array")
            return
        self._check_tree(tree)
        try:
            message = self._decoder.decode(frames)
        except MuroError as error:
            if not self._findings.failed("stats"):
                self._findings.fails("readable", error.message)
            return
        self._findings.holds("readable", f"{self.messages} messages")
        if isinstance(message, EngineCoreOutputs):
            self._take_message(client, message)

    def _notice(self, client: int, frames: Sequence[Frame]) -> None:
        self.dead.add(client)
        if len(frames) != 1 or len(frames[0]) != len(ENGINE_CORE_DEAD):
            sizes = [len(frame) for frame in frames]
            self._findings.fails("death_notice", f"frames of {sizes} bytes; it is one of {len(ENGINE_CORE_DEAD)}")

    def _check_tree(self, tree: list[Any]) -> None:
        held = [any(_is_set(tree, i) for i in _BATCH), _is_set(tree, _ANSWER), *(_is_set(tree, i) for i in _WAVES)]
        if not any(held):
            self._findings.fails("not_empty", f"message {self.messages} holds nothing")
        self._findings.holds("not_empty", f"none of {self.messages} messages")
        if sum(held) > 1:
            names = [n for n, h in zip(("batch", "answer", "wave_complete", "start_wave"), held, strict=True) if h]
            self._findings.fails("one_kind", f"message {self.messages} holds {' and '.join(names)}")
        self._findings.holds("one_kind", f"all of {self.messages} messages")
        if fault := layout_fault(tree, self._layout):
            self._findings.fails("layout", fault)
        self._findings.holds("layout", f"all of {self.messages} messages, as release {self._layout.name} reads them")
        if len(tree) > 2 and isinstance(tree[2], dict):
            self._check_stats(tree[2])
        if len(tree) > _ANSWER and isinstance(tree[_ANSWER], list):
            self._check_answer(tree[_ANSWER])

    def _check_stats(self, stats: dict[str, Any]) -> None:
        missing = [key for key in STATS_KEYS if key not in stats]
        prefix = stats.get("prefix_cache_stats")
        if isinstance(prefix, dict):
            missing += [f"prefix_cache_stats.{key}" for key in PREFIX_KEYS if key not in prefix]
        if missing:
            self._findings.fails("stats", f"without {', '.join(missing)}")
        self._findings.holds("stats", "complete wherever they came")

    def _check_answer(self, answer: list[Any]) -> None:
        failure, result = (*answer[1:3], None, None)[:2]
        if failure is None and not (isinstance(result, list) and len(result) == 2 and result[0] is None):
            shown = repr(result)
            self._findings.fails("answers", f"a success with {shown[:80]}")
        if failure is not None and (not isinstance(failure, str) or result is not None):
            self._findings.fails("answers", f"a failure with {failure!r:.40} and {result!r:.40}")
        self._findings.holds("answers", "wherever one came")

    def _take_message(self, client: int, message: EngineCoreOutputs) -> None:
        if message.engine_index != self._rank:
            self._findings.fails("engine_index", f"{message.engine_index}; the identity says {self._rank}")
        self._findings.holds("engine_index", f"{self._rank} in all messages")
        if message.utility_output is not None:
            self.answers[client, message.utility_output.call_id] = message.utility_output
        for output in message.outputs:
            course = self.courses.get((client, output.request_id))
            if course is None:
                self._findings.fails("clients", f"client {client} got news of {output.request_id[:40]!r}, not its own")
                continue
            if not course.settled:
                self._take_output(course, output)

    def _take_output(self, course: Course, output: EngineCoreOutput) -> None:
        if course.finish is not None:
            again = "a second end" if output.finish_reason is not None else "more"
            self._findings.fails("one_end", f"{again} of {output.request_id[:40]!r} after its end")
            return
        if output.prefill_stats is not None:
            told = output.prefill_stats.num_prompt_tokens
            if course.outputs:
                self._findings.fails("prefill", f"with output {course.outputs + 1} of a request")
            elif told != course.prompt != UNKNOWN:
                self._findings.fails("prefill", f"{told} prompt tokens for a prompt of {course.prompt}")
            self._findings.holds("prefill", "with the first output, and the prompt's length")
        for logprobs, positions in (
            (output.new_logprobs, len(output.new_token_ids)),
            (output.new_prompt_logprobs_tensors, course.prompt - 1),
        ):
            if logprobs is not None:
                course.logprobs += 1
                if fault := logprobs_fault(logprobs, positions):
                    self._findings.fails("logprobs", fault)
                self._findings.holds("logprobs", "wherever they came")
        course.outputs += 1
        course.tokens.extend(output.new_token_ids)
        course.finish, course.stop_reason = output.finish_reason, output.stop_reason
        if course.finish is not None:
            self._findings.holds("one_end", f"of {sum(c.finish is not None for c in self.courses.values())} requests")


def layout_fault(tree: list[Any], layout: Layout) -> str:
    """What a front-end of this release could not read in a message's arrays; empty if nothing."""
    if len(tree) > layout.envelope_fields:
        return f"a message of {len(tree)} elements; release {layout.name} reads {layout.envelope_fields}"
    most = len(layout.output_fields) if layout.minor <= 30 else None
    for row in tree[1] if len(tree) > 1 and isinstance(tree[1], list) else []:
        if not isinstance(row, list) or len(row) < 2:
            return f"an output that is {str(row)[:40]}"
        if most is not None and len(row) > most:
            return f"an output of {len(row)} elements; release {layout.name} reads {most}"
        if layout.minor >= 26 and len(row) == 13 and any(value is not None for value in row[9:]):
            return f"an output of 13 elements that reach past position 9: the layout of 0.25, not of {layout.name}"
        members = len(row[3]) if len(row) > 3 and isinstance(row[3], list) else 0
        if members > (4 if layout.minor < 29 else 5):
            return f"prompt log-probabilities of {members} members"
    return ""


def logprobs_fault(logprobs: Logprobs, positions: int) -> str:
    """What is wrong with log-probabilities of so many positions; empty if nothing."""
    shape = logprobs.ids.shape
    if len(shape) != 2 or shape[0] != positions or shape[1] < 1:
        return f"ids of shape {shape} for {positions} positions"
    if logprobs.values.shape != shape or logprobs.ranks.shape != [positions]:
        return f"values of shape {logprobs.values.shape} and ranks of shape {logprobs.ranks.shape} for ids of {shape}"
    if logprobs.cu is not None:
        return "the fourth member is not nil"
    if logprobs.values.dtype not in ("<f4", "float32"):
        return f"values are {logprobs.values.dtype}"
    width = {"<i4": 4, "int32": 4, "<i8": 8, "int64": 8}.get(logprobs.ranks.dtype)
    if width is None:
        return f"ranks are {logprobs.ranks.dtype}"
    data = bytes(logprobs.ranks.data)
    ranks = [int.from_bytes(data[at : at + width], "little", signed=True) for at in range(0, len(data), width)]
    return "" if all(rank >= 1 for rank in ranks) else f"rank {min(ranks)}"


def _is_set(tree: list[Any], index: int) -> bool:
    return len(tree) > index and tree[index] is not None and tree[index] != []
