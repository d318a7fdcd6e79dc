"""HTTP answers as plain data, their serialisation, and the header `Server-Timing` (W3C)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Final, NamedTuple
from wsgiref.handlers import format_date_time

from registry.exchange import place_of
from runtime_image.contract.control import PHASES
from runtime_image.link.meta import AnswerMeta

Body = bytes | bytearray | memoryview
PIECE: Final = 64 * 1024
"""Bytes. A body of at least this length is written separately instead of being copied behind its
head."""
CLOSE: Final = ("Connection", "close")
GUARD: Final = (("X-Content-Type-Options", "nosniff"), ("Content-Security-Policy", "sandbox"))
"""Fields of every answer of ours that has none of its own. A model chooses the content type of its
answer, and the dashboard has the same origin: a browser may show the answer, but runs nothing."""
_GUARD: Final = "".join(f"\r\n{name}: {value}" for name, value in GUARD)
_BEGIN: Final = {int(status): f"HTTP/1.1 {status} {status.phrase}\r\n" for status in HTTPStatus}
"""Status lines."""


class Reply(NamedTuple):
    """A complete HTTP answer.

    `headers` has, in order, all headers except Content-Length, Date, Server and those of GUARD.
    Names and values are never copied from a replica. The only value from a client is a request id
    of few harmless characters.
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    body: Body
    lines: str = ""
    """Headers before `headers` as they are written, each with its line end: an answer of a replica
    has its own here, which takes a third of the time of pairs."""

    @property
    def closes(self) -> bool:
        """Whether the connection closes after this answer."""
        return CLOSE in self.headers

    def closing(self) -> Reply:
        """Return the reply, after which the connection closes."""
        return self if self.closes else self._replace(headers=(*self.headers, CLOSE))

    @property
    def fields(self) -> list[tuple[str, str]]:
        """All headers, those of `lines` too."""
        begun = [line.partition(": ") for line in self.lines.splitlines()]
        return [*((name, value) for name, _, value in begun), *self.headers]


make_reply: Callable[[tuple[int, tuple[tuple[str, str], ...], Body, str]], Reply] = partial(
    tuple.__new__, Reply
)
"""Construct a Reply without the Python frame of the named tuple's own constructor."""


class Writer:
    """Serialises replies as HTTP/1.1 (RFC 9112). `wall` returns Unix seconds, for Date."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._second = -1
        self._tail = ""

    def pieces(self, reply: Reply) -> list[Body]:
        """Return the buffers to write, in order; a large body is a buffer of its own."""
        second = int(self._wall())
        if second != self._second:
            self._second = second
            self._tail = f"\r\nDate: {format_date_time(second)}\r\nServer: fngate{_GUARD}\r\n\r\n"
        status, headers, body, lines = reply
        if headers:
            lines += "".join([f"{name}: {value}\r\n" for name, value in headers])
        head = f"{_BEGIN[status]}{lines}Content-Length: {len(body)}{self._tail}".encode("latin-1")
        if len(body) < PIECE:
            return [head + body]
        return [head, body]


class _Durations(dict[int, str]):
    """Microseconds as milliseconds with three decimals. Short durations recur, and a look-up takes
    a third of the time of a cached function."""

    def __missing__(self, us: int) -> str:
        if len(self) >= _DURATIONS_MAX:
            self.clear()
        text = self[us] = f"{us / 1e3:.3f}"
        return text


_DURATIONS_MAX: Final = 8192
_MS: Final = _Durations()


class Receipt(NamedTuple):
    """How a replica served one request.

    `devices`: ids of the replica's devices, in the order of its ranks. `phases`: the phases of the
    cold start that the request waited for, in milliseconds; empty if it waited for none. `host`:
    the replica's host, "" for this machine.
    """

    revision: str
    replica: str
    devices: tuple[str, ...]
    queue_ms: float
    phases: dict[str, float]
    is_first: bool
    meta: AnswerMeta
    host: str = ""

    @property
    def is_cold(self) -> bool:
        """Whether this request waited for a cold start."""
        return bool(self.phases)


make_receipt: Callable[
    [tuple[str, str, tuple[str, ...], float, dict[str, float], bool, AnswerMeta, str]], Receipt
] = partial(tuple.__new__, Receipt)
"""Construct a Receipt without the Python frame of the named tuple's own constructor."""


def server_timing(receipt: Receipt) -> str:
    """Return the header's value. A cold start has the metric `cold` and one metric per phase; a
    replica on another host has the metric `host`."""
    revision, replica, devices, queue_ms, phases, is_first, meta, host = receipt
    _, decode_us, batch_us, compute_us, encode_us, rows, _ = meta
    begin = all_phases = ""
    if phases:
        begin = f'cold;desc="{revision} on {place_of(devices)}", '
        all_phases = "".join(f"{p};dur={phases[p]:.3f}, " for p in PHASES if p in phases)
    compute = "first_run" if is_first else "compute"
    if host:
        begin += f'host;desc="{host}", '
    return (
        f'{begin}replica;desc="{replica}", queue;dur={_MS[round(queue_ms * 1e3)]}, {all_phases}'
        f'decode;dur={_MS[decode_us]}, batch;dur={_MS[batch_us]};desc="{rows} rows", '
        f"{compute};dur={_MS[compute_us]}, encode;dur={_MS[encode_us]}"
    )


NO_RUN: Final = AnswerMeta("", 0, 0, 0, 0, 0, 0)
"""The meta of a receipt for a server function: what its server does is not known."""


def exchange_timing(receipt: Receipt, first_byte_ms: float) -> str:
    """Return the header's value for a server function; see `server_timing`.

    `first_byte_ms`: from sending the request to the first byte of the answer.
    """
    begin = ""
    if receipt.phases:
        begin = "".join(f"{p};dur={receipt.phases[p]:.3f}, " for p in PHASES if p in receipt.phases)
        begin = f'cold;desc="{receipt.revision} on {place_of(receipt.devices)}", {begin}'
    if receipt.host:
        begin += f'host;desc="{receipt.host}", '
    replica, queue = receipt.replica, _MS[round(receipt.queue_ms * 1e3)]
    first_byte = _MS[round(first_byte_ms * 1e3)]
    return f'{begin}replica;desc="{replica}", queue;dur={queue}, first_byte;dur={first_byte}'
