"""News as server-sent events (WHATWG HTML, section 9.2). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final, NamedTuple

from admin.events.picture import KINDS
from admin.events.ring import News

ITEMS_MAX: Final = 200
"""Things in one event: what a page can take in without a pause that is seen."""


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


def frames(news: Iterable[News], boot: str, about: str = "") -> Iterator[bytes]:
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
            data = items(one.data for one in part)
            yield frame(kind, data, str(Position(boot, part[-1].seq)))


def items(things: Iterable[bytes]) -> bytes:
    """The JSON of several things."""
    return b'{"items":[' + b",".join(things) + b"]}"
