"""The whole screen for its size: head, devices, functions, what happened, keys. Pure.

What stands above and below the rows: the server, what happened last, keys. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from admin.cli.live.state import Happening, Picture, seconds
from admin.cli.top import sections
from admin.cli.top.lines import Line, Span, apart, cut, faded, fit, shown
from admin.cli.top.sections import Moment
from admin.cli.top.view import Sight, View, arranged
from admin.text import ago, get, number

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
    head = header(picture, stage.url, now, width)
    foot = footer(view, stage.message, width)
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
        header(picture, stage.url, now, width),
        sections.rows(facts.devices, picture.on_device(), len(facts.devices), width),
        _table(items, stage.view.sort, moment, width),
        happened(picture.happened, len(picture.happened), moment.server_s, width),
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
    shown_devices = sections.rows(
        picture.facts.devices, picture.on_device(), max(2, room // 4), width
    )
    # What few functions leave free is for what happened.
    left = room - len(shown_devices) - max(1, len(items)) - 1 - 2 * gap
    told = happened(picture.happened, max(2, room // 5, left), moment.server_s, width)
    rows = max(1, room - len(shown_devices) - len(told) - 1 - gap * (1 + bool(told)))
    view = view.settled(names, rows)
    kept = columns_for(names, width)
    lines = [sections.head(kept, view.sort)]
    for at in range(view.top, min(len(items), view.top + rows)):
        is_selected = at == view.index(names)
        lines.append(sections.row(items[at], kept, moment, is_selected))
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


def columns_for(names: Sequence[str], width: int) -> list[sections.Column]:
    """The columns for a screen where these names may be shown."""
    return sections.columns(width, max(map(len, names), default=0))


def _table(items: list[dict[str, Any]], sort: str, moment: Moment, width: int) -> list[Line]:
    kept = columns_for([str(item["name"]) for item in items], width)
    if not items:
        return [((nothing(moment.picture, ""), ""),)]
    return [
        sections.head(kept, sort),
        *(sections.row(item, kept, moment, False) for item in items),
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


KEYS: Final = "q quit  / filter  s sort  enter why  w warm  z sleep  ? help"
AGO: Final = 11
_SAID: Final = ("error", "cold start")
"""Kinds that the text alone does not tell."""
HELP: Final = """\
up, down, j, k     select a function
page up, page down a screen further
home, end          the first, the last
enter              why it is as it is
w                  have a replica ready
z                  let its idle replicas go now
/                  filter by name or state; escape drops it
s                  sort by something else
q                  quit

READY  replicas that take calls, of how many there may be
HELD   requests that wait for a replica
IN FL  requests that are run now
RATE   answers a second, over ten seconds
P50    half of the last minute's answers were sooner
P95    all but a twentieth were
NEXT   what it does as it wakes, and about how long still;
       when its idle replica goes; how long a call waits
TREND  RATE over the last minute, a column a second

A picture in grey is old: the first line says how old."""


def header(picture: Picture, url: str, now: float, width: int) -> list[Line]:
    """Which server and how fresh this is; its figures; what is wrong with it, if anything is."""
    server, beat = picture.facts.server, picture.beat
    told = [f"fngate {get(server, 'version')}", get(server, "driver"), _workers(server)]
    if server.get("started_s") and (server_s := picture.server_s(now)):
        told.append(f"up {ago(seconds(server['started_s']), server_s).removesuffix(' ago')}")
    about = "  ".join(shown(each) for each in told if each) if server else ""
    first = apart(
        (("fnctl top", "bold"), (f"  {url}  {about}", "")), (freshness(picture, now),), width
    )
    facts = picture.facts
    warm = sum(item.get("state") == "warm" for item in facts.functions.values())
    used = sum(each.get("state") != "free" for each in facts.devices.values())
    standbys = sum(each.get("role") == "standby" for each in facts.replicas.values())
    figures = [
        f"held {number(seconds(beat.get('held')))}",
        f"in flight {number(seconds(beat.get('in_flight')))}",
        f"{number(seconds(beat.get('rate')))}/s",
        f"warm {warm} of {len(facts.functions)}",
        f"replicas {len(facts.replicas) - standbys}",
        *([f"standbys {standbys}"] if standbys else []),
        f"devices {used} of {len(facts.devices)} in use",
    ]
    lines = [first, apart((("   ".join(figures), ""),), (_readiness(beat),), width)]
    if reasons := _reasons(beat):
        lines.append(cut((("; ".join(reasons), "bold red"),), width))
    return lines


def freshness(picture: Picture, now: float) -> Span:
    """How far what is shown can be trusted."""
    age = f"{picture.age_s(now):.0f} s old"
    if picture.lost is not None:
        left_s = picture.lost.again_s - now
        when = f" in {left_s:.0f} s" if left_s >= 1 else ""
        return f"reconnecting{when}: {age}", "bold yellow"
    if picture.is_live(now):
        return "live", "bold green"
    return ("reading …" if picture.is_reading else f"silent: {age}"), "bold yellow"


def happened(told: Iterable[Happening], room: int, server_s: float, width: int) -> list[Line]:
    """The last `room` happenings, the newest last."""
    last = list(told)[-room:] if room else []
    lines = []
    for each in last:
        when = ago(each.at_s, server_s) if server_s else ""
        spans = [
            (f"{when:>{AGO}}  ", "dim"),
            (f"{each.function}  " if each.function else "", "bold"),
            (f"{each.kind}: " if each.kind in _SAID else "", "red" if each.is_bad else ""),
            (each.text, "red" if each.is_bad else ""),
        ]
        lines.append(cut(spans, width))
    return lines


def footer(view: View, message: str, width: int) -> Line:
    """What is asked or was answered, else the keys."""
    if view.page == "filter":
        return cut(
            (("/", "bold"), (view.filter, ""), ("█  enter keeps it, escape drops it", "dim")), width
        )
    if view.page == "confirm":
        asked = f"let the idle replicas of {view.selected} go now? y/n"
        return cut(((asked, "bold yellow"),), width)
    if view.page in ("why", "help"):
        return cut((("escape back  up, down scroll", "dim"),), width)
    if message:
        return cut(((shown(message), "bold"),), width)
    sort = f"sort {view.sort}"
    if view.filter:
        sort = f"filter {view.filter}  {sort}"
    return apart(((KEYS, "dim"),), ((sort, "dim"),), width)


def _workers(server: dict[str, Any]) -> str:
    count = int(seconds(server.get("workers")))
    return f"{count} workers" if count > 1 else ""


def _readiness(beat: dict[str, Any]) -> Span:
    status = shown(get(beat, "readyz", "status"))
    return status, "bold red" if _reasons(beat) else "green"


def _reasons(beat: dict[str, Any]) -> list[str]:
    readyz = beat.get("readyz")
    reasons = readyz.get("reasons") if isinstance(readyz, dict) else None
    return [shown(each) for each in reasons or ()]
