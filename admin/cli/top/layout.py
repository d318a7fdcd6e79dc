"""Layout of `fnctl top`: header, devices, functions, activity, footer. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from admin.cli.live.state import ActivityEntry, LiveState
from admin.cli.top import hosts, sections
from admin.cli.top.lines import Line, Span, apart, cut, faded, fit, shown
from admin.cli.top.sections import RowContext
from admin.cli.top.view import View, Visible, sorted_functions
from admin.documents.functions import FunctionRow
from admin.text import ago, number

WIDTH_MIN: Final = 60
HEIGHT_MIN: Final = 15
ROOMY: Final = 24
"""Min lines for blank lines between the parts."""
KEYS: Final = "q quit  / filter  s sort  enter why  w warm  z sleep  ? help"
AGO: Final = 11
_NAMED_KINDS: Final = ("error", "cold start")
"""Kinds of activity whose text does not name the kind."""
HELP: Final = """\
up, down, j, k     select a function
page up, page down scroll by one screen
home, end          select the first, the last
enter              explain its state
w                  make a replica ready
z                  stop its idle replicas now
/                  filter by name or state; escape clears it
s                  change the sort order
q                  quit

READY  ready replicas, of the maximum
HELD   requests that wait for a replica
IN FL  requests that are running
RATE   answers per second, over ten seconds
P50    median latency of the last minute
P95    95th percentile of the last minute
NEXT   current phase while waking, and the time left;
       when its idle replica stops; how long a call waits
TREND  RATE over the last minute, one column per second

A screen in grey is old: the first line shows its age."""


@dataclass(frozen=True, slots=True)
class ScreenState:
    """Input of a screen besides the live state. `pages`: lines of text by page."""

    url: str
    view: View = field(default_factory=View)
    message: str = ""
    pages: Mapping[str, Sequence[str]] = field(default_factory=dict)


def screen_lines(
    live: LiveState, state: ScreenState, now: float, size: tuple[int, int]
) -> tuple[list[Line], View, Visible]:
    """Return a screen's lines for `size` (columns, lines), the scrolled view, and keys' targets."""
    width, height = size
    view = state.view
    items = sorted_functions(live.resources.functions.values(), view.sort, view.filter)
    names = [item.name for item in items]
    if width < WIDTH_MIN or height < HEIGHT_MIN:
        text = f"{width}x{height} is too small: fnctl top needs {WIDTH_MIN}x{HEIGHT_MIN}"
        return [cut(((text, "bold"),), width)], view, Visible(names, 1)
    head = header(live, state.url, now, width)
    foot = footer(view, state.message, width)
    room = height - len(head) - 1
    context = RowContext(live, now, live.server_s(now))
    if view.page in ("why", "help"):
        text_lines = state.pages.get(view.page, ())
        body = _text(text_lines, view.scroll, room, width)
        visible = Visible(names, room, len(text_lines), room)
    else:
        body, view, rows = _overview(items, names, view, context, (width, room))
        visible = Visible(names, rows)
    if not live.is_live(now):
        body = [faded(line) for line in body]
    body = [*body, *((((" "), ""),) for _ in range(room - len(body)))]
    return [*head, *body[:room], foot], view, visible


def full_lines(live: LiveState, state: ScreenState, now: float, width: int) -> list[Line]:
    """Return all rows on as many lines as needed, for a file or a pipe."""
    resources = live.resources
    context = RowContext(live, now, live.server_s(now))
    items = sorted_functions(resources.functions.values(), state.view.sort, state.view.filter)
    parts = [
        header(live, state.url, now, width),
        hosts.rows(live, len(resources.devices) + len(resources.hosts), width),
        _table(items, state.view.sort, context, width),
        activity_lines(live.activity, len(live.activity), context.server_s, width),
    ]
    lines: list[Line] = []
    for part in parts:
        lines += [*([()] if lines and part else []), *part]
    return lines


def _overview(
    items: list[FunctionRow],
    names: list[str],
    view: View,
    context: RowContext,
    size: tuple[int, int],
) -> tuple[list[Line], View, int]:
    """Return the lines of devices, functions and activity within `size` (columns, lines), the view,
    and the number of rows for functions."""
    width, room = size
    live = context.live
    gap = 1 if room >= ROOMY else 0
    shown_devices = hosts.rows(live, max(2, room // 4), width)
    # Activity gets the rows that functions leave free.
    left = room - len(shown_devices) - max(1, len(items)) - 1 - 2 * gap
    entries = activity_lines(live.activity, max(2, room // 5, left), context.server_s, width)
    rows = max(1, room - len(shown_devices) - len(entries) - 1 - gap * (1 + bool(entries)))
    view = view.scrolled(names, rows)
    kept = sections.columns(width, names)
    lines = [sections.head(kept, view.sort)]
    for at in range(view.top, min(len(items), view.top + rows)):
        is_selected = at == view.index(names)
        lines.append(sections.row(items[at], kept, context, is_selected))
    if not items:
        lines.append(((nothing(live, view.filter), "dim"),))
    empty = [()] * (rows + 1 - len(lines))
    space = [()] * gap
    after = space if entries else []
    return [*shown_devices, *space, *lines, *empty, *after, *entries], view, rows


def nothing(live: LiveState, wanted: str) -> str:
    """Return the text that replaces missing rows."""
    if not live.is_complete:
        return "reading …"
    if wanted:
        return f"no function has {wanted!r} in its name or as its state"
    return "no functions yet: fnctl deploy model.onnx"


def _table(items: list[FunctionRow], sort: str, context: RowContext, width: int) -> list[Line]:
    kept = sections.columns(width, [item.name for item in items])
    if not items:
        return [((nothing(context.live, ""), ""),)]
    return [
        sections.head(kept, sort),
        *(sections.row(item, kept, context, False) for item in items),
    ]


def _text(lines: Sequence[str], scroll: int, room: int, width: int) -> list[Line]:
    """Return the visible part of a text, cut at the screen's width."""
    return [
        ((fit(line, width) if len(line) > width else line, ""),)
        for line in lines[scroll : scroll + room]
    ]


