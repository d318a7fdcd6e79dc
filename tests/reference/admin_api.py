"""docs/reference/admin-api.md: the routes of the admin API."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from admin.api.documents.routes import PREFIX
from admin.api.functions import page_of
from admin.api.table import Handlers
from admin.api.table import table as routes
from tests.reference.markdown import code, items, page, table, words, wrapped
from tests.reference.recorded import section, skeleton

TITLE = "Admin API"
INTRO = f"""
The admin API is at `{PREFIX}` of every server. `fnctl` and the dashboard use nothing else. Each
request needs `Authorization: Bearer KEY` with the admin token of the data folder, or with an access
key that has the scope of the route. The scope `deploy` includes `read`; `admin` includes every
scope.

Bodies and answers are JSON. Errors are [problems](problems.md). An answer with `items` is a list;
`next` is the cursor of the next page, or null.
"""
QUERY = {
    "alias": "The alias.",
    "force": "`true` to remove a secret that functions need, or an unreachable host with replicas.",
    "function": "The only function that is wanted. Without it: all.",
    "by": "`function` or `key`; by default `function`.",
    "hours": "Hours before now.",
    "limit": "Maximum items of a page.",
    "lines": "Maximum lines of each replica.",
    "next": "Cursor of the page.",
    "phase": "Phase that the client knows: the answer is delayed while the operation is in it.",
    "since": "Beginning: hours or days before now, such as `24h` and `7d`, or a date (UTC), such as"
    " `2026-11-01`. Whole hours count. By default `24h`.",
    "unchecked": "`true` to store a host without logging in to it.",
    "size": "Size of the blob in bytes.",
    "wait": "Seconds that the answer may be delayed.",
}
"""Meanings of the parameters of queries."""
HEADERS = {
    "If-Match": "The `ETag` of `GET /functions/{name}`. Required.",
    "Last-Event-ID": "Id of the last event that the client has: the stream continues after it.",
}
"""Meanings of the headers of requests."""
SUCCESS = {"ACCEPTED": 202, "CREATED": 201}
SUBJECTS = {
    "blobs": "Uploads",
    "functions": "Functions",
    "operations": "Operations",
    "timeline": "History of all functions",
    "usage": "Usage of models",
    "cost": "Costs",
    "pools": "Pools, replicas and devices",
    "replicas": "Pools, replicas and devices",
    "devices": "Pools, replicas and devices",
    "hosts": "Hosts",
    "events": "Events",
    "session": "Keys and session",
    "keys": "Keys and session",
    "access": "Keys and session",
    "secrets": "Secrets",
    "aliases": "Aliases",
    "images": "Images",
    "environments": "Environments",
    "backup": "Backup",
}
"""Headings by the first word of a path."""
JSON_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "true or false"}
CALL = re.compile(r"""query(?:\.get\(|, )"(\w+)"(?:, (\w+), (\w+)\))?""")


def document() -> str:
    """The page. Raises KeyError for a parameter, a header or a path without words."""
    handlers = Handlers(*typing.get_type_hints(Handlers).values())  # unbound: for their docstrings
    rows = [(row.method, row.path, row.need, row.handler) for row in routes(handlers)]
    index = table(
        ("route", "what it does"), (_row(*row) for row in sorted(rows, key=itemgetter(1)))
    )
    blocks: dict[str, list[str]] = {"All routes": [index]}
    for method, path, scope, handler in rows:
        subject = SUBJECTS[path.split("/")[1]]
        blocks.setdefault(subject, []).extend(_section(method, path, scope, handler))
    found = (one for subject, lines in blocks.items() for one in (f"## {subject}", *lines))
    return page(TITLE, INTRO, *found)


def _row(method: str, path: str, _scope: str, handler: Any) -> tuple[str, str]:
    anchor = re.sub(r"[^\w ]", "", f"{method} {path}").lower().replace(" ", "-")
    what = re.split(r"(?<=[.;:]) ", words(handler))[0].rstrip(".;:")
    return f"[{code(f'{method} {path}')}](#{anchor})", f"{what}."


def _section(method: str, path: str, scope: str, handler: Any) -> Iterator[str]:
    route = f"{method} {PREFIX}{path}"
    yield f"### {code(f'{method} {path}')}"
    yield wrapped(words(handler, whole=True))
    text = _source(handler)
    status = next((number for name, number in SUCCESS.items() if name in text), 200)
    facts = [f"Scope: {code(scope)}", f"Status: {status}"]
    headers = [name for name in re.findall(r'headers\.get\("([\w-]+)"', text) if name in HEADERS]
    facts += [f"Header {code(name)}: {HEADERS[name]}" for name in dict.fromkeys(headers)]
    facts += [f"Query {code(name)}: {text}" for name, text in _query(handler, text)]
    sent = [line.removeprefix(f"{route}: ") for line in section("headers") if f"{route}: " in line]
    shown = [code(name) for name in ("Etag", "Location") if name in sent]
    facts += [f"Answer's header: {', '.join(shown)}"] if shown else []
    yield items(facts)
    body = _of(f"{method} {path.lstrip('/')}", "requests of the admin API")
    if body:
        yield "Body:"
        rows = ((code(key), kind) for key, kind in _fields(body))
        yield table(("key", "type"), rows)
    answer = _of(route, "answers")
    if answer:
        yield f"Answer:\n\n```json\n{skeleton(answer)}\n```"


def _source(handler: Any) -> str:
    """The source of a handler with what it calls to read the query."""
    text = inspect.getsource(handler)
    if "page_of(" in text:
        text += inspect.getsource(page_of)
    if "self._span(" in text:
        owner = handler.__globals__[handler.__qualname__.partition(".")[0]]
        text += inspect.getsource(owner._span)
    return text


def _query(handler: Any, text: str) -> Iterator[tuple[str, str]]:
    values = {**vars(inspect.getmodule(page_of)), **handler.__globals__}
    for name, default, most in CALL.findall(text):
        limits = ""
        if default:
            first, last = (int(one) if one.isdecimal() else values[one] for one in (default, most))
            limits = f" At most {last}, by default {first}."
        yield name, QUERY[name] + limits


def _of(route: str, name: str) -> list[str]:
    """The lines of a section about one route, without the route."""
    lines = (line.removeprefix(route) for line in section(name) if line.startswith(route))
    return [line for line in lines if line[0] in ".["]


def _fields(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Keys of a request body: `~` marks one that may be left out."""
    for line in lines:
        path, _, kind = line.partition(": ")
        kind, _, default = kind.partition(" = ")
        facts = [JSON_TYPES.get(kind, kind), *(["optional"] if "~" in path else [])]
        if default not in ("", "None", "''"):
            facts.append(f"default {code(default.lower())}")
        yield path.lstrip(".").replace("~", "").replace("?", ""), ", ".join(facts)
