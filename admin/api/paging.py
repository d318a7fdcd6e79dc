"""Lists in pages: `{"items": [...], "next": CURSOR}`, and `?next=CURSOR` for the page after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar

from aiohttp import web

from gateway.problems import json_answer
from registry.errors import BadRequest

T = TypeVar("T")

PAGE_MAX: Final = 1000
"""Items of one page, and of a page whose length nobody chose: ten or so milliseconds of the loop,
in which no request is answered."""
CURSOR_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Page:
    """What part of a list is asked for: at most `limit` items, from the cursor `start` on."""

    limit: int
    start: str

    def answer(
        self, rows: Iterable[T], cursor: Callable[[T], str], view: Callable[[T], dict[str, Any]]
    ) -> web.Response:
        """The first rows as `view` shows them. `rows` begin with the page and are in the order of
        their cursors; where there are more, `next` is the cursor of the first one left out."""
        found = list(islice(rows, self.limit + 1))
        following = cursor(found[self.limit]) if len(found) > self.limit else None
        items = [view(row) for row in found[: self.limit]]
        return json_answer({"items": items, "next": following})


def page_of(query: Mapping[str, str]) -> Page:
    """The page that a request's query asks for. Raises BadRequest."""
    start = query.get("next", "")
    if len(start) > CURSOR_MAX:
        raise BadRequest(f"next: expected at most {CURSOR_MAX} characters, got {len(start)}")
    return Page(whole_number(query, "limit", PAGE_MAX, PAGE_MAX), start)


def whole_number(query: Mapping[str, str], key: str, default: int, most: int) -> int:
    """The number from 1 to `most` that a query gives for `key`. Raises BadRequest."""
    text = query.get(key, str(default))
    if not (text.isascii() and text.isdecimal()) or len(text) > 9 or not 1 <= int(text) <= most:
        raise BadRequest(f"{key}: expected a whole number from 1 to {most}, got {text[:40]!r}")
    return int(text)
