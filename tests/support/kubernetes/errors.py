"""Refusals of the API server, in its words."""

from __future__ import annotations

from typing import Any

from tests.support.kubernetes.store import Json, Resource


class Refused(Exception):
    """A request that is answered with a `Status`."""

    def __init__(
        self, code: int, reason: str, message: str, *, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.headers = headers or {}

    def status(self) -> Json:
        """Return the answer's body."""
        return status(self.code, self.reason, self.message)


def status(code: int, reason: str, message: str) -> Json:
    """Return a `Status` that says why a request is refused."""
    said: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}}
    said |= {"status": "Failure", "message": message, "reason": reason, "code": code}
    return said


def not_found(resource: Resource, name: str) -> Refused:
    """Return the refusal of a name that no object has."""
    return Refused(404, "NotFound", f'{resource.qualified} "{name}" not found')


def forbidden(resource: Resource, name: str, why: str) -> Refused:
    """Return the refusal by admission or by access rules."""
    shown = f'{resource.qualified} "{name}"' if name else resource.qualified
    return Refused(403, "Forbidden", f"{shown} is forbidden: {why}")


def conflict(resource: Resource, name: str, why: str, named: str = "") -> Refused:
    """Return the refusal of a change to an object that is another one by now; `named` replaces the
    name of its kind."""
    text = f'Operation cannot be fulfilled on {named or resource.qualified} "{name}": {why}'
    return Refused(409, "Conflict", text)


def invalid(resource: Resource, name: str, why: str) -> Refused:
    """Return the refusal of an object that is none."""
    return Refused(422, "Invalid", f'{resource.kind} "{name}" is invalid: {why}')


def expired(version: int, oldest: int) -> Refused:
    """Return the refusal of a version whose changes are forgotten."""
    return Refused(410, "Expired", f"too old resource version: {version} ({oldest})")
