"""From a request's head to its admission: access, limits, wait budget and priority.

`Admissions` remembers the admission of a head while nothing it depends on changes. `ColdCheck`
checks the input of a request whose function is cold: bad input wakes no device. `Prefer: wait` is
that of RFC 7240, `Priority` that of RFC 9218.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from gateway.access import Access
from gateway.delivery import may_rerun
from gateway.dispatch.call import Priority
from gateway.observing import records
from gateway.replies import Body
from gateway.settings import MIB
from registry.catalog import Catalog, Deployed
from registry.errors import BadRequest, QueueFull
from registry.model import Revision
from runtime_image.codecs import request
from runtime_image.codecs.request import RequestHead, parse
from runtime_image.link.meta import RequestMeta

REQUEST_ID: Final = "X-Request-Id"
TRACEPARENT: Final = "traceparent"
HEAD_MAX: Final = 1024
"""Characters of a head that is remembered."""
KEPT_MAX: Final = 4096
"""Heads remembered; then all are forgotten, which costs each of them one more check."""
IN_LOOP_MAX: Final = 64 * 1024
"""Bytes. Larger bodies would hold up the loop and are checked in a thread."""
WAITING_MAX: Final = 64
"""Large bodies that may wait for the check."""
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_WAIT: Final = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?([^\",;\s]*)\"?", re.IGNORECASE)
_SECONDS: Final = re.compile("[0-9]{1,9}")
_URGENCY: Final = re.compile(r"(?:^|,)\s*u\s*=\s*([^,;\s]*)")

OnChecked = Callable[[BaseException | None], None]


class Correlation(NamedTuple):
    """The ids by which others know a request: "" where the client sent none, or one that may not
    stand in headers and logs. Apart from the head, because it differs with each request."""

    request_id: str = ""
    traceparent: str = ""


NOT_CORRELATED: Final = Correlation()


def correlate(header: Callable[[str], str | None]) -> Correlation:
    """The correlation of a request; `header(name)` gives the first value of a header."""
    request_id, traceparent = header(REQUEST_ID), header(TRACEPARENT)
    if request_id is None and traceparent is None:
        return NOT_CORRELATED
    if request_id is None or _REQUEST_ID.fullmatch(request_id) is None:
        request_id = ""
    return Correlation(request_id, records.parse_traceparent(traceparent or ""))


class Head(NamedTuple):
    """The head of one request to `/fn/{ref}`. Headers that are missing are None."""

    ref: str
    host: str
    origin: str | None
    fetch_site: str | None
    authorization: str | None
    content_type: str | None
    accept: str | None
    json_length: str | None
    prefer: str | None
    priority: str | None

    @property
    def name(self) -> str:
        """The function's name, without a revision."""
        return self.ref.partition("@")[0]

    def meta(self) -> RequestMeta:
        """What the replica gets of the head, without a trace. Raises BadRequest on a malformed
        length."""
        length = self.json_length
        if length and not (length.isdecimal() and len(length) < 12):
            text = f"Inference-Header-Content-Length: expected a number, got {length[:40]!r}"
            raise BadRequest(text)
        return RequestMeta(
            self.content_type or "",
            self.accept or "",
            int(length) if length else -1,
            "",
        )


def make_head(ref: str, host: str, header: Callable[[str], str | None]) -> Head:
    """The head of a request; `header(name)` gives the first value of a header."""
    return Head(
        ref,
        host,
        header("Origin"),
        header("Sec-Fetch-Site"),
        header("Authorization"),
        header("Content-Type"),
        header("Accept"),
        header("Inference-Header-Content-Length"),
        header("Prefer"),
        header("Priority"),
    )


class Admission(NamedTuple):
    """How calls with one head are held and run. `applied`: the value of Preference-Applied;
    `as_of`: the catalog's version."""

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


