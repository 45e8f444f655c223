"""What a client that reads too slowly has not been sent yet. Pure.

While a client's bytes in flight are over the limit its messages are held here and made smaller: statistics are
dropped first, then the deltas of each request are merged into one, whatever the number of steps. If even that
grows over the limit, the client's requests are given up: their tokens are dropped and each ends with ABORT; and
of the answers that wait only the news remains that they are lost.
"""

from __future__ import annotations

from typing import Any

import msgspec

from muro.engine.events import Routed
from muro.wire.arrays import Tensor
from muro.wire.output import EngineCoreOutput, EngineCoreOutputs, FinishReason, Logprobs, UtilityOutput

OUTPUT_BYTES = 64
"""Assumed size of one output beside its tokens."""
TOKEN_BYTES = 4
LOST_ANSWER = "the answer was given up: this front-end did not read what the engine sent"


class Backlog:
    """Messages held for one client, merged."""

    def __init__(self) -> None:
        self._outputs: dict[str, EngineCoreOutput] = {}
        self._apart: list[Routed] = []
        self._finished: list[str] = []
        self._latest: Routed | None = None
        self.size = 0
        """Estimated bytes."""

    def __bool__(self) -> bool:
        return self._latest is not None

    def add(self, routed: Routed) -> None:
        """Hold one message."""
        message = routed.message
        self._latest = routed
        if message.utility_output is not None or message.wave_complete is not None or message.start_wave is not None:
            self._apart.append(routed)
            self.size += OUTPUT_BYTES + _weight(message.utility_output)
            return
        self._finished += message.finished_requests or ()
        for output in message.outputs:
            self._merge(output)

    def take(self) -> list[Routed]:
        """Everything that was held, in an order that keeps each request's own; empties the backlog."""
        latest, apart = self._latest, self._apart
        taken = []
        if latest is not None and self._outputs:
            merged = EngineCoreOutputs(
                engine_index=latest.message.engine_index,
                outputs=list(self._outputs.values()),
                timestamp=latest.message.timestamp,
                finished_requests=self._finished or None,
            )
            taken.append(Routed(latest.client, merged))
        taken += apart
        self._outputs, self._apart, self._finished, self._latest, self.size = {}, [], [], None, 0
        return taken

    def give_up(self) -> list[str]:
        """Drop all tokens and answers; every request held here ends with ABORT, unless it had ended.

        Returns the ids of those that had not.
        """
        given_up = []
        for request_id, output in self._outputs.items():
            if output.finish_reason is None:
                given_up.append(request_id)
            reason = output.finish_reason if output.finish_reason is not None else FinishReason.ABORT
            self._outputs[request_id] = EngineCoreOutput(request_id, [], finish_reason=reason)
        for routed in self._apart:
            answer = routed.message.utility_output
            if answer is not None and answer.failure_message is None:
                routed.message.utility_output = UtilityOutput(answer.call_id, LOST_ANSWER, None)
        self.size = OUTPUT_BYTES * (len(self._outputs) + len(self._apart))
        return given_up

    def _merge(self, new: EngineCoreOutput) -> None:
        held = self._outputs.get(new.request_id)
        self.size += TOKEN_BYTES * len(new.new_token_ids)
        for logprobs in (new.new_logprobs, new.new_prompt_logprobs_tensors):
            if logprobs is not None:
                self.size += sum(len(part.data) for part in (logprobs.ids, logprobs.values, logprobs.ranks))
        if held is None:
            self._outputs[new.request_id] = new
            self.size += OUTPUT_BYTES
            return
        if held.finish_reason is not None:
            return  # given up; nothing may follow the last output
        self._outputs[new.request_id] = _join_outputs(held, new)


def _join_outputs(held: EngineCoreOutput, new: EngineCoreOutput) -> EngineCoreOutput:
    """One output that says what two said: deltas joined, of all else the later word, or the only one."""
    said = {name: value for name in new.__struct_fields__ if (value := getattr(new, name)) is not None}
    said |= {
        "new_token_ids": held.new_token_ids + new.new_token_ids,
        "new_logprobs": _join_logprobs(held.new_logprobs, new.new_logprobs),
        "events": (held.events or []) + (new.events or []) or None,
        "num_nans_in_logits": held.num_nans_in_logits + new.num_nans_in_logits,
        "new_sampling_mask": None,  # per position, and cannot be joined
        "routed_experts": None,  # likewise
    }
    return msgspec.structs.replace(held, **said)


def _join_logprobs(held: Logprobs | None, new: Logprobs | None) -> Logprobs | None:
    """Positions of both, in order. Without new tokens a last output carries none."""
    if held is None or new is None:
        return held or new
    return Logprobs(_join(held.ids, new.ids), _join(held.values, new.values), _join(held.ranks, new.ranks))


def _join(held: Tensor, new: Tensor) -> Tensor:
    """Concatenate along the first axis; all else is equal for the outputs of one request."""
    return Tensor(held.dtype, [held.shape[0] + new.shape[0], *held.shape[1:]], bytes(held.data) + bytes(new.data))


def _weight(value: Any) -> int:
    """About how many bytes an answer has: its texts and buffers, and eight for everything else."""
    total, left = 0, [value]
    while left:
        item = left.pop()
        match item:
            case bytes() | bytearray() | str():
                total += len(item)
            case dict():
                left += item.keys()
                left += item.values()
            case list() | tuple() | set() | frozenset():
                left += item
            case msgspec.Struct():
                left += (getattr(item, name) for name in item.__struct_fields__)
            case _:
                total += getattr(item, "nbytes", 8)
    return total
