"""The whole screen for its size: head, devices, functions, what happened, keys. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from admin.cli.live.picture import Picture
from admin.cli.top import devices, functions, margins
from admin.cli.top.functions import Moment
from admin.cli.top.lines import Line, cut, faded, fit
from admin.cli.top.order import arranged
from admin.cli.top.view import Sight, View

WIDTH_MIN: Final = 60
HEIGHT_MIN: Final = 15
ROOMY: Final = 24
"""Lines from which on the parts stand apart."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What a screen is drawn from. `pages`: lines of text by page; `message` is for the reader."""

    url: str
    view: View = field(default_factory=View)
    message: str = ""
    pages: Mapping[str, Sequence[str]] = field(default_factory=dict)


def screen(
    picture: Picture, stage: Stage, now: float, size: tuple[int, int]
) -> tuple[list[Line], View, Sight]:
    """The lines of a screen of `size` (columns, lines), the view as it then is, and what keys act
    on."""
    width, height = size
    view = stage.view
    items = arranged(picture.facts.functions.values(), view.sort, view.filter)
    names = [str(item["name"]) for item in items]
    if width < WIDTH_MIN or height < HEIGHT_MIN:
        text = f"{width}x{height} is too small: fnctl top needs {WIDTH_MIN}x{HEIGHT_MIN}"
        return [cut(((text, "bold"),), width)], view, Sight(names, 1)
    head = margins.header(picture, stage.url, now, width)
    foot = margins.footer(view, stage.message, width)
    room = height - len(head) - 1
    moment = Moment(picture, now, picture.server_s(now))
    if view.page in ("why", "help"):
        text_lines = stage.pages.get(view.page, ())
        body = _text(text_lines, view.scroll, room, width)
        sight = Sight(names, room, len(text_lines), room)
    else:
        body, view, rows = _overview(items, names, view, moment, (width, room))
        sight = Sight(names, rows)
    if not picture.is_live(now):
        body = [faded(line) for line in body]
    body = [*body, *((((" "), ""),) for _ in range(room - len(body)))]
    return [*head, *body[:room], foot], view, sight


def whole(picture: Picture, stage: Stage, now: float, width: int) -> list[Line]:
    """Everything there is, on as many lines as it takes: a picture for a file or a pipe."""
    facts = picture.facts
    moment = Moment(picture, now, picture.server_s(now))
    items = arranged(facts.functions.values(), stage.view.sort, stage.view.filter)
    parts = [
        margins.header(picture, stage.url, now, width),
        devices.rows(facts.devices, picture.on_device(), len(facts.devices), width),
        _table(items, stage.view.sort, moment, width),
        margins.happened(picture.happened, len(picture.happened), moment.server_s, width),
    ]
    lines: list[Line] = []
    for part in parts:
        lines += [*([()] if lines and part else []), *part]
    return lines


def _overview(
    items: list[dict[str, Any]],
    names: list[str],
    view: View,
    moment: Moment,
    size: tuple[int, int],
) -> tuple[list[Line], View, int]:
    """Devices, functions and happenings within `size` (columns, lines); the rows of functions."""
    width, room = size
    picture = moment.picture
    gap = 1 if room >= ROOMY else 0
    shown_devices = devices.rows(
        picture.facts.devices, picture.on_device(), max(2, room // 4), width
    )
    # What few functions leave free is for what happened.
    left = room - len(shown_devices) - max(1, len(items)) - 1 - 2 * gap
    told = margins.happened(picture.happened, max(2, room // 5, left), moment.server_s, width)
    rows = max(1, room - len(shown_devices) - len(told) - 1 - gap * (1 + bool(told)))
    view = view.settled(names, rows)
    kept = columns_for(names, width)
    lines = [functions.head(kept, view.sort)]
    for at in range(view.top, min(len(items), view.top + rows)):
        is_selected = at == view.index(names)
        lines.append(functions.row(items[at], kept, moment, is_selected))
    if not items:
        lines.append(((nothing(picture, view.filter), "dim"),))
    empty = [()] * (rows + 1 - len(lines))
    space = [()] * gap
    after = space if told else []
    return [*shown_devices, *space, *lines, *empty, *after, *told], view, rows


def nothing(picture: Picture, wanted: str) -> str:
    """Why there is no row."""
    if not picture.is_complete:
        return "reading …"
    if wanted:
        return f"no function's name contains {wanted!r}, and no state is called so"
    return "no functions yet: fnctl deploy model.onnx"


def columns_for(names: Sequence[str], width: int) -> list[functions.Column]:
    """The columns for a screen where these names may be shown."""
    return functions.columns(width, max(map(len, names), default=0))


def _table(items: list[dict[str, Any]], sort: str, moment: Moment, width: int) -> list[Line]:
    kept = columns_for([str(item["name"]) for item in items], width)
    if not items:
        return [((nothing(moment.picture, ""), ""),)]
    return [
        functions.head(kept, sort),
        *(functions.row(item, kept, moment, False) for item in items),
    ]


def _text(lines: Sequence[str], scroll: int, room: int, width: int) -> list[Line]:
    """A part of a text; what is wider than the screen goes on on the next line."""
    return [
        ((fit(line, width) if len(line) > width else line, ""),)
        for line in lines[scroll : scroll + room]
    ]


def wrapped(text: str, width: int) -> list[str]:
    """A text as lines of a screen; a stranger's control characters are gone."""
    lines: list[str] = []
    for line in text.splitlines():
        safe = "".join(c if c.isprintable() else " " for c in line)
        lines += [safe[at : at + width] for at in range(0, max(1, len(safe)), width)]
    return lines


__all__ = ["Stage", "nothing", "screen", "whole", "wrapped"]
