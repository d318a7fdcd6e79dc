"""Events as server-sent events (WHATWG HTML, section 9.2). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from admin.events.log import KINDS, Event

ITEMS_MAX: Final = 200
"""Things in one event: what a page can take in without a pause that is seen."""
PIECE: Final = 32 * 1024
"""Bytes written at once, or the one event that is longer: what waits for a client who reads slowly
is not much more."""


def frame(kind: str, data: bytes, id: str = "") -> bytes:
    """One event. `data` has no line break; without an `id` it cannot be resumed after."""
    head = f"id: {id}\n" if id else ""
    return f"{head}event: {kind}\ndata: ".encode() + data + b"\n\n"


class Position(NamedTuple):
    """Up to where somebody has read: `boot` is the server's, as ids have it."""

    boot: str
    seq: int

    def __str__(self) -> str:
        return f"{self.boot}-{self.seq}"


def position(text: str) -> Position | None:
    """What a `Last-Event-ID` says; None where it is none of ours."""
    boot, _, seq = text.rpartition("-")
    if not (boot and seq.isascii() and seq.isdecimal() and len(seq) < 16):
        return None
    return Position(boot, int(seq))


def frames(news: Iterable[Event], boot: str, about: str = "") -> Iterator[bytes]:
    """The events of `news`, of one function's alone if `about` names one. Things of one kind that
    come one after the other share an event."""
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
    """The events of a picture's things. They have no id: who has read half a picture has nothing
    that he could go on from."""
    for at in range(0, len(things), ITEMS_MAX):
        yield frame(kind, _items(things[at : at + ITEMS_MAX]))


def pieces(events: Iterable[bytes]) -> list[bytes]:
    """Events joined to some PIECE bytes."""
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
