"""docs/reference/admin-api.md: the routes of the admin API."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from admin.api.table import Handlers, Row
from admin.api.table import table as routes
from admin.documents.openapi import make_routes_document
from admin.documents.routes import PREFIX, ROUTES
from tests.reference.markdown import code, items, page, table, words, wrapped
from tests.surface.admin_api import reached, words_of

TITLE = "Admin API"
INTRO = f"""
The admin API is at `{PREFIX}` of every server. `fnctl` and the dashboard use nothing else. Each
request needs `Authorization: Bearer KEY` with the admin token of the data folder, or with an access
key that has the scope of the route. The scope `deploy` includes `read`; `admin` includes every
scope.

Bodies and answers are JSON; their [types](#types) are at the end. Errors are
[problems](problems.md). A list is `{{"items": [...], "next": ...}}`; `next` is the cursor of the
next page, or null. `GET /openapi.json` has all of this for programs.
"""
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
DOCUMENT = json.loads(make_routes_document(""))
TYPES = DOCUMENT["components"]["schemas"]


def document() -> str:
    """The page. Raises KeyError for a path without a heading."""
    handlers = Handlers(*typing.get_type_hints(Handlers).values())  # unbound: for their docstrings
    rows = routes(handlers)
    index = table(
        ("route", "what it does"), (_row(row) for row in sorted(rows, key=attrgetter("path")))
    )
    blocks: dict[str, list[str]] = {"All routes": [index]}
    for row in rows:
        subject = SUBJECTS[row.path.split("/")[1]]
        blocks.setdefault(subject, []).extend(_section(row))
    blocks["Types"] = [*_types()]
    found = (one for subject, lines in blocks.items() for one in (f"## {subject}", *lines))
    return page(TITLE, INTRO, *found)


def _row(row: Row) -> tuple[str, str]:
    route = f"{row.method} {row.path}"
    anchor = re.sub(r"[^\w ]", "", route).lower().replace(" ", "-")
    what = re.split(r"(?<=[.;:]) ", words(row.handler))[0].rstrip(".;:")
    return f"[{code(route)}](#{anchor})", f"{what}."


def _section(row: Row) -> Iterator[str]:
    route = f"{row.method} {row.path}"
    about = ROUTES[route]
    yield f"### {code(route)}"
    yield wrapped(words(row.handler, whole=True))
    facts = [f"Scope: {code(about.need)}", f"Status: {' or '.join(map(str, about.statuses))}"]
    facts += [f"{one.place.title()} {code(one.name)}: {one.text}" for one in about.parameters]
    facts += [f"Answer's header: {', '.join(map(code, about.sent))}"] if about.sent else []
    operation = DOCUMENT["paths"][f"{PREFIX}{row.path}"][row.method.lower()]
    if body := operation.get("requestBody"):
        facts.append(f"Body{'' if body['required'] else ', optional'}: {_shown(body)}")
    shown = _shown(operation["responses"][str(about.statuses[0])])
    facts += [f"Answer: {shown}"] if shown else []
    yield items(facts)


def _shown(body: dict[str, Any]) -> str:
    """Return the types or media of a body."""
    found = []
    for media, one in body.get("content", {}).items():
        kind = words_of(one["schema"]) if "schema" in one else media
        listed = re.fullmatch("Items_(.+)_", kind)
        found.append(f"list of {_link(listed[1])}" if listed else _link(kind))
    return " or ".join(found)


def _link(kind: str) -> str:
    return f"[{code(kind)}](#{kind.lower()})" if kind in TYPES else code(kind)


def _types() -> Iterator[str]:
    """Yield each type with its meaning and its members."""
    routes = {at: ways for at, ways in DOCUMENT["paths"].items() if at.startswith(PREFIX)}
    for name in reached(TYPES, routes):
        kind = TYPES[name]
        if name.startswith("Items_"):
            continue
        yield f"### {code(name)}"
        yield wrapped(kind.get("description", ""))
        members = kind.get("properties")
        if members is None:
            yield f"One of: {code(words_of(kind))}"
        elif members:
            yield table(("key", "type"), (_member(key, one, kind) for key, one in members.items()))


def _member(key: str, schema: dict[str, Any], kind: dict[str, Any]) -> tuple[str, str]:
    facts = [code(words_of(schema)), *([] if key in kind["required"] else ["optional"])]
    if schema.get("default") not in (None, "", [], {}):
        facts.append(f"default {code(json.dumps(schema['default']))}")
    return code(key), ", ".join(facts)
