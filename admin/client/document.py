"""JSON answers of the admin API: as the server sent them, and as this release knows them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from importlib.metadata import version
from typing import Any, Final, Generic, TypeVar

import msgspec

from admin.client.transport import ApiError

T = TypeVar("T")
OTHER_RELEASE: Final = "other_release"
"""Code of the error for an answer that lacks what this release reads."""


class Document(Generic[T]):
    """JSON answer of the admin API. It is decoded when it is first read, so that `fnctl --json`
    prints answers of any release."""

    def __init__(
        self,
        sent: dict[str, Any],
        decode: Callable[[], T],
        source: str,
        release: Callable[[], str],
    ) -> None:
        """`decode` returns what `sent` says, or raises msgspec.ValidationError. `source`: method
        and path. `release` returns the version of the server."""
        self.sent = sent
        """What the server sent, with all members; of a list, the items of all pages."""
        self._decode, self._source, self._release = decode, source, release

    @cached_property
    def value(self) -> T:
        """The answer without members that this release does not know. Raises ApiError for a server
        of another release that leaves out a member, or has another type for it."""
        try:
            return self._decode()
        except msgspec.ValidationError as error:
            raise self._of_other_release(error) from error

    def _of_other_release(self, error: msgspec.ValidationError) -> ApiError:
        said = str(error)
        own = version("fngate")
        detail = f"{self._source}: {said[:1].lower()}{said[1:]}; the server is fngate"
        detail += f" {self._release() or 'of an unknown version'}, this fnctl is {own}"
        return ApiError(0, {"code": OTHER_RELEASE, "title": "Other release", "detail": detail})
