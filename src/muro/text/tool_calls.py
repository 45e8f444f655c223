"""Tool calls in a model's text: found while it streams, by a small table of the forms that models are trained on.

- `hermes`: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them (Hermes, Qwen, SmolLM3, ...).
- `json_list`: the answer as a whole is a list of `{"name": ..., "parameters": {...}}` (what an answer is held to when
  calls are required).
- `llama3_json`: the answer as a whole is `{"name": ..., "parameters": {...}}`, several with `;` in between (Llama 3.1
  and later). A JSON object that names none of the tools is an ordinary answer.

The promise: what comes out, put together, does not depend on how the text is cut. A call is told of as soon as its name
is known, its arguments as the model writes them: whether they fit the tool is for the caller to check. What looks like
a call and is none is content again. White space around calls is not content.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from muro.text.call_reader import SPACE, CallReader, ToolCallPiece

News = list[str | ToolCallPiece]
"""Content (never empty) and pieces of calls, in their order."""


class ToolParser(Protocol):
    """Reads the text of one answer. Not for use by two threads at once."""

    def feed(self, text: str) -> News:
        """What has become certain with the next piece of text."""

    def finish(self) -> News:
        """The rest. Afterwards nothing may be fed."""


class HermesParser:
    """See the module."""

    OPEN, CLOSE = "<tool_call>", "</tool_call>"

    def __init__(self) -> None:
        self._outside = _Outside()
        self._text = ""  # not looked at yet
        self._call: CallReader | None = None
        self._closing = False

    def feed(self, text: str) -> News:
        """See `ToolParser.feed`."""
        self._text += text
        news: News = []
        while self._text and self._step(news):
            pass
        return news

    def finish(self) -> News:
        """See `ToolParser.finish`."""
        news: News = []
        if self._call is not None and not self._call.told:
            self._outside.content(self.OPEN + self._call.raw, news)
        elif self._call is None and not self._closing:
            self._outside.content(self._text, news)
        self._outside.end(news)
        return news

    def _step(self, news: News) -> bool:
        """Look at what is there as far as it goes for now; whether there is more to look at."""
        if self._call is not None:
            return self._inside(self._call, news)
        mark = self.CLOSE if self._closing else self.OPEN
        at = self._text.find(mark)
        if self._closing:
            # Whatever stands between the end of the object and that of the call belongs to neither.
            self._text = self._text[at + len(mark) :] if at >= 0 else _tail(self._text, mark)
            self._closing = at < 0
            return at >= 0
        if at < 0:
            held = _tail(self._text, mark)
            self._outside.content(self._text[: len(self._text) - len(held)], news)
            self._text = held
            return False
        self._outside.content(self._text[:at], news)
        self._text = self._text[at + len(mark) :]
        self._call = CallReader(self._outside.calls)
        return True

    def _inside(self, call: CallReader, news: News) -> bool:
        self._text = call.feed(self._text, self._outside.tell(news))
        if call.broken and not call.told:
            self._outside.content(self.OPEN + call.raw, news)
        self._closing = call.done or (call.broken and call.told)
        if call.done or call.broken:
            self._call = None
        return bool(self._text)


class ObjectsParser:
    """Reads an answer that consists of calls.

    Args:
        names: of the tools; an object with another name is no call.
        before: characters besides white space that may stand before the first call.
        after: ... and behind a call.
        tag: what else may stand before a call.
    """

    def __init__(self, names: Collection[str], before: str = "", after: str = "", tag: str = "") -> None:
        self._names = names
        self._before, self._after, self._tag = SPACE + before, SPACE + after, tag
        self._outside = _Outside()
        self._text = ""
        self._call: CallReader | None = None
        self._plain = False

    def feed(self, text: str) -> News:
        """See `ToolParser.feed`."""
        self._text += text
        news: News = []
        while self._text and self._step(news):
            pass
        return news

    def finish(self) -> News:
        """See `ToolParser.finish`."""
        news: News = []
        if self._call is not None and not self._call.told:
            self._outside.content(self._call.raw, news)
        self._outside.content(self._text, news)
        self._outside.end(news)
        return news

    def _step(self, news: News) -> bool:
        if self._plain:
            self._outside.content(self._text, news)
            self._text = ""
            return False
        if self._call is None:
            return self._between(news)
        call = self._call
        self._text = call.feed(self._text, self._outside.tell(news))
        if call.broken and not call.told:
            self._outside.content(call.raw, news)
            self._plain = True
        if call.done or call.broken:
            self._call = None
        return bool(self._text)

    def _between(self, news: News) -> bool:
        """Before a call: white space, the tag, and what separates calls."""
        text = self._text.lstrip(self._after if self._outside.calls else self._before)
        if not text:
            self._text = "" if self._outside.calls else self._text
            return False  # it may still become one
        if self._tag and text != self._tag and self._tag.startswith(text):
            return False
        if self._tag and text.startswith(self._tag):
            self._text = text[len(self._tag) :]
        elif text[0] == "{":
            self._text, self._call = text, CallReader(self._outside.calls, self._names)
        else:
            self._plain = True
            self._text = text if self._outside.calls else self._text  # what separates calls is no content
        return True


PARSERS: Mapping[str, Callable[[Collection[str]], ToolParser]] = {
    "hermes": lambda names: HermesParser(),
    "llama3_json": lambda names: ObjectsParser(names, "", ";,", "<|python_tag|>"),
}
"""By the name of the form; each is made for one answer, of the names of the tools."""


def list_parser(names: Collection[str]) -> ToolParser:
    """For the form `json_list`."""
    return ObjectsParser(names, "[", ",]")


class ArgumentsParser:
    """The whole answer is the arguments of a call that was decided upon beforehand."""

    def __init__(self, name: str) -> None:
        self._name: str | None = name

    def feed(self, text: str) -> News:
        """See `ToolParser.feed`."""
        news: News = []
        if self._name is not None:
            news.append(ToolCallPiece(0, self._name))
            self._name = None
        if text:
            news.append(ToolCallPiece(0, None, text))
        return news

    def finish(self) -> News:
        """See `ToolParser.finish`."""
        return self.feed("")


_MARKS = {"hermes": "<tool_call>", "llama3_json": '"parameters": '}
_FOREIGN = "<function="
"""In templates of forms that are not in the table."""


def form_of(template: str) -> str | None:
    """The form of calls that a chat template speaks of, as far as that can be told."""
    if _FOREIGN in template:
        return None
    return next((name for name, mark in _MARKS.items() if mark in template), None)


class _Outside:
    """What is around calls: content, of which white space next to a call is left out, and the count of calls."""

    def __init__(self) -> None:
        self.calls = 0
        self._space = ""
        self._behind_call = False

    def content(self, text: str, news: News) -> None:
        if self._behind_call:
            text = text.lstrip()
            self._behind_call = not text
        body = text.rstrip()
        if not body:
            self._space += text
            return
        news.append(self._space + body)
        self._space = text[len(body) :]

    def tell(self, news: News) -> Callable[[ToolCallPiece], None]:
        """Where a call puts its news."""

        def told(piece: ToolCallPiece) -> None:
            if piece.name is not None:
                self.calls += 1
                self._space, self._behind_call = "", True
            news.append(piece)

        return told

    def end(self, news: News) -> None:
        if self._space and not self.calls:
            news.append(self._space)


def _tail(text: str, mark: str) -> str:
    """The longest end of `text` that begins `mark`."""
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:size]):
            return text[-size:]
    return ""
