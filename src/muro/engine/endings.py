"""The last output of a request that does not end by itself."""

from __future__ import annotations

from muro.wire.failure import ENGINE_PAUSED, error_to_wire
from muro.wire.output import EngineCoreOutput, FinishReason, OutputError


def aborted_output(wire_id: str) -> EngineCoreOutput:
    """The engine ends it, for instance because it shuts down."""
    return EngineCoreOutput(wire_id, [], finish_reason=FinishReason.ABORT)


def failed_output(wire_id: str, error: BaseException) -> EngineCoreOutput:
    """`error` ended it."""
    return EngineCoreOutput(wire_id, [], finish_reason=FinishReason.ERROR, error=error_to_wire(error))


def paused_output(wire_id: str) -> EngineCoreOutput:
    """It met a paused engine that does not hold requests back; in the protocol's own words (0.33)."""
    error = OutputError(ENGINE_PAUSED, "the engine is paused; try again when it has resumed", retryable=True)
    return EngineCoreOutput(wire_id, [], finish_reason=FinishReason.ERROR, error=error)
