"""One answer that a filter reads or changes between the server and the client. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.proxy.framing import CHUNKED, LAST_CHUNK, BodyKind, encode_chunk
from gateway.proxy.ports import FilterMode

if TYPE_CHECKING:
    from gateway.proxy.framing import Framing
    from gateway.proxy.ports import AnswerFilter
    from gateway.proxy.response_head import ResponseHead
    from registry.errors import FnError

FILTERED_MAX: Final = 16 * 1024
"""Max bytes of an answer that a filter changes in one step: 10 ms for the worst of events."""


class AnswerEdit:
    """The body of a filtered answer as the client gets it."""

    __slots__ = ("_filter", "is_encoding", "is_rewriting")

    def __init__(self, found: AnswerFilter, *, is_rewriting: bool, is_encoding: bool) -> None:
        self._filter = found
        self.is_rewriting = is_rewriting
        """Whether the body is taken out of its chunks, and written anew."""
        self.is_encoding = is_encoding
        """Whether it is written in chunks."""

    @property
    def has_head(self) -> bool:
        """Whether the client has got a head already."""
        return self._filter.has_head

    def feed(self, content: bytes) -> bytes:
        """Return bytes of the body as the client gets them. Raises FnError."""
        return self._encoded(self._filter.feed(content))

    def end(self) -> bytes:
        """Return what the client gets after the whole body."""
        if not self.is_rewriting:
            return b""
        rest = self._encoded(self._filter.end())
        return rest + LAST_CHUNK if self.is_encoding else rest

    def failed(self, error: FnError) -> bytes:
        """Return the last bytes for the client of an answer that stays incomplete."""
        return self._encoded(self._filter.failed(error))

    def close(self) -> None:
        """Give back the memory: the exchange has ended; idempotent."""
        self._filter.close()

    def _encoded(self, content: bytes) -> bytes:
        return encode_chunk(content) if self.is_encoding else content


def begin_edit(
    found: AnswerFilter, head: ResponseHead, minor: int
) -> tuple[AnswerEdit | None, Framing]:
    """Begin to filter an answer; return the framing of its body for the client, too.

    A filter needs the content of chunks, so what it only reads is written in chunks anew, too.
    `minor`: of the client's HTTP/1.`minor`; HTTP/1.0 has no chunks.
    """
    mode = found.begin(head)
    if mode is FilterMode.OFF:
        return None, head.framing
    if mode is FilterMode.READ and head.framing.kind is not BodyKind.CHUNKED:
        return AnswerEdit(found, is_rewriting=False, is_encoding=False), head.framing
    edit = AnswerEdit(found, is_rewriting=True, is_encoding=bool(minor))
    return edit, CHUNKED
