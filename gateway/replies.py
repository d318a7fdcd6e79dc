"""A whole HTTP answer as plain data, and its bytes.

What an answer says of its own making: the `Server-Timing` header (W3C Server Timing).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus
from typing import Final, NamedTuple
from wsgiref.handlers import format_date_time

from runtime_image.contract.control import PHASES
from runtime_image.link.meta import AnswerMeta

Body = bytes | bytearray | memoryview
PIECE: Final = 64 * 1024
"""Bytes of a body from which it is written on its own instead of being copied behind its head."""
CLOSE: Final = ("Connection", "close")
_PHRASES: Final = {int(status): status.phrase for status in HTTPStatus}


class Reply(NamedTuple):
    """What a client gets. `headers` are all but Content-Length, Date and Server, in order; names
    and values are this program's own, never a replica's, nor a client's but for a request id of
    few harmless characters."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: Body

    @property
    def closes(self) -> bool:
        """Whether the connection ends with it."""
        return CLOSE in self.headers


class Writer:
    """Replies to bytes of HTTP/1.1 (RFC 9112). `wall` gives Unix seconds, for Date."""

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
    """Where the time went; milliseconds. `phases` is empty unless a cold start was waited for."""

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


def server_timing(receipt: Receipt) -> str:
    """The header's value. A cold start is marked by the metric `cold` and lists its phases."""
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
    """Microseconds as the header has them; short times come again and again."""
    return f"{us / 1e3:.3f}"
