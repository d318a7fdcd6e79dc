"""Requests and answers of the admin API: bodies, queries and pages.

Each answer is a Struct of `admin.documents`, the one that the document of its route names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

import msgspec
from aiohttp import web

from admin.documents.functions import Items
from admin.documents.requests import CURSOR_MAX, PAGE_MAX
from gateway import problems
from gateway.http.bodies import read_body
from gateway.statuses import OK
from registry.bounded_text import read_json
from registry.errors import BadRequest

T = TypeVar("T")
YES: Final = "true"
REQUEST_MAX: Final = 64 * 1024
"""Max bytes of a body, unless a route says otherwise."""
READ_S: Final = 10.0
"""Max seconds until a body has come."""


def json_answer(
    answer: msgspec.Struct, status: int = OK, headers: dict[str, str] | None = None
) -> web.Response:
    """Return an answer as JSON: the Struct that the route's document names."""
    return problems.json_answer(answer, status, headers)


@dataclass(frozen=True, slots=True)
class Page:
    """Requested part of a list: at most `limit` items from the cursor `start` on."""

    limit: int
    start: str

    def answer(self, rows: Iterable[tuple[str, msgspec.Struct]]) -> web.Response:
        """Answer with the first rows. `rows` are cursors with rows from the page's start on, in
        order; if more of them follow, `next` is the cursor of the first row left out."""
        found = list(islice(rows, self.limit + 1))
        following = found[self.limit][0] if len(found) > self.limit else None
        return json_answer(Items([row for _, row in found[: self.limit]], following))


def page_of(query: Mapping[str, str]) -> Page:
    """Return the page that a request's query asks for. Raises BadRequest."""
    start = query.get("next", "")
    if len(start) > CURSOR_MAX:
        raise BadRequest(f"next: expected at most {CURSOR_MAX} characters, got {len(start)}")
    return Page(whole_number(query, "limit", PAGE_MAX, PAGE_MAX), start)


def whole_number(query: Mapping[str, str], key: str, default: int, most: int) -> int:
    """Return the number from 1 to `most` that a query has for `key`. Raises BadRequest."""
    text = query.get(key, str(default))
    if not (text.isascii() and text.isdecimal()) or len(text) > 9 or not 1 <= int(text) <= most:
        raise BadRequest(f"{key}: expected a whole number from 1 to {most}, got {text[:40]!r}")
    return int(text)


async def read_request(
    request: web.Request,
    kind: type[T],
    subject: str,
    most: int = REQUEST_MAX,
    *,
    is_optional: bool = False,
) -> T:
    """Return the JSON body of a request, of at most `most` bytes, as a Struct. `subject`: what it
    is, in refusals. `is_optional`: no body is an empty object. Raises BadRequest, BodyTooLarge,
    BodyTimeout."""
    body = await read_body(request, most, READ_S)
    return read_json(b"{}" if is_optional and not body else body, kind, subject)


def flag(query: Mapping[str, str], key: str) -> bool:
    """Return whether a query says yes to `key`. Raises BadRequest for any other value."""
    value = query.get(key, "")
    if value not in ("", YES):
        raise BadRequest(f"{key}: expected {YES}, got {value[:40]!r}")
    return value == YES
