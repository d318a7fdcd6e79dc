"""What stands above and below the rows: the server, what happened last, keys. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from admin.cli.live.happenings import Happening, seconds
from admin.cli.live.picture import Picture
from admin.cli.text import ago, get, number
from admin.cli.top.lines import Line, Span, apart, cut, shown
from admin.cli.top.view import View

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
