"""View of `fnctl top`: page, selection, filter and order of functions, and the effects of keys.
Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from admin.documents.functions import FunctionRow

_STATES: Final = ("failing", "waking", "draining", "warm", "parked", "cold")
FILTER_MAX: Final = 63
"""Max characters of a filter; names are no longer."""

Key = Callable[[FunctionRow], tuple[Any, ...]]
Page = Literal["list", "filter", "why", "help", "confirm"]
Verb = Literal["why", "warm", "sleep", "redraw", "quit", "interrupt"]


def sorted_functions(items: Iterable[FunctionRow], sort: str, wanted: str) -> list[FunctionRow]:
    """Return the functions that match `wanted`, ordered by `sort` (one of `SORTS`), then by name.

    `wanted` is part of a name, or a whole state; "" matches all.
    """
    key, wanted = SORTS[sort], wanted.casefold()
    matching = [one for one in items if wanted in one.name.casefold() or wanted == one.state]
    return sorted(matching, key=lambda one: (*key(one), one.name))


def _activity(row: FunctionRow) -> tuple[Any, ...]:
    """Sort busy functions first, then failing, warm, parked and cold ones.

    Load counts in powers of two, so that rows do not move with every second's figures.
    """
    load = row.rate + row.held + row.in_flight
    if load > 0 or row.state in ("waking", "draining"):
        return 0, -math.frexp(load)[1] if load else 1000
    return ({"failing": 1, "warm": 2, "parked": 3}.get(row.state, 4),)


SORTS: Final[dict[str, Key]] = {
    "activity": _activity,
    "name": lambda _row: (),
    "state": lambda row: (_STATES.index(row.state),),
    "held": lambda row: (-row.held,),
    "rate": lambda row: (-row.rate,),
    "p95": lambda row: (-(row.p95_ms or 0.0),),
}
"""Orders by their names on the screen; the first is the default."""


@dataclass(frozen=True, slots=True)
class View:
    """Current page, and the position in it.

    `selected` is a function's name, or "" for the first row: the selection follows the function
    when rows move. `top` is the first visible row, `scroll` the first line of a page of text.
    """

    page: Page = "list"
    sort: str = next(iter(SORTS))
    filter: str = ""
    selected: str = ""
    top: int = 0
    scroll: int = 0

    def scrolled(self, names: Sequence[str], rows: int) -> View:
        """Return the view scrolled so that the selected one of `names` is within `rows` rows."""
        at = self.index(names)
        top = max(min(self.top, at, len(names) - rows), at - rows + 1, 0)
        return replace(self, top=top)

    def index(self, names: Sequence[str]) -> int:
        """Return the index of the selected row."""
        return names.index(self.selected) if self.selected in names else 0


@dataclass(frozen=True, slots=True)
class Request:
    """Command of a key, for the function `name` or ""."""

    verb: Verb
    name: str = ""


@dataclass(frozen=True, slots=True)
class Visible:
    """Visible parts of the screen: functions in order, rows for them, lines and rows of a text."""

    names: Sequence[str]
    rows: int
    text_lines: int = 0
    text_rows: int = 0


Pressed = tuple[View, Request | None]


def press(view: View, key: str, visible: Visible) -> Pressed:
    """Return the view after a key, and its request; keys without a meaning change nothing."""
    if key == "interrupt":
        return view, Request("interrupt")
    if key == "redraw":
        return view, Request("redraw")
    return _PAGES[view.page](view, key, visible)


def _list(view: View, key: str, visible: Visible) -> Pressed:
    if moved := _moved(view, key, visible):
        return moved, None
    if key == "q":
        return view, Request("quit")
    selected = visible.names[view.index(visible.names)] if visible.names else ""
    if key == "enter" and selected:
        return replace(view, page="why", selected=selected, scroll=0), Request("why", selected)
    if key == "w" and selected:
        return replace(view, selected=selected), Request("warm", selected)
    if key == "z" and selected:
        return replace(view, page="confirm", selected=selected), None
    return _turned(view, key), None


def _turned(view: View, key: str) -> View:
    """Return the view with another order, filter or page."""
    changes: Mapping[str, Callable[[], View]] = {
        "/": lambda: replace(view, page="filter"),
        "escape": lambda: replace(view, filter="", top=0),
        "s": lambda: replace(view, sort=_after(view.sort), top=0),
        "?": lambda: replace(view, page="help", scroll=0),
        "h": lambda: replace(view, page="help", scroll=0),
    }
    return changes[key]() if key in changes else view


def _filter(view: View, key: str, visible: Visible) -> Pressed:
    if key == "enter":
        return replace(view, page="list"), None
    if key == "escape":
        return replace(view, page="list", filter="", top=0), None
    if key in ("backspace", "clear"):
        kept = view.filter[:-1] if key == "backspace" else ""
        return replace(view, filter=kept, top=0), None
    if len(key) == 1 and len(view.filter) < FILTER_MAX:
        return replace(view, filter=view.filter + key, top=0), None
    return _moved(view, key, visible) or view, None


def _text(view: View, key: str, visible: Visible) -> Pressed:
    """Handle a key on a page of text: an explanation or the help."""
    if key in ("q", "escape", "enter", "?"):
        return replace(view, page="list", scroll=0), None
    last = max(0, visible.text_lines - visible.text_rows)
    steps = _steps(visible.text_rows, visible.text_lines)
    if key in steps:
        return replace(view, scroll=max(0, min(last, view.scroll + steps[key]))), None
    if key == "w" and view.page == "why":
        return view, Request("warm", view.selected)
    return view, None


def _confirm(view: View, key: str, _visible: Visible) -> Pressed:
    listed = replace(view, page="list")
    if key in ("y", "Y"):
        return listed, Request("sleep", view.selected)
    return (listed if key in ("n", "N", "q", "escape", "enter") else view), None


def _moved(view: View, key: str, visible: Visible) -> View | None:
    """Return the view with another row selected; None for keys that do not move."""
    steps = _steps(visible.rows, len(visible.names))
    if key not in steps or not visible.names:
        return None
    at = max(0, min(len(visible.names) - 1, view.index(visible.names) + steps[key]))
    return replace(view, selected=visible.names[at]).scrolled(visible.names, visible.rows)


def _steps(page: int, whole: int) -> dict[str, int]:
    """Return the number of rows that each key moves."""
    page = max(1, page - 1)
    return {
        "up": -1,
        "k": -1,
        "down": 1,
        "j": 1,
        "page up": -page,
        "page down": page,
        " ": page,
        "home": -whole,
        "end": whole,
    }


def _after(sort: str) -> str:
    """Return the next order, cyclically."""
    names = list(SORTS)
    return names[(names.index(sort) + 1) % len(names)]


_PAGES: Final[Mapping[Page, Callable[[View, str, Visible], Pressed]]] = {
    "list": _list,
    "filter": _filter,
    "why": _text,
    "help": _text,
    "confirm": _confirm,
}
