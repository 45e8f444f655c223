"""From the text of an answer to content and tool calls, whole or piece by piece."""

from __future__ import annotations

import uuid

from muro.llm.words import ToolCallPiece, ToolParser
from muro.server.schemas.chat import ChatMessage, Delta
from muro.server.schemas.tools import FunctionCall, FunctionDelta, ToolCall, ToolCallDelta


class Calls:
    """The calls in one choice.

    Args:
        parser: a fresh one.
        several: whether there may be more than one; others are left out.
    """

    def __init__(self, parser: ToolParser, *, several: bool = True) -> None:
        self._parser = parser
        self._several = several
        self.any = False
        """Whether there was a call."""

    def delta(self, text: str, *, last: bool) -> Delta | None:
        """What the next piece of text adds to the message; None if nothing."""
        news = self._parser.feed(text)
        if last:
            news += self._parser.finish()
        content, deltas = "", []
        for piece in news:
            if not isinstance(piece, ToolCallPiece):
                content += piece
            elif self._several or piece.index == 0:
                deltas.append(self._delta(piece))
        delta = Delta()
        if content:
            delta.content = content
        if deltas:
            delta.tool_calls = deltas
        return delta if content or deltas or last else None

    def message(self, text: str) -> ChatMessage:
        """The whole message."""
        content, calls = "", []
        for piece in self._parser.feed(text) + self._parser.finish():
            if not isinstance(piece, ToolCallPiece):
                content += piece
            elif not self._several and piece.index > 0:
                continue
            elif piece.name is not None:
                calls.append(ToolCall(_call_id(), FunctionCall(piece.name, piece.arguments)))
            else:
                calls[-1].function.arguments += piece.arguments
        self.any = bool(calls)
        message = ChatMessage(content if content or not calls else None)
        if calls:
            message.tool_calls = calls
        return message

    def finish_reason(self, reason: str | None) -> str | None:
        """An answer that ends by itself in calls waits for what they give."""
        return "tool_calls" if self.any and reason == "stop" else reason

    def _delta(self, piece: ToolCallPiece) -> ToolCallDelta:
        self.any = True
        if piece.name is None:
            return ToolCallDelta(piece.index, FunctionDelta(arguments=piece.arguments))
        function = FunctionDelta(piece.name, piece.arguments)
        return ToolCallDelta(piece.index, function, _call_id(), "function")


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
