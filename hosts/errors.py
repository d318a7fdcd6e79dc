"""Errors of connections to other machines, and how their texts are shown. Imports little: a command
that needs it starts fast."""

from __future__ import annotations

from typing import Final

SHOWN_MAX: Final = 300
"""Max characters of a text that a host sent."""


class Unreachable(Exception):
    """No answer: connection refused or broken, or timeout. A note on it is a hint for the user.

    `host_key` ("TYPE BASE64") is the key that a host showed for which none was known; "" for any
    other failure, also for a key that differs from the known or pinned one. `is_refusal`: one side
    does not accept the other's key, so that an attempt soon afterwards fails as well.
    """

    host_key: str = ""
    is_refusal: bool = False


class ConnectionLost(ConnectionError):
    """The connection to another machine broke: bytes sent before, in either direction, may not have
    arrived."""


class NoSpace(OSError):
    """The file system of a host has no room for a file; the text has both sizes."""


def shown(text: object) -> str:
    """Return text of a host, such as an error, as one short line without control characters."""
    line = "".join(sign if sign.isprintable() else " " for sign in str(text)[: 2 * SHOWN_MAX])
    return " ".join(line.split())[:SHOWN_MAX]
