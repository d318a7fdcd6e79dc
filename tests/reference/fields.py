"""docs/reference/fields.md: header fields that do not pass as they are."""

from __future__ import annotations

from collections.abc import Iterable

from registry.field_classes import ANSWER_CLASSES, REQUEST_CLASSES, TRAILERS, FieldClass
from tests.reference.markdown import code, page, table, wrapped

TITLE = "Header fields"
INTRO = """
What fngate does with the header fields of calls to [server functions](../guides/servers.md): below
`/fn/NAME/`, at a function's own host, at `/v1`, and in handshakes of WebSockets. A field in no
class passes as it is, in both directions. `*` stands for any end of a name; case does not matter.
"""
REQUESTS = """
Characters other than letters and digits count as `-` here, because some servers of the CGI family
read them alike.
"""
INTERIM = "The same holds for interim answers (100, 103)."


def document() -> str:
    """The page."""
    return page(
        TITLE,
        INTRO,
        "## Requests",
        wrapped(REQUESTS),
        _classes(REQUEST_CLASSES),
        "## Answers",
        wrapped(INTERIM),
        _classes(ANSWER_CLASSES),
        "## Trailers",
        _classes((TRAILERS,)),
    )


def _classes(classes: Iterable[FieldClass]) -> str:
    head = ("class", "fields", "what happens", "why")
    return table(head, ((one.title, _fields(one), one.treatment, one.reason) for one in classes))


def _fields(one: FieldClass) -> str:
    names = [name for name in sorted(one.names) if not name.startswith(one.prefixes or (b"\0",))]
    shown = [*names, *(prefix + b"*" for prefix in one.prefixes)]
    found = ", ".join(code(name.decode().title()) for name in shown)
    kept = ", ".join(code(name.decode().title()) for name in sorted(one.kept))
    return f"{found}; not {kept}" if kept else found