class Admissions:
    """Admissions by head. A head says who calls and what: with the same keys and the same catalog,
    the same head gets the same admission. The reader of HTTP makes a key for each head."""

    def __init__(
        self, access: Access, catalog: Catalog, wait_max_s: float, held_bytes_max: int
    ) -> None:
        """`held_bytes_max` bounds all bodies together, and so each one."""
        self._access = access
        self._catalog = catalog
        self._wait_max_s = wait_max_s
        self._held_bytes_max = held_bytes_max
        self._known: dict[Hashable, Admission] = {}
        self._as_of = self._keys_as_of = -1

    def find(self, key: Hashable) -> Admission | None:
        """The admission of a head that was admitted before, unless something changed since."""
        if self._as_of != self._catalog.version or self._keys_as_of != self._access.ring.version:
            self._forget_all()
        return self._known.get(key)

    def resolve(self, head: Head) -> Deployed:
        """The function and revision that a head calls. Raises FnError where there is none, or the
        caller may not invoke it."""
        access = self._access
        access.check_host(head.host)
        access.check_origin(head.origin, head.fetch_site, head.host)
        access.check(head.authorization, "invoke", head.name)
        return self._catalog.resolve(head.ref)

    def admit(self, key: Hashable, head: Head, deployed: Deployed) -> Admission:
        """Read the rest of a head that `find` does not know. Raises BadRequest; then the head is
        not remembered."""
        limits = deployed.function.limits
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
            requested_priority(head.priority),
            may_rerun(deployed),
            "@" in head.ref,
            self._catalog.version,
        )
        if self._as_of != self._catalog.version or self._keys_as_of != self._access.ring.version:
            self._forget_all()
        if len(self._known) >= KEPT_MAX:
            self._known.clear()
        if sum([len(one) for one in head if one]) <= HEAD_MAX:
            self._known[key] = admission
        return admission

    def _forget_all(self) -> None:
        """The catalog or the keys have changed."""
        self._as_of, self._keys_as_of = self._catalog.version, self._access.ring.version
        self._known.clear()


def requested_wait_s(prefer: str | None, default_s: float, most_s: float) -> tuple[float, str]:
    """Seconds that the client agrees to wait, and the value of `Preference-Applied`. A `wait` that
    is no whole number of seconds is ignored (RFC 7240 section 2)."""
    match = _WAIT.search(prefer) if prefer else None
    if match is None or not _SECONDS.fullmatch(match[1]):
        return default_s, ""
    seconds = min(float(match[1]), most_s)
    return seconds, f"wait={seconds:.0f}"


def requested_priority(header: str | None) -> Priority:
    """Urgency 0-2 is high, 3 (the default) normal, 4-7 low; a malformed header is ignored."""
    match = _URGENCY.search(header) if header else None
    if match is None or match[1] not in set("01234567"):
        return Priority.NORMAL
    urgency = int(match[1])
    if urgency < 3:
        return Priority.HIGH
    return Priority.NORMAL if urgency == 3 else Priority.LOW


class ColdCheck:
    """Checks request bodies: small ones in the loop, large ones in a thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cold-check")
        self._waiting = 0

    def check(
        self, meta: RequestMeta, body: Body, revision: Revision, on_checked: OnChecked
    ) -> asyncio.Future[None] | None:
        """Check a small body at once and return None. Raises RequestError where it does not fit.

        A large body is checked in the thread. Then `on_checked` is called in the loop with the
        error, or None, unless the future was cancelled. Raises QueueFull where too many wait.
        """
        if len(body) <= IN_LOOP_MAX:
            _check(meta, body, revision)
            return None
        if self._waiting >= WAITING_MAX:
            raise QueueFull(f"{self._waiting} large requests are being checked", retry_after_s=1)
        self._waiting += 1
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._thread, _check, meta, body, revision)
        future.add_done_callback(lambda done: self._on_done(done, on_checked))
        return future

    def _on_done(self, future: asyncio.Future[None], on_checked: OnChecked) -> None:
        self._waiting -= 1
        if not future.cancelled():
            on_checked(future.exception())

    def close(self) -> None:
        """End the thread after the check that is running."""
        self._thread.shutdown(wait=True, cancel_futures=True)


def _check(meta: RequestMeta, body: Body, revision: Revision) -> None:
    length = meta.json_length if meta.json_length >= 0 else None
    head = RequestHead(meta.content_type, meta.accept, length)
    request.check(
        parse(head, memoryview(body), revision.signature, revision.inputs), revision.inputs
    )
