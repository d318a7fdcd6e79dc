"""Problem documents (RFC 9457), as every answer of an error has them. Pure."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from hosts.checks import Check


class ProblemMembers(msgspec.Struct, kw_only=True):
    """Members beside those of RFC 9457: `detail` and `admin_detail` of an error's class, each with
    some codes only."""

    input: str | UnsetType = UNSET
    """Name of the faulty input."""
    key: str | UnsetType = UNSET
    """Key of function.toml."""
    expected: str | UnsetType = UNSET
    """The value that was required."""
    got: str | UnsetType = UNSET
    """The actual value."""
    nearest: list[str] | UnsetType = UNSET
    """Known names that are similar."""
    known: list[str] | UnsetType = UNSET
    """All keys that are known there."""
    param: str | UnsetType = UNSET
    """Member or parameter of the request."""
    path: str | UnsetType = UNSET
    """File of the bundle."""
    rule: str | UnsetType = UNSET
    """Rule that the file breaks."""
    node: str | UnsetType = UNSET
    """Node of the model."""
    allow: list[str] | UnsetType = UNSET
    """Methods that are allowed."""
    accepted: list[str] | UnsetType = UNSET
    """Content codings that are accepted."""
    revisions: list[int] | UnsetType = UNSET
    """Numbers of the revisions that there are."""
    function: str | UnsetType = UNSET
    """Function that has the name already."""
    functions: list[str] | UnsetType = UNSET
    """Functions that need what was to be removed."""
    breaks: list[str] | UnsetType = UNSET
    """Changes that break callers."""
    stage: str | UnsetType = UNSET
    """Step of a deploy or of a start that failed."""
    parity: list[dict[str, str | float]] | UnsetType = UNSET
    """Outputs of a compiled model beside those of the ordinary one, each an `OutputParity`; its
    module takes `fnctl` longer to import than the rest of a short command."""
    error: str | UnsetType = UNSET
    """The detail once more, for clients that read this member."""
    hint: str | UnsetType = UNSET
    """What mends it."""
    checks: list[Check] | UnsetType = UNSET
    """Results of the checks of a refused host."""
    host_key: str | UnsetType = UNSET
    """Public key that a refused host has shown."""
    retry_after_s: int | UnsetType = UNSET
    """Seconds after which the request may succeed."""
    kept_by: list[str] | UnsetType = UNSET
    """Functions whose `min` keeps the devices. With the scope admin."""
    log_tail: list[str] | UnsetType = UNSET
    """Last lines of a replica's log. With the scope admin."""


class Problem(ProblemMembers):
    """A problem document (RFC 9457). Members that may be missing belong to some codes."""

    type: str
    title: str
    status: int
    detail: str
    code: str


class PartialProblem(ProblemMembers):
    """A problem document that may have nothing: that of an operation, or of another server."""

    type: str | UnsetType = UNSET
    title: str | UnsetType = UNSET
    status: int | UnsetType = UNSET
    detail: str | UnsetType = UNSET
    code: str | UnsetType = UNSET
