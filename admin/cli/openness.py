"""The line of text about who may call without a key."""

from __future__ import annotations

from admin import documents as d


def openness_line(found: d.server.AccessState) -> str:
    """Return who may call without a key, and what changes that."""
    exposure = ", ".join(found.exposure)
    if found.openness == "closed":
        has_none = "" if found.has_keys else ", and there is none: fnctl key add"
        return f"closed: every call needs a key{has_none}"
    if found.openness == "open":
        known = f"; these do not: {exposure}" if exposure else ""
        return (
            "open: everybody who reaches the server may call without a key, through proxies too;"
            f" the first key closes it, or a start with a public host or trusted proxy{known}"
        )
    return (
        "local: callers of this machine need no key, and what a proxy passes on does; the first key"
        " closes it, or a start with a public host or trusted proxy"
    )
