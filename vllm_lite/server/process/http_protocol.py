"""HTTP/1.1 on one connection: uvicorn's httptools protocol with limits on what it will hold.

Knows no routes. Invariant: a connection keeps at most `max_headers` headers and `max_head` bytes
of an unfinished head, and one that cannot be understood is answered in the server's error shape.
"""

from __future__ import annotations

from typing import ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from vllm_lite.server.errors import Failure

# The colon, the space and the line's end.
_HEADER_FRAME = 4


class _LimitError(Exception):
    """The client sent more than the server reads."""


class LimitedHttpProtocol(HttpToolsProtocol):
    """Refuses heads with too many headers or bytes, and drops trailers."""

    max_headers: ClassVar[int]
    max_head: ClassVar[int]

    # Bytes that came since the head began, and those of its lines that are whole.
    _received = 0
    _head_size = 0
    _is_in_head = True
    _refusal: Failure | None = None

    def data_received(self, data: bytes) -> None:
        """Parse what came, and answer for what cannot be."""
        if self._refusal is not None:
            return
        if self._is_in_head:
            self._received += len(data)
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        except httptools.HttpParserUpgrade:
            pass  # Nothing is offered to upgrade to: the request is answered as it stands.
        if self._is_in_head and self._received > self.max_head and self._refusal is None:
            self._refuse_head()
            self.send_400_response("")

    def on_message_begin(self) -> None:
        """A new head."""
        super().on_message_begin()
        self._head_size = 0

    def on_url(self, url: bytes) -> None:
        """A part of the request line."""
        self._head_size += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or a trailer, which is of no use to anybody."""
        if not self._is_in_head:
            return
        self._head_size += len(name) + len(value) + _HEADER_FRAME
        if len(self.headers) >= self.max_headers:
            self._refusal = Failure(
                431,
                "RequestHeaderFieldsTooLarge",
                f"The request has more than {self.max_headers} headers (--h11-max-header-count)",
            )
            # The parser stops and reports the message as broken.
            raise _LimitError
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole: hand the request on."""
        if self._head_size > self.max_head:
            self._refuse_head()
            raise _LimitError
        super().on_headers_complete()
        self._is_in_head = False

    def on_message_complete(self) -> None:
        """The request is whole; the next bytes begin another."""
        super().on_message_complete()
        self._is_in_head = True
        self._received = 0

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be parsed, and close the connection."""
        failure = self._refusal or Failure(400, "BadRequestError", msg)
        self.logger.info("Refused what is no request: %d, %s", failure.status, failure.message)
        body = failure.body()
        head = [
            STATUS_LINE[failure.status],
            b"content-type: application/json\r\n",
            b"content-length: %d\r\n" % len(body),
            b"connection: close\r\n\r\n",
        ]
        self.transport.write(b"".join(head) + body)
        self.transport.close()

    def _refuse_head(self) -> None:
        self._refusal = Failure(
            431,
            "RequestHeaderFieldsTooLarge",
            f"The request's head is larger than {self.max_head} bytes "
            "(--h11-max-incomplete-event-size)",
        )


def limited_protocol(max_headers: int, max_head: int) -> type[LimitedHttpProtocol]:
    """The protocol class for these limits; uvicorn makes one instance a connection."""
    return type(
        "ServerHttpProtocol",
        (LimitedHttpProtocol,),
        {"max_headers": max_headers, "max_head": max_head},
    )
