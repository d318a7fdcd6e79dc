"""Encoding of events as server-sent events (WHATWG HTML, section 9.2). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from admin.events.log import KINDS, Event

ITEMS_MAX: Final = 200
"""Max items per event, so that a dashboard processes one without a visible pause."""
PIECE: Final = 32 * 1024
"""Max bytes per write, unless a single event is longer. It bounds the memory that a slow client
occupies."""


def frame(kind: str, data: bytes, id: str = "") -> bytes:
    """Return one event. `data` must have no line break; without `id` no client resumes after it."""
    head = f"id: {id}\n" if id else ""
    return f"{head}event: {kind}\ndata: ".encode() + data + b"\n\n"


class Position(NamedTuple):
    """Position of a reader. `boot` identifies the server process."""

    boot: str
    seq: int

    def __str__(self) -> str:
        return f"{self.boot}-{self.seq}"


def position(text: str) -> Position | None:
    """Parse a `Last-Event-ID`; None if this server did not issue it."""
    boot, _, seq = text.rpartition("-")
    if not (boot and seq.isascii() and seq.isdecimal() and len(seq) < 16):
        return None
    return Position(boot, int(seq))


def frames(news: Iterable[Event], boot: str, about: str = "") -> Iterator[bytes]:
    """Yield the frames of `news`, only those of the function `about` if given. Consecutive items of
    one kind share a frame."""
    wanted = (one for one in news if not about or one.about in ("", about))
    for kind, group in groupby(wanted, key=lambda one: one.kind):
        if kind not in KINDS:
            for one in group:
                yield frame(kind, one.data, str(Position(boot, one.seq)))
            continue
        things = list(group)
        for at in range(0, len(things), ITEMS_MAX):
            part = things[at : at + ITEMS_MAX]
            data = _items([one.data for one in part])
            yield frame(kind, data, str(Position(boot, part[-1].seq)))


def listing(kind: str, things: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the frames of a snapshot's items. They carry no id, as a client cannot resume within a
    snapshot."""
    for at in range(0, len(things), ITEMS_MAX):
        yield frame(kind, _items(things[at : at + ITEMS_MAX]))


def pieces(events: Iterable[bytes]) -> list[bytes]:
    """Return the events joined to pieces of about PIECE bytes."""
    found, waiting, size = [], list[bytes](), 0
    for event in events:
        if waiting and size + len(event) > PIECE:
            found.append(b"".join(waiting))
            waiting, size = [], 0
        waiting.append(event)
        size += len(event)
    return [*found, b"".join(waiting)] if waiting else found


def _items(things: Iterable[bytes]) -> bytes:
    return b'{"items":[' + b",".join(things) + b"]}"
