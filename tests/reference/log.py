"""docs/reference/log.md: the server's log."""

from __future__ import annotations

from itertools import groupby

from tests.reference.markdown import code, page, table, wrapped
from tests.reference.recorded import section
from tests.surface.source import LEVELS

TITLE = "Log"
INTRO = """
The server's own log goes to standard error. `FN_LOG_FORMAT` selects text for people or one JSON
object per line: see [Settings](settings.md#logs-and-traces). Event names and fields are stable;
what replicas write has a log of its own.
"""
ACCESS = """
With `FN_ACCESS_LOG=true` each call of a function adds one line of the level `info` with the event
`request`. The outcome is `ok`, the code of the [problem](problems.md), or `client_left`. Times of
phases are milliseconds; in JSON they are one object, `phases`.
"""
EVENTS = """
Every event of the server's log, by level. A field `exc_info` stands for a traceback. `{}` is a
value inside a name.
"""
LEVEL_ORDER = [one for one in reversed(LEVELS) if one != "exception"]


def document() -> str:
    """The page."""
    fields, events = [], []
    for line in section("log"):
        kind, _, rest = line.partition(".")
        if kind == "access":
            fields.append(rest)
        elif kind != "line":
            events.append(_event(line))
    by_level = sorted(set(events), key=lambda one: (LEVEL_ORDER.index(one[0]), one[1:]))
    blocks = ["## Access log", wrapped(ACCESS), table(("field", "type"), map(_field, fields))]
    blocks += ["## Events", wrapped(EVENTS)]
    for level, group in groupby(by_level, key=lambda one: one[0]):
        rows = ((code(name), fields) for _, name, fields in group)
        blocks += [f"### Level {code(level)}", table(("event", "fields"), rows)]
    return page(TITLE, INTRO, *blocks)


def _event(line: str) -> tuple[str, str, str]:
    """Level, name and fields; `exception` is the level `error` with a traceback."""
    level, _, rest = line.partition(" ")
    quote = rest[0]
    name, _, keys = rest[1:].partition(f"{quote}")
    names = [one for one in keys.split() if one != "**"]
    if level == "exception":
        level, names = "error", [*names, "exc_info"]
    return level, name, ", ".join(code(one) for one in dict.fromkeys(names))


def _field(line: str) -> tuple[str, str]:
    path, _, kind = line.partition(": ")
    kind, _, _ = kind.partition(" = ")
    optional = ", not always" if "~" in path else ""
    words = {"int": "integer", "float": "number", "str": "text", "bool": "true or false"}
    name = path.replace("~", "").replace("?", "").replace(".*", ".PHASE")
    return code(name), words.get(kind, kind.replace("'", "`")) + optional
