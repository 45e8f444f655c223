"""A bound for the head of a request: request line and headers. uvicorn and its parser have none.

Without it one caller could make the server gather headers for ever, and ever more slowly, in the loop of all others.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 << 10


class BoundedHead(HttpToolsProtocol):
    """uvicorn's protocol; derived from it because that is the only door that uvicorn offers here.

    Refuses a head that is still not complete after `MAX_HEAD_BYTES`.
    """

    _in_head = True
    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()
