"""`fnctl ls --watch`: the table in place on a terminal, else a line for every change."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import typer

from admin.cli.errors import INTERRUPTED
from admin.cli.live.events import Broken, Feed, News, follow
from admin.cli.live.state import Changes, Picture
from admin.cli.options import Session
from admin.cli.top.layout import freshness
from admin.cli.top.lines import Line, cut
from admin.text import plain

REDRAW_S: Final = 0.25
BELOW: Final = 2
"""Lines below the table: how fresh it is, and where the cursor stands."""

Render = Callable[[Sequence[dict[str, Any]], float, int | None], str]
"""The table of these lines at the server's time (Unix s), within so many columns."""


def watch(session: Session, render: Render) -> None:
    """Show the functions until Ctrl-C, which ends the command."""
    try:
        if session.as_json or not sys.stdout.isatty():
            _print_changes(session, render)
        else:
            _show(session, render)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def told(news: Iterator[News], clock: Callable[[], float]) -> Iterator[tuple[Picture, str]]:
    """The picture after each news that leaves it whole, and why there will be none for a while."""
    picture = Picture()
    for each in news:
        if isinstance(each, Broken):
            picture.broke(each.why, clock() + each.pause_s)
            yield picture, each.why
            continue
        picture.apply(each.kind, each.data, clock())
        # What a server told before its first beat has no time of its own yet.
        if not picture.is_reading and picture.beat:
            yield picture, ""


def table_lines(picture: Picture, render: Render, now: float, size: tuple[int, int]) -> list[Line]:
    """The table and how fresh it is, within `size` (columns, lines)."""
    width, height = size
    functions = picture.facts.functions
    items = [functions[name] for name in sorted(functions)]
    is_live = picture.is_live(now)
    text = render(items, picture.server_s(now), width) if picture.is_complete else ""
    lines = [cut(((line, "" if is_live else "dim"),), width) for line in plain(text).split("\n")]
    room = max(1, height - BELOW)
    if len(lines) > room:
        left = len(lines) - room + 1
        lines = [*lines[: room - 1], ((f"… and {left} more: fnctl top scrolls", "dim"),)]
    return lines if is_live else [*lines, cut((freshness(picture, now),), width)]


def _print_changes(session: Session, render: Render) -> None:
    """One line of JSON for each function that changed, or its row of the table."""
    changes, is_first, is_lost = Changes(), True, False
    for picture, why in told(follow(session.client.events, time.sleep), time.monotonic):
        if why and not is_lost:
            session.remark(f"reconnecting: {why}")
        is_lost = bool(why)
        changed = [] if why else changes.since(picture.facts.functions)
        if session.as_json:
            for item in changed:
                typer.echo(json.dumps(item))
        elif changed:
            rows = render(changed, picture.server_s(time.monotonic()), None).split("\n")
            typer.echo(plain("\n".join(rows if is_first else rows[1:])))
            is_first = False


def _show(session: Session, render: Render) -> None:
    from rich.console import Console

    from admin.cli.top.terminal import Screen

    feed, picture, screen = Feed(session.client.events), Picture(), Screen(Console(), False)
    screen.open()
    try:
        while True:
            for news in feed.take(REDRAW_S):
                if isinstance(news, Broken):
                    picture.broke(news.why, time.monotonic() + news.pause_s)
                else:
                    picture.apply(news.kind, news.data, time.monotonic())
            screen.show(table_lines(picture, render, time.monotonic(), screen.size))
    finally:
        feed.close()
        screen.close()
