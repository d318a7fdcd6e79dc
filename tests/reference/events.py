"""docs/reference/events.md: the event streams of the admin API."""

from __future__ import annotations

from collections.abc import Mapping

from admin.documents.events import LOG_EVENTS, SERVER_EVENTS
from tests.reference.markdown import code, page, words, wrapped

TITLE = "Events"
INTRO = """
Two routes of the [admin API](admin-api.md) are streams of server-sent events: `GET
/admin/v1/events` and, with `Accept: text/event-stream`, `GET /admin/v1/functions/{name}/logs`. Both
need the scope `read`. The data of each event is one JSON object on one line.

A client that reconnects sends the last `id` as `Last-Event-ID`. The stream then continues after
that event, or begins again if the server no longer has the events in between.
"""
STREAMS = {
    "events": (
        "State and events of the server",
        "`GET /admin/v1/events` begins with the whole state: `reset`, `hosts`, `devices`, "
        "`functions`, `replicas`, the latest events, then `ready`. After that it has "
        "every change. `?function=NAME` restricts it to one function.",
    ),
    "logs": (
        "Logs of a function",
        "`GET /admin/v1/functions/{name}/logs` begins with the last `lines` of each "
        "replica and continues until the function is removed.",
    ),
}
EVENTS: dict[str, Mapping[str, type]] = {"events": SERVER_EVENTS, "logs": LOG_EVENTS}
"""Types of the events of each stream, by name."""


def document() -> str:
    """The page."""
    blocks = []
    for stream, (title, text) in STREAMS.items():
        blocks += [f"## {title}", wrapped(text)]
        for name, kind in EVENTS[stream].items():
            blocks += [f"### {code(name)}", wrapped(words(kind, whole=True))]
            blocks += [f"Data: [{code(kind.__name__)}](admin-api.md#{kind.__name__.lower()})."]
    return page(TITLE, INTRO, *blocks)
