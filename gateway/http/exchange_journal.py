"""Journal of one exchange with a function's server: metrics, access log, traces, recent errors."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final

import structlog

from gateway import problems, statuses
from gateway.admission.calls import REQUEST_ID, Correlation
from gateway.http.connected import closed_websocket
from gateway.metrics.counters import exemplar_of
from gateway.observing import records
from gateway.observing.records import CLIENT_LEFT, RequestEnd, RequestInfo, make_record
from gateway.proxy.known_answers import VARYING
from gateway.replies import NO_RUN, Receipt, Reply, exchange_timing, make_receipt
from registry.errors import FnError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.admission.callers import Caller
    from gateway.http.context import Invoker
    from gateway.http.models.usage import UsageMeter
    from gateway.metrics.exchanges import ExchangeNumbers
    from gateway.metrics.key_times import KeyTime
    from gateway.proxy.fields import Field
    from gateway.proxy.plan import ExchangePlan
    from gateway.proxy.response_head import ResponseHead
    from gateway.server_links import ExchangeCall
    from gateway.upstream import UpstreamConnection
    from registry.catalog import Deployed

log = structlog.get_logger()

NO_PHASES: Final[dict[str, float]] = {}
MARK_S: Final = 0.01
"""Seconds between two exemplars."""
SERVER: Final = "server"
"""Reason of answers with status 400 and above that the function's server itself gave."""


