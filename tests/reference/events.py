"""docs/reference/events.md: the event streams of the admin API."""

from __future__ import annotations

from tests.reference.markdown import code, page, wrapped
from tests.reference.recorded import section

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
MEANINGS = {
    "events.beat": "Totals of the server, once a second.",
    "events.cold_start": (
        "A cold start ended. `outcome` is `ready` or `failed`; `phases` are milliseconds."
    ),
    "events.decision": (
        "A decision of the pool manager with its reason. `function` is empty for standbys."
    ),
    "events.devices": (
        "New state of devices, also part of the state at the beginning. Items are as in [`GET"
        " /devices`](admin-api.md#get-devices)."
    ),
    "events.error": (
        "An error that calls were answered with, unless it was a mistake of the client. "
        "`count` joins equal errors within a second."
    ),
    "events.functions": (
        "New state of functions, also part of the state at the beginning. Items are as in "
        "[`GET /functions`](admin-api.md#get-functions)."
    ),
    "events.gone": (
        "Names of functions and hosts, and ids of replicas and devices, that no longer exist."
    ),
    "events.host": (
        "The life of a host: `change` is `added`, `up`, `unreachable`, `gone`, `draining` or "
        "`removed`. A host that is unreachable for `FN_HOST_LOST_S` is gone: until then its "
        "replicas may run on."
    ),
    "events.hosts": (
        "New state of hosts, also part of the state at the beginning. Items are as in [`GET "
        "/hosts`](admin-api.md#get-hosts)."
    ),
    "events.operation": "A step of a deploy or a rollback.",
    "events.ready": "The state at the beginning is complete. The data is an empty object.",
    "events.replicas": (
        "New state of replicas, also part of the state at the beginning. Items are as in "
        "[`GET /replicas`](admin-api.md#get-replicas)."
    ),
    "events.reset": "The state begins: a client discards what it had. `reason` says why.",
    "logs.end": "A replica has ended; no more lines of it follow.",
    "logs.lines": "Lines of one replica, with line breaks between them.",
}
"""What each event says. `document` raises where one is missing or left over."""


def document() -> str:
    """The page."""
    fields: dict[str, list[str]] = {}
    for line in section("events"):
        stream, name, *rest = line.replace(" field ", ".field.").split(".", 2)
        if name != "field":
            at = fields.setdefault(f"{stream}.{name}", [])
            at += rest
    if fields.keys() != MEANINGS.keys():
        raise ValueError(f"MEANINGS does not fit the events: {fields.keys() ^ MEANINGS.keys()}")
    blocks = []
    for stream, (title, text) in STREAMS.items():
        blocks += [f"## {title}", wrapped(text)]
        for at, lines in fields.items():
            if at.startswith(f"{stream}."):
                blocks += [f"### {code(at.removeprefix(f'{stream}.'))}", wrapped(MEANINGS[at])]
                blocks += [wrapped(_fields(lines))] if lines else []
    return page(TITLE, INTRO, *blocks)


def _fields(lines: list[str]) -> str:
    prefix = "items[]."
    whose = "of each item in `items`" if lines[0].startswith(prefix) else "of the data"
    return f"Fields {whose}: {', '.join(code(one.removeprefix(prefix)) for one in lines)}."