def wrapped(text: str, width: int) -> list[str]:
    """Return a text as wrapped lines, without control characters."""
    lines: list[str] = []
    for line in text.splitlines():
        safe = "".join(c if c.isprintable() else " " for c in line)
        lines += [safe[at : at + width] for at in range(0, max(1, len(safe)), width)]
    return lines


def header(live: LiveState, url: str, now: float, width: int) -> list[Line]:
    """Return the header: the server with its freshness, its figures, and its problems if any."""
    left: tuple[Span, ...] = (("fnctl top", "bold"), (f"  {url}  {_about(live, now)}", ""))
    first = apart(left, (freshness(live, now),), width)
    resources, beat = live.resources, live.beat
    warm = sum(one.state == "warm" for one in resources.functions.values())
    used = sum(one.state != "free" for one in resources.devices.values())
    standbys = sum(one.role == "standby" for one in resources.replicas.values())
    figures = [
        f"held {number(beat.held if beat else 0)}",
        f"in flight {number(beat.in_flight if beat else 0)}",
        f"{number(beat.rate if beat else 0)}/s",
        f"warm {warm} of {len(resources.functions)}",
        f"replicas {len(resources.replicas) - standbys}",
        *([f"standbys {standbys}"] if standbys else []),
        f"devices {used} of {len(resources.devices)} in use",
    ]
    if len(resources.hosts) > 1:
        up = sum(one.state == "up" for one in resources.hosts.values())
        figures.append(f"hosts {up} of {len(resources.hosts)} up")
    status, reasons = (beat.readyz.status, beat.readyz.reasons) if beat else ("", [])
    readiness = (status, "bold red" if reasons else "green")
    lines = [first, apart((("   ".join(figures), ""),), (readiness,), width)]
    if reasons:
        lines.append(cut((("; ".join(map(shown, reasons)), "bold red"),), width))
    if live.ignored:
        lines.append(cut((ignored(live),), width))
    return lines


def _about(live: LiveState, now: float) -> str:
    """Return the facts of the server, "" before they are known."""
    server, server_s = live.resources.server, live.server_s(now)
    if server is None:
        return ""
    facts = [f"fngate {server.version}", server.driver]
    if server.workers > 1:
        facts.append(f"{server.workers} workers")
    if server_s:
        facts.append(f"up {ago(server.started_s, server_s).removesuffix(' ago')}")
    return "  ".join(map(shown, facts))


def ignored(live: LiveState) -> Span:
    """Return which events are ignored, and why."""
    several = (f"{shown(kind)}: {shown(why)}" for kind, why in live.ignored.items())
    return f"ignored events: {'; '.join(several)}", "bold yellow"


def freshness(live: LiveState, now: float) -> Span:
    """Return "live", or how old the state is."""
    age = f"{live.age_s(now):.0f} s old"
    if live.retry_s is not None:
        left_s = live.retry_s - now
        when = f" in {left_s:.0f} s" if left_s >= 1 else ""
        return f"reconnecting{when}: {age}", "bold yellow"
    if live.is_live(now):
        return "live", "bold green"
    return ("reading …" if live.is_reading else f"silent: {age}"), "bold yellow"


def activity_lines(
    entries: Iterable[ActivityEntry], room: int, server_s: float, width: int
) -> list[Line]:
    """Return the last `room` entries, the newest last."""
    last = list(entries)[-room:] if room else []
    lines = []
    for each in last:
        when = ago(each.at_s, server_s) if server_s else ""
        spans = [
            (f"{when:>{AGO}}  ", "dim"),
            (f"{each.function}  " if each.function else "", "bold"),
            (f"{each.kind}: " if each.kind in _NAMED_KINDS else "", "red" if each.is_bad else ""),
            (each.text, "red" if each.is_bad else ""),
        ]
        lines.append(cut(spans, width))
    return lines


def footer(view: View, message: str, width: int) -> Line:
    """Return the footer: the open question, the last message, or the keys."""
    if view.page == "filter":
        return cut(
            (("/", "bold"), (view.filter, ""), ("█  enter keeps it, escape clears it", "dim")),
            width,
        )
    if view.page == "confirm":
        asked = f"stop the idle replicas of {view.selected} now? y/n"
        return cut(((asked, "bold yellow"),), width)
    if view.page in ("why", "help"):
        return cut((("escape back  up, down scroll", "dim"),), width)
    if message:
        return cut(((shown(message), "bold"),), width)
    sort = f"sort {view.sort}"
    if view.filter:
        sort = f"filter {view.filter}  {sort}"
    return apart(((KEYS, "dim"),), ((sort, "dim"),), width)
