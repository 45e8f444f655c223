"""sse.py: events as the official client splits them."""

from __future__ import annotations

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st
from openai._streaming import SSEDecoder

from muro.server.schemas.chat import ChatCompletionChunk, ChunkChoice, Delta
from muro.server.schemas.completions import Completion, CompletionChoice
from muro.server.sse import DONE, TextEvents, event

any_text = st.text(st.characters(codec="utf-8"))


def chat_chunk(text: str, request_id: str = "id") -> ChatCompletionChunk:
    return ChatCompletionChunk(request_id, 1, "m", [ChunkChoice(2, Delta(content=text))])


@given(any_text, st.text(st.characters(codec="ascii")))
@example('\n\r\u2028\u2029\x85\x00"\\data: ', 'x"content":""')
def test_text_events_equal_encoding_the_whole_chunk(text: str, request_id: str) -> None:
    assert TextEvents(lambda t: chat_chunk(t, request_id))(text) == event(chat_chunk(text, request_id))

    def completion(piece: str) -> Completion:
        return Completion(request_id, 1, "m", [CompletionChoice(0, piece)])

    assert TextEvents(completion)(text) == event(completion(text))


@given(st.lists(any_text, max_size=5))
def test_the_official_client_reads_the_stream(texts: list[str]) -> None:
    stream = b"".join([event(chat_chunk(text)) for text in texts]) + DONE
    *events, done = [e.data for e in SSEDecoder().iter_bytes(iter([stream]))]
    assert [msgspec.json.decode(e)["choices"][0]["delta"]["content"] for e in events] == texts
    assert done == "[DONE]"
