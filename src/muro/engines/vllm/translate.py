"""Requests of ours to vLLM's kind, outputs of vLLM's to our kind.

What both sides know is the wire, so that is the way: our encoder writes the layout of vLLM's release and vLLM's decoder
reads it, and the other way round. What nearly every output is, tokens and perhaps an end, goes field by field.
"""

from __future__ import annotations

import operator
from typing import Any

import msgspec
import vllm
from vllm.v1.engine import EngineCoreOutput as TheirOutput
from vllm.v1.engine import EngineCoreOutputs as TheirOutputs
from vllm.v1.engine import EngineCoreRequest as TheirRequest
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from muro.errors import InternalError
from muro.wire.codec import OutputDecoder, RequestEncoder
from muro.wire.output import EngineCoreEvent, EngineCoreOutput, EngineCoreOutputs, FinishReason
from muro.wire.releases import layout_of_engine
from muro.wire.request import EngineCoreRequest
from muro.wire.stats import PrefillStats, SchedulerStats

_SHORT = ("request_id", "new_token_ids", "finish_reason", "stop_reason", "events", "prefill_stats")
"""Fields of an output that are taken over one by one; any other goes over the wire's encoding."""
_REST = tuple(name for name in TheirOutput.__struct_fields__ if name not in _SHORT)
_rest_of = operator.attrgetter(*_REST)
_NOTHING = _rest_of(TheirOutput(request_id="", new_token_ids=[]))


class RequestTranslator:
    """For one thread."""

    def __init__(self) -> None:
        self._encoder = RequestEncoder(layout_of_engine(vllm.__version__))
        self._decoder = MsgpackDecoder(TheirRequest)

    def __call__(self, request: EngineCoreRequest) -> Any:
        """The request as vLLM's front-end would send it. Raises what its decoder raises, and LocalProtocolError."""
        _, *frames = self._encoder.add(_without_backend(request))
        return self._decoder.decode(frames)


class OutputTranslator:
    """For one thread."""

    def __init__(self) -> None:
        self._encoder = MsgpackEncoder()
        self._decoder = OutputDecoder(vllm.__version__)

    def output(self, theirs: Any) -> EngineCoreOutput:
        """One output of a step."""
        reason = theirs.finish_reason
        if any(map(operator.is_not, _rest_of(theirs), _NOTHING)):
            return self._over_the_wire(theirs)
        return EngineCoreOutput(
            theirs.request_id,
            theirs.new_token_ids,
            finish_reason=None if reason is None else FinishReason(reason),
            stop_reason=theirs.stop_reason,
            events=theirs.events and _alike(theirs.events, list[EngineCoreEvent]),
            prefill_stats=theirs.prefill_stats and _alike(theirs.prefill_stats, PrefillStats),
        )

    def _over_the_wire(self, theirs: Any) -> EngineCoreOutput:
        # The frames are views of vLLM's arrays, which it may use again: they must be ours before the next step.
        frames = [bytes(frame) for frame in self._encoder.encode(TheirOutputs(outputs=[theirs]))]
        message = self._decoder.decode(frames)
        if not isinstance(message, EngineCoreOutputs):
            raise InternalError("vLLM's encoder wrote an output that is none")
        return message.outputs[0]


def _without_backend(request: EngineCoreRequest) -> EngineCoreRequest:
    """What compiles a grammar is for vLLM's check to choose, as its configuration says, and not for the front-end."""
    params = request.sampling_params
    if params is None or params.structured_outputs is None or params.structured_outputs.backend is None:
        return request
    wanted = msgspec.structs.replace(params.structured_outputs, backend=None, backend_was_auto=False)
    params = msgspec.structs.replace(params, structured_outputs=wanted)
    return msgspec.structs.replace(request, sampling_params=params)


def scheduler_stats(theirs: Any) -> SchedulerStats:
    """The statistics of a step."""
    return msgspec.convert(msgspec.to_builtins(theirs), SchedulerStats)


def _alike(theirs: Any, ours: Any) -> Any:
    return msgspec.convert(theirs, ours, from_attributes=True)
