"""HTTP answers as plain data: their bytes, and their `Server-Timing` header (W3C)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Final, NamedTuple
from wsgiref.handlers import format_date_time

from runtime_image.contract.control import PHASES
from runtime_image.link.meta import AnswerMeta

Body = bytes | bytearray | memoryview
PIECE: Final = 64 * 1024
"""Bytes. A body of this length or more is written on its own, not copied behind its head."""
CLOSE: Final = ("Connection", "close")
_PHRASES: Final = {int(status): status.phrase for status in HTTPStatus}


class Reply(NamedTuple):
    """A whole answer. `headers` are all but Content-Length, Date and Server, in order.

    Names and values are made by this program, never by a replica. The one value from a client is a
    request id of few harmless characters.
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    body: Body

    @property
    def closes(self) -> bool:
        """Whether this is the last answer of its connection."""
        return CLOSE in self.headers


make_reply: Callable[[tuple[int, tuple[tuple[str, str], ...], Body]], Reply] = partial(
    tuple.__new__, Reply
)
"""Makes a Reply without the Python frame of the named tuple's own constructor."""


class Writer:
    """Writes replies as bytes of HTTP/1.1 (RFC 9112). `wall` gives Unix seconds, for Date."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._second = -1
        self._tail = ""

    def pieces(self, reply: Reply) -> list[Body]:
        """The bytes to write in order; a large body is a piece of its own."""
        second = int(self._wall())
        if second != self._second:
            self._second = second
            self._tail = f"\r\nDate: {format_date_time(second)}\r\nServer: fngate\r\n\r\n"
        status, headers, body = reply
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers])
        head = (
            f"HTTP/1.1 {status} {_PHRASES[status]}\r\n{lines}"
            f"Content-Length: {len(body)}{self._tail}"
        ).encode("latin-1")
        if len(body) < PIECE:
            return [head + body]
        return [head, body]


class Receipt(NamedTuple):
    """How a replica answered one request. `phases` of the cold start that the request waited for,
    in milliseconds; empty where there was none."""

    revision: str
    replica: str
    device: str
    queue_ms: float
    phases: dict[str, float]
    is_first: bool
    meta: AnswerMeta

    @property
    def is_cold(self) -> bool:
        """Whether this request waited for a cold start."""
        return bool(self.phases)


make_receipt: Callable[
    [tuple[str, str, str, float, dict[str, float], bool, AnswerMeta]], Receipt
] = partial(tuple.__new__, Receipt)
"""Makes a Receipt without the Python frame of the named tuple's own constructor."""


def server_timing(receipt: Receipt) -> str:
    """The header's value. A cold start has the metric `cold` and one for each phase."""
    revision, replica, device, queue_ms, phases, is_first, meta = receipt
    _, decode_us, batch_us, compute_us, encode_us, rows = meta
    cold = all_phases = ""
    if phases:
        cold = f'cold;desc="{revision} on {device}", '
        all_phases = "".join(f"{p};dur={phases[p]:.3f}, " for p in PHASES if p in phases)
    compute = "first_run" if is_first else "compute"
    return (
        f'{cold}replica;desc="{replica}", queue;dur={_ms(round(queue_ms * 1e3))}, {all_phases}'
        f'decode;dur={_ms(decode_us)}, batch;dur={_ms(batch_us)};desc="{rows} rows", '
        f"{compute};dur={_ms(compute_us)}, encode;dur={_ms(encode_us)}"
    )


@lru_cache(maxsize=8192)
def _ms(us: int) -> str:
    """Microseconds as milliseconds with three digits; short times recur, so they are cached."""
    return f"{us / 1e3:.3f}"
