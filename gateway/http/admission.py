"""Admission of a request by its head: access, limits, wait budget and priority.

`Admissions` caches the admission of a head until the catalog or the keys change. `Prefer: wait` is
defined by RFC 7240, `Priority` by RFC 9218.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable
from typing import Final, NamedTuple

from gateway.access import Access, Credential, credential_of
from gateway.dispatch.call import Priority
from gateway.metrics.key_times import KeyTime
from gateway.observing import records
from gateway.oip.names import find_served
from gateway.settings import MIB
from registry.catalog import Catalog, Deployed
from registry.errors import BadRequest
from registry.key_form import KEY
from registry.spec import may_rerun
from runtime_image.codecs.accept import OIP
from runtime_image.link.meta import RequestMeta

REQUEST_ID: Final = "X-Request-Id"
TRACEPARENT: Final = "traceparent"
CALLS: Final = "/fn"
"""Path that stands for all calls where origins are checked."""
HEAD_MAX: Final = 1024
"""Max characters of a cached head."""
KEPT_MAX: Final = 4096
"""Max cached heads. At the limit the cache is cleared, and each head is checked once more."""
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

    Missing headers are None, except `authorization`. `version` is None for /fn; else `ref` is the
    model's name, and `version` is the one asked for, "" for none. `host` is None where no browser
    can be the client, as in gRPC.
    """

    ref: str
    host: str | None
    origin: str | None
    fetch_site: str | None
    authorization: Credential
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
        credential_of(header("Authorization"), host, names),
        header("Content-Type"),
        header("Accept"),
        header("Inference-Header-Content-Length"),
        header("Prefer"),
        header("Priority"),
        version,
    )


class Admission(NamedTuple):
    """Rules for holding and running the calls with one head.

    `applied`: value of Preference-Applied. `as_of`: version of the catalog. `key_time`: of the
    function's calls with the head's key. `may_be_high`: whether the key's calls may have the
    priority high.
    """

    deployed: Deployed
    pool: str
    meta: RequestMeta
    wait_s: float
    applied: str
    timeout_s: float
    body_max: int
    queue_max: int
    priority: Priority
    may_rerun: bool
    is_pinned: bool
    as_of: int
    key_time: KeyTime
    may_be_high: bool


class Admissions:
    """Cache of admissions by head.

    With the same keys and the same catalog, the same head always gets the same admission. The HTTP
    reader provides a cache key for each head.
    """

    def __init__(
        self, access: Access, catalog: Catalog, wait_max_s: float, held_bytes_max: int
    ) -> None:
        """Create an empty cache. `held_bytes_max` bounds all bodies together, so each one, too."""
        self._access = access
        self._catalog = catalog
        self._wait_max_s = wait_max_s
        self._held_bytes_max = held_bytes_max
        self._known: dict[Hashable, Admission] = {}
        self._as_of = self._keys_as_of = -1

    def find(self, key: Hashable) -> Admission | None:
        """Return the cached admission of a head, None if there is none or it is outdated."""
        if self._as_of != self._catalog.version or self._keys_as_of != self._access.ring.version:
            self._forget_all()
        return self._known.get(key)

    def resolve(self, head: Head) -> Deployed:
        """Return the function and revision that a head calls, after all access checks.

        Raises FnError if there is none, or the caller may not invoke it.
        """
        access = self._access
        if head.host is not None:
            access.check_host(head.host)
            access.check_origin(head.origin, head.fetch_site, head.host, CALLS)
        if head.version is None:
            caller = access.check(head.authorization, "invoke", head.name)
            return self._catalog.resolve(head.ref, may_see=caller.may_invoke)
        found = self._catalog.find_oip(head.ref, head.version)
        # Scopes name functions. A caller with such a scope learns of no other names.
        name = head.ref if found is None else found.function.name
        caller = access.check(head.authorization, "invoke", name)
        return find_served(self._catalog, head.ref, head.version, caller.may_invoke)

    def admit(self, key: Hashable, head: Head, deployed: Deployed) -> Admission:
        """Parse the rest of a head that `find` does not know, and cache its admission.

        Raises BadRequest; the head is then not cached.
        """
        function = deployed.function
        limits = function.limits
        caller = self._access.check(head.authorization, "invoke", function.name)
        wait_s, applied = requested_wait_s(head.prefer, limits.wait_s, self._wait_max_s)
        admission = Admission(
            deployed,
            deployed.revision.key,
            head.meta(),
            wait_s,
            applied,
            limits.timeout_s,
            min(limits.body_mib * MIB, self._held_bytes_max),
            limits.queue,
            requested_priority(head.priority, may_be_high=caller.is_high),
            may_rerun(deployed),
            bool(head.version) or "@" in head.ref,
            self._catalog.version,
            KeyTime(caller.id, function.namespace, function.name),
            caller.is_high,
        )
        if self._as_of != self._catalog.version or self._keys_as_of != self._access.ring.version:
            self._forget_all()
        if len(self._known) >= KEPT_MAX:
            self._known.clear()
        if sum([len(one) for one in head if one]) <= HEAD_MAX:
            self._known[key] = admission
        return admission

    def _forget_all(self) -> None:
        """Clear the cache after a change of the catalog or the keys."""
        self._as_of, self._keys_as_of = self._catalog.version, self._access.ring.version
        self._known.clear()


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
