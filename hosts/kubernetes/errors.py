"""Errors of the API server of a cluster."""

from __future__ import annotations

from typing import Final

from hosts.errors import shown

NOT_FOUND: Final = 404
CONFLICT: Final = 409
EXPIRED: Final = 410
TOO_MANY: Final = 429
"""Values of `ApiRefused.code`."""


class ApiRefused(Exception):
    """The API server has refused a request: its answer is a `Status` with an error."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        """`code` is the HTTP status; `reason` is the API's word, such as NotFound, AlreadyExists,
        Conflict, Forbidden, Invalid, Expired, TooManyRequests, "" if it named none; `message` is
        the API server's text."""
        super().__init__(shown(message) or f"{code} {reason}")
        self.code, self.reason = code, reason


class ApiAway(Exception):
    """The API server gives no usable answer: a refused or broken connection, a timeout, a
    certificate that does not verify, an answer that is none of the API's."""


class WatchLost(ApiAway):
    """A watch was silent for longer than bookmarks are apart, or brought a line that cannot be
    used: events may be missing, and a watch from the same version may miss them again."""