class ExchangeJournal:
    """What is known about one exchange, and its record. `ref`: the function that was requested."""

    def __init__(self, invoker: Invoker, ref: str, method: str, who: Correlation) -> None:
        self._invoker = invoker
        self._ref = ref
        self._method = method
        self._began_s = monotonic()
        self._deployed: Deployed | None = None
        self._numbers: ExchangeNumbers | None = None
        self._is_admitted = False
        self._key_time: KeyTime | None = None
        self.sent_s = 0.0
        """When the request was sent last (monotonic seconds), 0 before."""
        self._first_byte_s = 0.0
        self._connected_s = 0.0
        self._status = 0
        self._receipt: Receipt | None = None
        self.applied = ""
        """Value of Preference-Applied."""
        self.added: tuple[tuple[str, str], ...] = ()
        """Further headers of every answer, such as those of CORS."""
        self.shape: Callable[[FnError], Reply] | None = None
        """Shape of errors, None for problem documents."""
        self.caller: Caller | None = None
        """Who sends the request, None while that is not known."""
        self.meter: UsageMeter | None = None
        """Usage of a call of /v1."""
        self._traceparent = who.traceparent
        self.request_id = who.request_id or invoker.new_id()
        tracer = invoker.tracer
        self.trace = None if tracer is None else tracer.begin(who.traceparent)

    @property
    def traceparent(self) -> str:
        """The header for the function's server; "" if the client sent none and nothing traces."""
        return self._traceparent if self.trace is None else self.trace.traceparent

    def enter(self) -> None:
        """Count the request as active. Raises ShuttingDown."""
        self._invoker.gate.enter()
        self._is_admitted = True

    def admitted(self, deployed: Deployed) -> None:
        """Note the function and revision that the request is for."""
        self._deployed = deployed

    def began(self, key_time: KeyTime) -> None:
        """Count the beginning of the exchange itself. `key_time`: that of calls like it."""
        self._key_time = key_time
        if self._deployed is not None:
            function = self._deployed.function
            metrics = self._invoker.metrics
            self._numbers = metrics.exchange_numbers(function.namespace, function.name)
            self._numbers.opened()

    def fields(self, call: ExchangeCall) -> tuple[Field, ...]:
        """Return the fields to add to the answer's head.

        Server-Timing and X-Request-Id, in this order, have the value VARYING.
        """
        # The pool, not the admitted revision: the call may have followed its function's traffic.
        added = [
            (b"Fn-Revision", call.pool.partition("/")[2].encode()),
            (b"Server-Timing", VARYING),
            (REQUEST_ID.encode(), VARYING),
        ]
        if self.applied:
            added.append((b"Preference-Applied", self.applied.encode()))
        added += [(name.encode(), value.encode("latin-1")) for name, value in self.added]
        return tuple(added)

    def answered(self, call: ExchangeCall, upstream: UpstreamConnection, status: int) -> bytes:
        """Note the answer's head, and return the value of Server-Timing."""
        self._first_byte_s = now = monotonic()
        self._status = status
        self._connected_s, endpoint = upstream.connected_s, upstream.endpoint
        is_cold = call.was_held and upstream.connected_s > call.arrived_s
        self._receipt = receipt = make_receipt(
            (
                call.pool.partition("/")[2],
                endpoint.id,
                endpoint.devices,
                (self.sent_s - call.arrived_s) * 1e3,
                endpoint.phases if is_cold else NO_PHASES,
                False,
                NO_RUN,
                endpoint.host,
            )
        )
        first_byte_s = now - (self.sent_s or self._began_s)
        if self._numbers is not None:
            self._count_first_byte(self._numbers, first_byte_s)
        return exchange_timing(receipt, first_byte_s * 1e3).encode("latin-1", "replace")

    def problem(self, error: BaseException, call: ExchangeCall | None, size: int) -> Reply:
        """Return the problem document for an exchange without an answer, and record its end.

        `size`: bytes of the request's body.
        """
        error = self._known(error)
        invoker, now = self._invoker, monotonic()
        caller, shape = self.caller, self.shape
        for_admin = bool(error.admin_detail) and caller is not None and caller.is_admin
        reply = problems.reply(error, for_admin=for_admin) if shape is None else shape(error)
        if self._deployed is not None:
            function = self._deployed.function
            invoker.failures.count(self._deployed, error, call, self.request_id)
            outcome, seconds = statuses.outcome(reply.status), now - self._began_s
            invoker.metrics.count_reply(
                function.namespace, function.name, outcome, error.code, seconds
            )
        more = () if reply.closes else invoker.gate.headers
        own = (*self.added, (REQUEST_ID, self.request_id), *more)
        reply = reply._replace(headers=(*reply.headers, *own))
        self._status = reply.status
        self._end(error.code, call, (size, len(reply.body)), now)
        return reply

    def preflight(self, fields: tuple[tuple[str, str], ...]) -> Reply:
        """Return the answer to a browser's preflight, and record it."""
        self._status = statuses.OK
        self._end("ok", None, (0, 0), monotonic())
        headers = (*fields, (REQUEST_ID, self.request_id), *self._invoker.gate.headers)
        return Reply(self._status, headers, b"")

    def ended(
        self, error: FnError | None, call: ExchangeCall | None, sizes: tuple[int, int]
    ) -> None:
        """Record the end of an exchange whose answer began.

        `error`: why the answer is incomplete, None if it is complete. `sizes`: bytes of the
        request's and of the answer's body.
        """
        outcome, reason, now = statuses.outcome(self._status), "", monotonic()
        if error is not None:
            outcome, reason = "failed", error.code
        elif outcome != "ok":
            reason = SERVER
        if self._deployed is not None and self._receipt is not None:
            function, metrics = self._deployed.function, self._invoker.metrics
            key, seconds = (function.namespace, function.name), now - self._began_s
            metrics.count_exchange(key, (outcome, reason), seconds, self._receipt)
            if call is not None:
                metrics.count_sends(*key, call.sends, call.deaths)
            failures = self._invoker.failures
            if error is not None:
                failures.count(self._deployed, error, call, self.request_id)
            elif self._status >= statuses.FAILURES:
                failures.count_answer(self._deployed, self._status, call, self.request_id)
        self._end("ok" if error is None else error.code, call, sizes, now)

    def closed(self, plan: ExchangePlan, *, is_quiet: bool) -> None:
        """Note that a WebSocket is closed as its replica stops. `is_quiet`: no data passed."""
        invoker = self._invoker
        ended = closed_websocket(plan, invoker.wall(), is_quiet=is_quiet)
        invoker.closed_websockets.append(ended)

    def used(self, plan: ExchangePlan, answer: ResponseHead) -> None:
        """Note that an exchange ends now which kept its function awake."""
        self._invoker.last_exchanges.put(plan, answer, self._invoker.wall())

    def left(self, call: ExchangeCall | None, sizes: tuple[int, int]) -> None:
        """Record an exchange whose client has left."""
        self._end(CLIENT_LEFT, call, sizes, monotonic())

    def _count_first_byte(self, numbers: ExchangeNumbers, seconds: float) -> None:
        metrics, request, at_s = self._invoker.metrics, None, 0.0
        if self._first_byte_s >= metrics.next_exemplar_s:
            metrics.next_exemplar_s = self._first_byte_s + MARK_S
            request = exemplar_of(self.request_id, self.traceparent)
            at_s = self._invoker.wall()
        numbers.answered(seconds, request, at_s)

    def _known(self, error: BaseException) -> FnError:
        if isinstance(error, FnError):
            return error
        id = self.request_id
        log.error("a request failed", ref=self._ref, request_id=id, exc_info=error)
        return FnError("see the server's log")

    def _end(
        self, outcome: str, call: ExchangeCall | None, sizes: tuple[int, int], now: float
    ) -> None:
        """Release the request's place in the gate, and record it in the access log and traces."""
        invoker, sent_s = self._invoker, self.sent_s
        if self._is_admitted:
            self._is_admitted = False
            invoker.gate.exit()
        if self._numbers is not None:
            self._numbers.ended(sizes)
            self._numbers = None
        if sent_s and self.meter is not None:
            is_answered, is_complete = self._receipt is not None, outcome == "ok"
            self.meter.end(self._status, sent_s, is_answered=is_answered, is_complete=is_complete)
        elif sent_s and self._key_time is not None:
            invoker.key_times.add(self._key_time, now - sent_s)
        if invoker.access_log is not None or self.trace is not None:
            self._log(outcome, call, sizes, now)

    def _log(
        self, outcome: str, call: ExchangeCall | None, sizes: tuple[int, int], now: float
    ) -> None:
        """Record the request in the access log and traces."""
        access_log, tracer = self._invoker.access_log, self._invoker.tracer
        deployed, receipt, trace = self._deployed, self._receipt, self.trace
        trace_id = records.trace_id(self.traceparent)
        first_byte_ms = (self._first_byte_s - (self.sent_s or self._began_s)) * 1e3
        name, revision = self._ref.partition("@")[0], ""
        if deployed is not None:
            name, revision = deployed.function.name, deployed.revision.ref
        if access_log and call and receipt and not trace:  # no record: it would take as long
            request = (self.request_id, name, self._method, trace_id)
            times = (self._began_s, first_byte_ms, now)
            access_log.log_exchange(request, call, receipt, (outcome, self._status), sizes, times)
            return
        began_s, size, method = self._began_s, sizes[0], self._method
        asked = RequestInfo(self.request_id, trace_id, name, revision, began_s, size, trace, method)
        first = first_byte_ms if self._first_byte_s else None
        ending = RequestEnd(outcome, now, self._status, sizes[1], receipt, self._connected_s, first)
        record = make_record(asked, ending, call, self._invoker.wall())
        if access_log is not None:
            access_log.log_end(record, now)
        if tracer is not None and trace is not None:
            tracer.record(record)
