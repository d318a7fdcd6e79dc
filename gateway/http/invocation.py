"""One invocation from its head to its reply.

`Invocation` uses only callbacks and serves both HTTP readers, the fast path and `call_route` for
requests that aiohttp reads, and gRPC.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Hashable
from time import monotonic
from typing import Final

import structlog

from gateway import problems, statuses
from gateway.admission.calls import (
    NOT_CORRELATED,
    REQUEST_ID,
    Correlation,
    Head,
    allowed_priority,
)
from gateway.body_memory import BodyMemory
from gateway.cold_checks.check_process import Content
from gateway.data_links import Delivered, HeldCall, Outcome
from gateway.dispatch.call import Priority
from gateway.http.context import Invoker
from gateway.http.reservations import BodyReservation, OnEvicted
from gateway.metrics.counters import exemplar_of
from gateway.observing import records
from gateway.observing.records import (
    CLIENT_LEFT,
    RequestEnd,
    RequestInfo,
    RequestRecord,
    make_record,
)
from gateway.oip import shapes as oip_shapes
from gateway.oip.parameters import requested_scheduling
from gateway.replies import Body, Receipt, Reply, make_receipt, make_reply, server_timing
from gateway.shared_memory import BodySlot
from registry.catalog import Deployed
from registry.errors import BadRequest, FnError
from runtime_image.contract.errors import RequestError
from runtime_image.link.meta import RequestMeta

log = structlog.get_logger()

MARK_S: Final = 0.01
"""Seconds between two exemplars of untraced warm requests: making one takes as long as counting."""


def shape_of(head: Head) -> problems.ErrorShape:
    """Return the form of errors in the protocol of a head."""
    return problems.reply if head.version is None else oip_shapes.reply


class Invocation:
    """One request: `admit` its head, then `run` its body.

    `reply` is called exactly once, at once or later, unless `cancel` or `release` is called first.
    `request_id` is the client's, or one made by this process. `trace` is None if the request is not
    traced.
    """

    __slots__ = (
        "_admission",
        "_began_s",
        "_call",
        "_charged",
        "_check",
        "_correlation",
        "_deployed",
        "_head",
        "_invoker",
        "_is_admitted",
        "_is_recorded",
        "_memory",
        "_reply",
        "_reservation",
        "_shape",
        "_size",
        "_slot",
        "_wait_s",
        "request_id",
        "trace",
    )

    def __init__(
        self,
        invoker: Invoker,
        head: Head,
        reply: Callable[[Reply], None],
        correlation: Correlation = NOT_CORRELATED,
        shape: problems.ErrorShape | None = None,
    ) -> None:
        """Create the request. `shape` makes the reply of an error, by default as the head's
        protocol has it."""
        self._invoker = invoker
        self._head = head
        self._reply = reply
        self._began_s = monotonic()
        self._deployed: Deployed | None = None
        self._is_admitted = False
        self._slot: BodySlot | None = None
        self._memory: BodyMemory | None = None
        self._reservation: BodyReservation | None = None
        self._charged = 0
        self._call: HeldCall | None = None
        self._check: Future[None] | None = None
        self._correlation = correlation
        self._shape = shape
        self.request_id = correlation.request_id or invoker.new_id()
        tracer = invoker.tracer
        self.trace = None if tracer is None else tracer.begin(correlation.traceparent)
        self._size = 0
        self._wait_s = 0.0
        # Also true if neither the access log nor a trace needs a record.
        self._is_recorded = invoker.access_log is None and self.trace is None

    def admit(self, key: Hashable) -> int:
        """Admit the head; return the limit of the body in bytes.

        `key` identifies the head in the cache of admissions. Raises FnError, which the caller
        passes to `fail`.
        """
        invoker = self._invoker
        invoker.gate.enter()
        self._is_admitted = True
        admission = invoker.admission.find(key)
        if admission is None:
            entry = invoker.admission.enter_call(self._head)
            self._deployed = entry.deployed
            if entry.deployed.revision.server is not None:
                raise BadRequest("this function is a server, which reads its requests by itself")
            admission = invoker.admission.admit(key, self._head, entry)
        self._admission = admission
        self._wait_s = admission.limits.wait_s
        self._deployed = admission.route.deployed
        return admission.limits.body_max

    def shorten_wait(self, wait_s: float) -> None:
        """Lower the wait budget of this request, which is admitted, to `wait_s` seconds."""
        self._wait_s = max(0.0, min(wait_s, self._wait_s))

    def buffer(self, length: int) -> memoryview | None:
        """Return memory to receive a body of `length` bytes in: shared memory, which saves a copy,
        or memory of its own, if it is large.

        None if there is none for it. To be called at most once, and not with `room`.
        """
        self._slot = self._invoker.delivery.slabs.allocate(self._admission.route.pool, length)
        return self._slot.view if self._slot is not None else self.room(length)

    def room(self, most: int) -> memoryview | None:
        """Return memory for a large body of at most `most` bytes, which then begins there.

        None if there is none for it. To be called at most once.
        """
        self._memory = self._invoker.body_budget.memories.allocate(most)
        return self._memory.view if self._memory is not None else None

    def count(self, count: int, on_evicted: OnEvicted) -> None:
        """Count `count` more bytes of an incomplete body.

        Raises BodyEvicted if there is no memory for them. `on_evicted` is called if the memory is
        needed for other requests later.
        """
        if self._reservation is None:
            self._reservation = self._invoker.body_budget.open(on_evicted)
        self._reservation.grow(count)

    def run(self, body: Body) -> None:
        """Send the call, or hold it: the body is complete.

        `body` is not used if `buffer` returned a view.
        """
        invoker, admission, slot = self._invoker, self._admission, self._slot
        try:
            if slot is not None:
                slot.mark_filled()
                body = slot.view.toreadonly()
            elif self._memory is not None and not body:
                body = self._memory.view.toreadonly()
            self._size = len(body)
            if self._reservation is not None:
                self._release_memory()  # in this loop iteration the call takes the bytes over
            route = admission.route
            _, timeout_s, _, queue_max, priority = admission.limits
            invoker.key_times.arrived(admission.key_time)
            now = monotonic()
            wait_s = self._wait_s
            if self._head.version is not None:
                wait_s, priority = self._scheduled(body)
            meta, packed, trace = admission.meta, admission.packed, self.trace
            traceparent = self._correlation.traceparent if trace is None else trace.traceparent
            if traceparent:
                meta, packed = RequestMeta(*meta[:3], traceparent), b""
            # Positional: keyword arguments would take as long as creating the call.
            self._call = call = HeldCall(
                route.pool,
                meta,
                body,
                now,
                now + wait_s,
                timeout_s,
                priority,
                route.may_rerun,
                queue_max,
                admission.is_pinned,
                slot=slot,
                done=self._on_outcome,
                packed=packed,
            )
            # Only if nothing was deployed or removed since the head arrived.
            if invoker.catalog.version == admission.as_of and invoker.delivery.send_now(call):
                return
            self._call = None
            self._hold(call)
        except Exception as error:  # noqa: BLE001 - error boundary: `fail` hides internals
            self.fail(error)

    def _scheduled(self, body: Body) -> tuple[float, Priority]:
        """Return wait budget and priority of a request whose body may say more than its head.

        Raises RequestError.
        """
        admission = self._admission
        wait_s, priority = requested_scheduling(body, admission.meta.json_length)
        return (
            self._wait_s if wait_s is None else min(wait_s, self._wait_s),
            admission.limits.priority
            if priority is None
            else allowed_priority(priority, may_be_high=admission.caller.is_high),
        )

    def fail(self, error: BaseException, call: HeldCall | None = None) -> None:
        """Answer with an error. `call`: the call, if it was accepted."""
        if isinstance(error, RequestError):
            error = problems.from_request_error(error)
        if not isinstance(error, FnError):
            log.error(
                "a request failed",
                ref=self._head.ref,
                request_id=self.request_id,
                exc_info=error,
            )
            error = FnError("see the server's log")
        has_more = bool(error.admin_detail)
        for_admin = has_more and self._invoker.access.is_admin(self._head.credential)
        if self._deployed is not None:
            self._invoker.failures.count(self._deployed, error, call, self.request_id)
        shape = self._shape or shape_of(self._head)
        self._reply_problem(error.code, shape(error, for_admin=for_admin), call)

    def cancel(self) -> None:
        """Remove the call from its queue, or recall it: the client has disconnected."""
        if self._check is not None:
            self._check.cancel()
        if self._call is not None:
            self._count_time(self._call, monotonic())
            self._invoker.delivery.cancel(self._call)
        if not self._is_recorded:
            self._record_end(RequestEnd(CLIENT_LEFT, monotonic()), self._call)
        self.release()

    def release(self) -> None:
        """Release the request's place in the gate, its slot and its memory.

        After `release` without a reply, another reader answers the request as if it were new.
        """
        if self._is_admitted:
            self._is_admitted = False
            self._invoker.gate.exit()
        if self._slot is not None:
            slot, self._slot = self._slot, None
            slot.release()
        self._memory = None
        if self._reservation is not None or self._charged:
            self._release_memory()

    def _release_memory(self) -> None:
        """Release the memory reserved for the body. An accepted call counts its own body."""
        if self._reservation is not None:
            self._reservation.release()
        self._invoker.body_budget.refund(self._charged)
        self._charged = 0

    def _hold(self, call: HeldCall) -> None:
        """Submit a call that could not be sent at once.

        If it would wake a device, its input is checked first, unless a copy of the body for the
        check would never fit.
        """
        invoker, admission, memory = self._invoker, self._admission, self._memory
        descriptor = -1 if memory is None else memory.descriptor
        size = len(call.body) * (2 if descriptor < 0 else 1)
        if size <= invoker.body_budget.held.most and invoker.delivery.is_cold(admission.route.pool):
            self._check = invoker.cold_check.check(
                admission.meta,
                Content(call.body, descriptor),
                admission.route.deployed.revision,
                admission.key_time.key_id,
                lambda error: self._on_checked(call, error),
            )
        if self._check is None:
            self._submit(call)
        else:
            self._charge(size)

    def _charge(self, count: int) -> None:
        """Count a body that is being checked in a process, and the copy that is made for it: no
        accepted call counts it yet."""
        try:
            self._invoker.body_budget.charge(count)
        except FnError:
            if self._check is not None:
                self._check.cancel()
            raise
        self._charged = count

    def _on_checked(self, call: HeldCall, error: BaseException | None) -> None:
        """Submit a call whose large body was checked; its wait budget begins now."""
        self._check = None
        if not self._is_admitted:  # the client disconnected in this loop iteration
            return
        if error is not None:
            self.fail(error)  # not raised: its traceback would reference the call, and so the body
            return
        try:
            wait_s = call.wait_until_s - call.arrived_s
            call.arrived_s = monotonic()
            call.wait_until_s = call.arrived_s + wait_s
            self._submit(call)
        except Exception as failure:  # noqa: BLE001 - error boundary, as in `run`
            self.fail(failure)

    def _submit(self, call: HeldCall) -> None:
        """Submit a call.

        Raises UnknownFunction or UnknownRevision if the revision was removed while the body
        arrived: no replica of it would ever be started.
        """
        catalog, revision = self._invoker.catalog, self._admission.route.deployed.revision
        if catalog.find(revision.ref, revision.namespace) is None:
            catalog.resolve(revision.ref, revision.namespace)
        self._release_memory()
        self._invoker.body_budget.make_room(len(call.body))
        self._call = call
        try:
            self._invoker.delivery.submit(call)
        except FnError:
            self._call = None
            raise

    def _on_outcome(self, outcome: Outcome) -> None:
        call, self._call = self._call, None
        if call is None or not self._is_admitted:
            return  # `fail` has answered already; the connection may serve another request
        try:
            if isinstance(outcome, Delivered):
                self._reply_answer(call, outcome)
            else:
                function = self._admission.route.deployed.function
                metrics = self._invoker.metrics
                metrics.count_sends(function.namespace, function.name, call.sends, call.deaths)
                self.fail(outcome, call)
        except Exception as error:  # noqa: BLE001 - error boundary, as in `run`
            self.fail(error, call)

    def _reply_answer(self, call: HeldCall, delivered: Delivered) -> None:
        meta, json_length, body, is_first, replica, devices, connected_s, phases, host = delivered
        admission, invoker = self._admission, self._invoker
        is_cold = call.was_held and connected_s > call.arrived_s
        # The pool, not the admitted revision: the call may have followed its function's traffic.
        ref = call.pool.partition("/")[2]
        queue_ms = (call.sent_s - call.arrived_s) * 1e3
        receipt = make_receipt(
            (ref, replica, devices, queue_ms, phases if is_cold else {}, is_first, meta, host)
        )
        lines = (
            f"Content-Type: {meta.content_type}\r\nFn-Revision: {ref}\r\n"
            f"Server-Timing: {server_timing(receipt)}\r\n{REQUEST_ID}: {self.request_id}\r\n"
        )
        if json_length:
            lines += f"Inference-Header-Content-Length: {json_length}\r\n"
        if admission.applied:
            lines += f"Preference-Applied: {admission.applied}\r\n"
        function = admission.route.deployed.function
        now, metrics, request = monotonic(), invoker.metrics, None
        if is_cold or self.trace is not None or now >= metrics.next_exemplar_s:
            metrics.next_exemplar_s = now + MARK_S
            request = exemplar_of(self.request_id, call.meta.traceparent)
        key, seconds = (function.namespace, function.name), now - self._began_s
        metrics.count_answer(key, seconds, receipt, call.sends, call.deaths, request)
        metrics.revisions.count_answer(call.pool, seconds, receipt, now)
        invoker.key_times.add(admission.key_time, now - call.sent_s)
        reply = make_reply((statuses.OK, invoker.gate.headers, body, lines))
        self.release()
        if not self._is_recorded:
            self._record_answer(call, receipt, len(body), now, connected_s)
        self._reply(reply)

    def _record_answer(
        self, call: HeldCall, receipt: Receipt, size: int, now: float, connected_s: float
    ) -> None:
        """Record an answer of a replica, in the access log and as a trace."""
        self._is_recorded = True
        invoker = self._invoker
        if invoker.access_log is not None:
            name = self._admission.route.deployed.function.name
            sizes, times = (self._size, size), (self._began_s, now)
            invoker.access_log.log_answer(self.request_id, name, call, receipt, sizes, times)
        if invoker.tracer is not None and self.trace is not None:
            ending = RequestEnd("ok", now, statuses.OK, size, receipt, connected_s)
            invoker.tracer.record(self._record(ending, call))

    def _reply_problem(self, outcome: str, reply: Reply, call: HeldCall | None) -> None:
        """Count, record and answer a request without an answer of a replica."""
        now = monotonic()
        if self._deployed is not None:
            function = self._deployed.function
            kind, seconds = statuses.outcome(reply.status), now - self._began_s
            metrics = self._invoker.metrics
            metrics.count_reply(function.namespace, function.name, kind, outcome, seconds)
            pool = self._deployed.revision.key if call is None else call.pool
            metrics.revisions.count_failure(pool, seconds)
        self._count_time(call, now)
        more = () if reply.closes else self._invoker.gate.headers
        reply = reply._replace(headers=(*reply.headers, (REQUEST_ID, self.request_id), *more))
        self.release()
        if not self._is_recorded:
            self._record_end(RequestEnd(outcome, now, reply.status, len(reply.body)), call)
        self._reply(reply)

    def _count_time(self, call: HeldCall | None, now: float) -> None:
        """Count the time of a call that was sent and got no answer."""
        if call is not None and call.sent_s:
            self._invoker.key_times.add(self._admission.key_time, now - call.sent_s)

    def _record_end(self, ending: RequestEnd, call: HeldCall | None) -> None:
        """Record a request without an answer of a replica, in the access log and as a trace."""
        self._is_recorded = True
        invoker, record = self._invoker, self._record(ending, call)
        if invoker.access_log is not None:
            invoker.access_log.log_end(record, ending.now)
        if invoker.tracer is not None and self.trace is not None:
            invoker.tracer.record(record)

    def _record(self, ending: RequestEnd, call: HeldCall | None) -> RequestRecord:
        deployed, trace = self._deployed, self.trace
        name, revision = self._head.name, ""
        if deployed is not None:
            name, revision = deployed.function.name, deployed.revision.ref
        about = name, revision, self._began_s, self._size
        # The client may trace the request even if this process does not.
        traceparent = self._correlation.traceparent if trace is None else trace.traceparent
        asked = RequestInfo(self.request_id, records.trace_id(traceparent), *about, trace)
        return make_record(asked, ending, call, self._invoker.wall())
