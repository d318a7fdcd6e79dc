"""Heads of calls, and what they say about limits, wait budget and priority. Pure.

`Prefer: wait` is defined by RFC 7240, `Priority` by RFC 9218.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from gateway.admission.callers import Caller
from gateway.admission.credentials import Credential, read_credential
from gateway.dispatch.call import Priority
from gateway.metrics.key_times import KeyTime
from gateway.observing import records
from gateway.settings import MIB
from registry.catalog import Deployed
from registry.errors import BadRequest
from registry.key_form import KEY
from registry.spec import may_rerun
from runtime_image.codecs.accept import OIP
from runtime_image.link.meta import RequestMeta, pack_request

REQUEST_ID: Final = "X-Request-Id"
TRACEPARENT: Final = "traceparent"
_REQUEST_ID: Final = re.compile(rf"(?!.*{KEY.decode()})[A-Za-z0-9._-]{{1,128}}")
"""Not with a key, which logs and servers of functions would get."""
_WAIT: Final = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?([^\",;\s]*)\"?", re.IGNORECASE)
_SECONDS: Final = re.compile("[0-9]{1,9}")
_URGENCY: Final = re.compile(r"(?:^|,)\s*u\s*=\s*([^,;\s]*)")


class Correlation(NamedTuple):
    """Ids that correlate a request with other systems.

    "" where the client sent none, or one that is not safe in headers and logs. Separate from the
    head because they differ in each request.
    """

    request_id: str = ""
    traceparent: str = ""


NOT_CORRELATED: Final = Correlation()


def correlate(header: Callable[[str], str | None]) -> Correlation:
    """Return the correlation of a request; `header(name)` returns the first value of a header."""
    request_id, traceparent = header(REQUEST_ID), header(TRACEPARENT)
    if request_id is None and traceparent is None:
        return NOT_CORRELATED
    if request_id is None or _REQUEST_ID.fullmatch(request_id) is None:
        request_id = ""
    return Correlation(request_id, records.parse_traceparent(traceparent or ""))


class Head(NamedTuple):
    """Head of one request to `/fn/{ref}`, or of an inference of the Open Inference Protocol.

    Missing headers are None. `version` is None for /fn; else `ref` is the
    model's name, and `version` is the one asked for, "" for none. `host` is None where no browser
    can be the client, as in gRPC.
    """

    ref: str
    host: str | None
    origin: str | None
    fetch_site: str | None
    credential: Credential
    content_type: str | None
    accept: str | None
    json_length: str | None
    prefer: str | None
    priority: str | None
    version: str | None = None

    @property
    def name(self) -> str:
        """The function's name, without the revision."""
        return self.ref.partition("@")[0]

    @property
    def size(self) -> int:
        """Number of characters."""
        secret = self.credential.bearer or ""
        return len(secret) + sum([len(one) for one in self if isinstance(one, str)])

    def meta(self) -> RequestMeta:
        """Return the part of the head that is sent to the replica, without a trace.

        Raises BadRequest on a malformed length.
        """
        length = self.json_length
        if length and not (length.isdecimal() and len(length) < 12):
            text = f"Inference-Header-Content-Length: expected a number, got {length[:40]!r}"
            raise BadRequest(text)
        json_length = int(length) if length else -1
        if self.version is not None:
            # The protocol says in the body what the answer's form is.
            return RequestMeta(OIP, "", json_length, "")
        return RequestMeta(self.content_type or "", self.accept or "", json_length, "")


def make_head(
    ref: str,
    host: str | None,
    header: Callable[[str], str | None],
    names: Iterable[str],
    version: str | None = None,
) -> Head:
    """Build the head of a request; `header(name)` returns the first value of a header, `names` are
    those of all headers."""
    return Head(
        ref,
        host,
        header("Origin"),
        header("Sec-Fetch-Site"),
        read_credential(header, host, names),
        header("Content-Type"),
        header("Accept"),
        header("Inference-Header-Content-Length"),
        header("Prefer"),
        header("Priority"),
        version,
    )


class Route(NamedTuple):
    """Where the calls of a function go."""

    deployed: Deployed
    pool: str
    """Pool of the revision."""
    may_rerun: bool
    """Whether a call that a dying replica may have begun is sent again."""


class CallLimits(NamedTuple):
    """Limits of the calls with one head."""

    wait_s: float
    """Wait budget in seconds."""
    timeout_s: float
    """Max seconds of one run."""
    body_max: int
    """Max bytes of a body."""
    queue_max: int
    """Max calls of the function that are held."""
    priority: Priority


class Admission(NamedTuple):
    """What was decided about the calls with one head. It ends with its caller, and with the next
    version of the catalog."""

    caller: Caller
    route: Route
    limits: CallLimits
    meta: RequestMeta
    """The part of the head that is sent to the replica, without a trace."""
    packed: bytes
    """`meta` as frames have it."""
    applied: str
    """Value of Preference-Applied."""
    is_pinned: bool
    """Whether the head names a revision, so that the call does not follow the traffic."""
    as_of: int
    """Version of the catalog."""
    key_time: KeyTime
    """Time of the function's calls with the caller's key."""


def make_admission(
    head: Head, caller: Caller, deployed: Deployed, as_of: int, maxima: tuple[float, int]
) -> Admission:
    """Return the admission of a head whose caller may call a function.

    `maxima`: of a wait budget in seconds, and of a body in bytes. Raises BadRequest.
    """
    function, meta = deployed.function, head.meta()
    limits, (wait_max_s, body_max) = function.limits, maxima
    wait_s, applied = requested_wait_s(head.prefer, limits.wait_s, wait_max_s)
    return Admission(
        caller,
        Route(deployed, deployed.revision.key, may_rerun(deployed)),
        CallLimits(
            wait_s,
            limits.timeout_s,
            min(limits.body_mib * MIB, body_max),
            limits.queue,
            requested_priority(head.priority, may_be_high=caller.is_high),
        ),
        meta,
        pack_request(meta),
        applied,
        bool(head.version) or "@" in head.ref,
        as_of,
        KeyTime(caller.id, function.namespace, function.name),
    )


def requested_wait_s(prefer: str | None, default_s: float, most_s: float) -> tuple[float, str]:
    """Return the wait budget in seconds, and the value of `Preference-Applied`.

    A `wait` that is not a whole number of seconds is ignored (RFC 7240 section 2).
    """
    match = _WAIT.search(prefer) if prefer else None
    if match is None or not _SECONDS.fullmatch(match[1]):
        return default_s, ""
    seconds = min(float(match[1]), most_s)
    return seconds, f"wait={seconds:.0f}"


def requested_priority(header: str | None, *, may_be_high: bool) -> Priority:
    """Map urgency 0-2 to high, 3 (the default) to normal, 4-7 to low; ignore a malformed header."""
    match = _URGENCY.search(header) if header else None
    if match is None or match[1] not in set("01234567"):
        return Priority.NORMAL
    urgency = int(match[1])
    if urgency < 3:
        return allowed_priority(Priority.HIGH, may_be_high=may_be_high)
    return Priority.NORMAL if urgency == 3 else Priority.LOW


def allowed_priority(wanted: Priority, *, may_be_high: bool) -> Priority:
    """Return the priority of a call: high needs a key that has it, else it is normal."""
    return Priority.NORMAL if wanted is Priority.HIGH and not may_be_high else wanted
