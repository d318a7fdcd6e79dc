"""An event stream of the server over HTTP, and over SSH: one connection, read to its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from admin.streams.parsing import Event, EventTooLong, Parser
from admin.transport import ApiError, Transport, Unreachable

CONTENT_TYPE: Final = "text/event-stream"
SILENT_S: Final = 45.0
"""A server says something every 15 s, if only that it is there."""


@contextmanager
def open_stream(
    transport: Transport, path: str, last_id: str = "", silent_s: float = SILENT_S
) -> Iterator[Iterator[Event]]:
    """The events of GET `path` after the one with `last_id`, while the block runs.

    The iterator ends where the server ends the stream, and raises Unreachable where it breaks off
    or is silent for `silent_s`. Raises ApiError where the server refuses, Unreachable where
    there is none.
    """
    headers = {"Accept": CONTENT_TYPE, "Cache-Control": "no-store"}
    if last_id:
        headers["Last-Event-ID"] = last_id
    with transport.open(path, headers, silent_s) as (reply, pieces):
        given = reply.headers.get_content_type()
        if given != CONTENT_TYPE:
            detail = f"GET {path}: expected {CONTENT_TYPE}, got {given}"
            raise ApiError(reply.status, {"title": "This server sends no events", "detail": detail})
        yield _events(pieces, last_id)


def _events(pieces: Iterator[bytes], last_id: str) -> Iterator[Event]:
    parser = Parser(last_id)
    for piece in pieces:
        try:
            yield from parser.feed(piece)
        except EventTooLong as error:
            raise Unreachable(f"the stream cannot be read: {error}") from error
