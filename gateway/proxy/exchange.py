"""One exchange, from its request's head to the end of its answer, as a state machine.

States: HELD (waits for a connection) -> OPEN (the request is sent) -> ANSWERING (the answer's head
was sent to the client), or TUNNEL (a WebSocket) -> OVER. A lost connection may lead from OPEN back
to HELD; FAILING waits for the cause of a replica's death. Both bodies are passed on as they arrive;
a side that does not read stops the other one.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

from gateway.proxy import retries
from gateway.proxy.answer_reader import CONTINUE, AnswerReader, not_http
from gateway.proxy.answering import forward_interim
from gateway.proxy.exchange_data import ExchangeData
from gateway.proxy.fields import Malformed
from gateway.proxy.forwarding import addressed
from gateway.proxy.joining import write_joined
from gateway.proxy.kept_prefix import may_resend
from gateway.proxy.known_answers import is_repeatable, make_template
from gateway.proxy.plan import State
from gateway.proxy.response_head import SWITCHING, ResponseHead, UpstreamError
from gateway.proxy.websocket import POLICY_VIOLATION, agreed_protocol, is_switched
from gateway.replies import CLOSE
from gateway.upstream import HostLost
from registry.errors import FnError, NoKey, UpstreamFailed

if TYPE_CHECKING:
    from gateway.proxy.framing import Data
    from gateway.proxy.known_answers import AnswerTemplate
    from gateway.server_links import ExchangeCall
    from gateway.upstream import UpstreamConnection

HEAD_END: Final = b"\r\n\r\n"
DEATH_S: Final = 0.05
FILTERED_MAX: Final = 16 * 1024
"""Max bytes of an answer that a filter changes in one step: 10 ms for the worst of events."""
"""Seconds within which a gateway notices that a replica died."""


class Exchange(ExchangeData):
    """One exchange between `client` and a server of the function.

    `request_data` and `request_end` bring the request's body in the form in which it goes upstream.
    """

    __slots__ = ()

    def start(self) -> None:
        """Ask for a connection. An error is answered to the client."""
        plan, kept = self._plan, self._kept
        pieces = (lambda: kept.pieces) if plan.may_poison else None
        call = plan.call(monotonic(), self._on_opened, self._on_refused, pieces)
        self._call = call
        self._open.add(self)
        try:
            self._delivery.submit_exchange(call)
        except Exception as error:  # noqa: BLE001 - error boundary: the journal hides internals
            self._call = None
            self._problem(error, call)

    # Events of the client

    def request_data(self, data: bytes) -> None:
        """Pass on bytes of the request's body, or of a tunnel."""
        state, upstream = self.state, self._upstream
        if state is State.OVER:
            return
        self._request_bytes += len(data)
        if self._tunnel is not None:
            self._tunnel.from_client.feed(data)
            self._note_use(self._tunnel)
        if self._kept.is_whole and state in (State.HELD, State.OPEN) and not self._keep(data):
            return
        if upstream is not None:
            upstream.write(data)

    def request_whole(self, *pieces: Data) -> None:
        """Take the whole body of the request, before `start`."""
        self._request_bytes = sum(map(len, pieces))
        self.is_request_whole = True
        try:
            self._kept.add_whole(pieces)
        except FnError as error:
            self.fail(error)

    def request_end(self) -> None:
        """Note that the request's body is complete."""
        self.is_request_whole = True
        if self._kept.is_whole and not self.is_over:
            self._kept.settle()

    def client_eof(self) -> None:
        """Close the sending direction of a tunnel: the client has ended its own."""
        if self.state is State.TUNNEL and self._upstream is not None and not self._client_ended:
            self._client_ended = True
            self._upstream.write_eof()
            if self._upstream_ended:
                self._complete()

    def client_lost(self) -> None:
        """End the exchange: the client has left."""
        if self.is_over:
            return
        call, self._call = self._call, None
        self._leave_upstream()
        if call is not None:
            self._delivery.cancel(call)
        self._journal.left(call, self._close(call))

    def client_paused(self) -> None:
        """Stop reading the answer: the client does not read it."""
        self._is_client_full = True
        if self._upstream is not None:
            self._upstream.pause_reading()

    def client_resumed(self) -> None:
        """Continue reading the answer."""
        self._is_client_full = False
        if self._upstream is not None:
            self._upstream.resume_reading()

    # Events of the delivery

    def _on_opened(self, upstream: UpstreamConnection) -> None:
        """Send the request: a connection is there."""
        call = self._call
        if call is None:
            upstream.abort()
            return
        self._upstream = upstream
        call.is_broken = False
        upstream.handler = self
        if not upstream.is_silent:
            self._on_unfit(upstream)
            return
        self.state = State.OPEN
        now = monotonic()
        self._deadlines.sent(now)
        self._is_upstream_full = False
        self._sends += 1
        self._journal.sent(now)
        if self._is_client_full:
            upstream.pause_reading()
        if not self.is_request_whole:
            self._client.resume_body()
        request = self._request
        if self._plan.host:
            request = addressed(request, upstream.port)
        write_joined(upstream.write, request, self._kept.pieces)
        if self._may_resend(upstream):
            if self.is_request_whole:
                self._kept.settle()
        elif not (self.is_request_whole and self._is_upstream_full):
            self._kept.drop()  # otherwise its memory is in use until the server has read it

    def _on_unfit(self, upstream: UpstreamConnection) -> None:
        """Leave a new connection that cannot have this request: nothing is sent.

        Something arrived before the request: the end of the connection, or bytes that would be
        taken for this answer.
        """
        has_only_ended = upstream.has_only_ended
        self._leave_upstream()
        self.state = State.OPEN
        if has_only_ended:
            self._unsent += 1
            self._is_reused = False
            self._carry_out(self._decide(is_unsent=True), was_refused=True)
        else:
            self.fail(not_http("bytes before the request"))

    def _on_refused(self, error: FnError) -> None:
        """Answer with the error: the call got no connection."""
        call, self._call = self._call, None
        if call is not None and not self.is_over:
            self._problem(error, call)

    # Events of the upstream connection

    def upstream_data(self, data: bytes) -> None:
        """Process bytes of the server."""
        if self.state is State.ANSWERING:
            self._relay(data)
        elif self.state is State.TUNNEL:
            self._pass_frames(data)
        elif self.state is State.OPEN and not self._pass_known(data):
            self._reader.feed(data)
            self._read_heads()

    def upstream_eof(self) -> None:
        """Handle the end of the server's bytes."""
        if self.state is State.TUNNEL:
            if self._say_stopped():
                self._complete()
                return
            self._upstream_ended = True
            self._client.write_eof()
            if self._client_ended:
                self._complete()
            return
        self._on_upstream_end(None)

    def upstream_lost(self, exc: Exception | None) -> None:
        """Handle the loss of the connection."""
        is_over = exc is None and self._upstream_ended
        if self.state is State.TUNNEL and (is_over or self._say_stopped()):
            self._complete()
        else:
            self._on_upstream_end(exc)

    def upstream_paused(self) -> None:
        """Stop reading the request: the server does not read it."""
        self._is_upstream_full = True
        self._client.pause_body()

    def upstream_resumed(self) -> None:
        """Continue reading the request."""
        self._is_upstream_full = False
        upstream = self._upstream
        if self.is_request_whole and upstream is not None and not self._may_resend(upstream):
            self._kept.drop()
        if not self.is_over:
            self._client.resume_body()

    # Timers

    def tick(self, now: float) -> None:
        """Check the limits of time; to be called once a second. `now`: monotonic seconds."""
        if self.is_over:
            return
        if not self._client.tick():
            self.client_lost()
            return
        if self._upstream is None:
            return
        moved = self._request_bytes + self._bytes_out + self._reader.head_bytes
        waits_for_body = not (self.is_request_whole or self._is_upstream_full)
        if not self._request_bytes and self._plan.head.expects_continue:
            waits_for_body = False
        is_answered = self._answer is not None
        if self._tunnel is not None and self.state is State.TUNNEL:
            self._check_quiet(self._tunnel, now)
        error = self._deadlines.check(now, moved, waits_for_body, is_answered=is_answered)
        if error is not None:
            self.fail(error)

    # The request's kept prefix

    def _may_resend(self, upstream: UpstreamConnection) -> bool:
        """Return whether the request that was sent over a connection may be sent again."""
        plan = self._plan
        return may_resend(plan.head.method, plan.retry, self._sends, upstream.is_reused)

    def _keep(self, data: bytes) -> bool:
        """Keep more bytes of the request's body. Returns False if that ended the exchange."""
        kept, is_held = self._kept, self.state is State.HELD
        try:
            kept.add(data, is_sent=not is_held)
        except FnError as error:
            if is_held:
                self.fail(error)
            return not is_held
        if is_held and kept.is_full:
            self._client.pause_body()
            kept.settle()
        return True

    def _on_evicted(self, error: FnError) -> None:
        """Refuse a held request whose memory is needed. A sent one only loses its second try."""
        if self.state is State.HELD:
            self.fail(error)

    # The answer

    def _read_heads(self) -> None:
        """Read heads of the answer until the final one."""
        try:
            while self.state is State.OPEN:
                head = self._reader.next_head()
                if head is None:
                    return
                if head.is_interim:
                    self._pass_interim(head)
                else:
                    self._begin_answer(head)
        except UpstreamError as error:
            self.fail(not_http(str(error)))

    def _pass_interim(self, head: ResponseHead) -> None:
        """Pass an interim head on to clients that understand it (RFC 9110 section 15.2).

        None where the answer is filtered: its head may have been sent already. "100 Continue" is
        for clients that wait for it, once.
        """
        plan = self._plan
        wanted = head.status != CONTINUE or (
            plan.head.expects_continue and self._reader.continues == 1
        )
        if wanted and plan.head.minor and plan.filter is None:
            self._client.write(forward_interim(head))

    def _pass_known(self, data: bytes) -> bool:
        """Pass on an answer with a known head; return False if `data` does not begin with one."""
        plan, call, reader = self._plan, self._call, self._reader
        if plan.answers is None or reader.head_bytes or not self.is_request_whole:
            return False
        if plan.filter is not None and plan.filter.has_head:
            return False
        end = data.find(HEAD_END) + len(HEAD_END)
        template = plan.answers.find(data[:end])
        if template is None or call is None or call.pool != plan.pool:
            return False
        self._framing_for_client(template.head)
        reader.begin(template.head)
        self._answer_with(template, data[end:])
        return True

    def _begin_answer(self, head: ResponseHead) -> None:
        """Send the final head to the client, and begin to pass on the body.

        Raises UpstreamError for an upgrade that was not asked for.
        """
        call, plan, reader, is_whole = self._call, self._plan, self._reader, self.is_request_whole
        assert call is not None
        is_tunnel = is_switched(head, plan.websocket_key)
        keeps, added = plan.keeps and is_whole, self._journal.fields(call)
        if is_tunnel and plan.offered is not None and (one := agreed_protocol(head, plan.offered)):
            added += ((b"Sec-WebSocket-Protocol", one),)
        port = 0 if self._upstream is None else self._upstream.port
        framing = self._framing_for_client(head)
        template = make_template(plan.answering(port, added, keeps=keeps), head, framing)
        is_begun = plan.filter is not None and plan.filter.has_head
        may_learn = is_whole and not is_begun and call.pool == plan.pool and is_repeatable(head)
        if plan.answers is not None and may_learn:
            plan.answers.learn(reader.raw, template)
        self._answer_with(template, reader.take_rest(), is_tunnel=is_tunnel)

    def _answer_with(
        self, template: AnswerTemplate, rest: bytes, *, is_tunnel: bool = False
    ) -> None:
        """Send the final head and `rest`, the first bytes of what follows."""
        call, upstream, journal = self._call, self._upstream, self._journal
        assert call is not None
        assert upstream is not None
        self._kept.drop()
        self._answer = template.head
        timing = journal.answered(call, upstream, template.head.status)
        head = template.fill(timing, journal.request_id.encode())
        self._keeps = template.keep_alive and not is_tunnel
        self._reader.unchunks = template.is_dechunked or self._is_rewriting
        self._is_encoding = self._is_rewriting and not template.is_dechunked
        if self._filter is not None and self._filter.has_head:
            head = b""
        if not is_tunnel:
            self.state = State.ANSWERING
            if self._is_rewriting:
                upstream.read_in_steps(FILTERED_MAX, rest[FILTERED_MAX:])
                rest = rest[:FILTERED_MAX]
            self._relay(rest, head)
            return
        self._begin_tunnel(head, monotonic())
        if rest:
            self.upstream_data(rest)

    def _relay(self, data: bytes, head: bytes = b"") -> None:
        """Pass on bytes of the answer's body, after its head if that was not sent yet."""
        try:
            content, is_clean = self._reader.take(data)
            if self._filter is not None:
                content = self._filtered(content)
        except Malformed as error:
            self._client.write(head)
            self.fail(not_http(str(error)))
            return
        except FnError as error:
            self._client.write(head)
            self.fail(error)
            return
        if self._is_rewriting and self._reader.is_complete:
            content += self._last_bytes()
        if head:
            write_joined(self._client.write, head, (content,))
        elif content:
            self._client.write(content)
        self._bytes_out += len(content)
        if self._reader.is_complete:
            upstream = self._upstream
            self._complete(is_clean=is_clean and not (upstream and upstream.has_unread))

    # Ends

    def _on_upstream_end(self, exc: Exception | None) -> None:
        """Handle the end of the server's connection before the end of the answer."""
        if self.is_over:
            return
        if self.state is State.OPEN:
            self._on_unanswered(is_broken=isinstance(exc, HostLost))
            return
        if exc is None and self.state is State.ANSWERING and self._reader.ends_with_connection:
            # A process that died ends its connections like one that has said everything.
            self._leave_upstream()
            asyncio.get_running_loop().call_later(DEATH_S, self._on_settled)
            return
        lost = exc if isinstance(exc, HostLost) else "the server closed the connection"
        self.fail(UpstreamFailed(f"{lost} within its answer"))

    def _on_unanswered(self, *, is_broken: bool) -> None:
        """Decide about a request whose connection was lost before the answer's head.

        `is_broken`: with that to the replica's host. Otherwise, unless a kept connection was lost
        and a second run does no harm, it matters whether the server died, which may be noticed a
        little later than the loss: until then the kernel accepts connections for it.
        """
        assert self._upstream is not None
        assert self._call is not None
        self._is_reused = self._upstream.is_reused
        self._call.is_broken = is_broken
        self._leave_upstream()
        decision, method = self._decide(), self._plan.head.method
        is_safe = isinstance(decision, retries.Resend) and method in retries.IDEMPOTENT
        if is_broken or (is_safe and self._is_reused):
            self._carry_out(decision)
        else:
            asyncio.get_running_loop().call_later(DEATH_S, self._on_settled)

    def _on_settled(self) -> None:
        """Ask whether the server still listens: a replica of two containers keeps its link when
        only the server has ended."""
        call = self._call
        if call is not None and self._upstream is None:
            self._delivery.ask_server(call, self._on_asked)

    def _on_asked(self, listens: bool) -> None:
        """Decide about a lost connection, knowing whether the server still listens."""
        call, state = self._call, self.state
        if call is None or self._upstream is not None:
            return
        if state is State.ANSWERING and listens:
            if self._is_rewriting:
                self._client.write(self._last_bytes())
            self._complete()
        elif state is State.ANSWERING:
            self.fail(UpstreamFailed("the replica died within its answer"))
        elif state is State.OPEN:
            if not listens:
                call.note_death()
            self._carry_out(self._decide(died=not listens))

    def _carry_out(
        self, decision: retries.Resend | retries.Fail, *, was_refused: bool = False
    ) -> None:
        """Send the request again, or fail."""
        if isinstance(decision, retries.Fail):
            self.fail(decision.error(decision.text))
        else:
            self._resend(was_refused=was_refused)
            if decision is retries.Resend.FRESH and self._is_reused:
                self._sends -= 1  # of a server that lives, and has not read the request

    def _resend(self, *, was_refused: bool = False) -> None:
        """Queue the call again; the next connection gets the request from its beginning.

        `was_refused`: nothing was sent on this one.
        """
        self._reader = AnswerReader(self._plan.head.method)
        self.state = State.HELD
        if self._kept.is_full and not self.is_request_whole:
            self._client.pause_body()
        assert self._call is not None
        if self._sends:
            # The loss of a connection that was idle could not be made good any more.
            self._call.wants_fresh = True
        self._delivery.retry_exchange(self._call, was_refused=was_refused)

    def _complete(self, *, is_clean: bool = False) -> None:
        """End the exchange: the answer is complete. `is_clean`: the server sent no surplus byte."""
        answer, call = self._answer, self._call
        assert answer is not None
        self._call = None
        is_tunnel = self.state is State.TUNNEL
        kept = is_clean and not is_tunnel and answer.keep_alive and self.is_request_whole
        kept = kept and self._plan.retry != "never"  # see `ExchangePlan.call`
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.handler = None  # the delivery decides at once: nothing can arrive before
        if call is not None:
            self._delivery.end_exchange(call, kept=kept)
        self._journal.ended(None, call, self._close(call))
        self._client.finish(keep=self._keeps)

    def fail(self, error: FnError) -> None:
        """End the exchange with an error: a problem document, or an incomplete answer."""
        if self.is_over:
            return
        answer, call, is_open = self._answer, self._call, self.state is not State.HELD
        self._leave_upstream()
        if answer is None and call is not None and is_open:
            # It calls `_on_refused`, at once or when it is known why the replica died.
            self.state = State.FAILING
            self._delivery.fail_exchange(call, error)
            return
        self._call = None
        if answer is None:
            if call is not None:
                self._delivery.cancel(call)
            self._problem(error, call)
            return
        if call is not None:
            self._delivery.end_exchange(call, kept=False, outcome="failed")
        if self._filter is not None and (last := self._filter.failed(error)):
            self._client.write(self._encoded(last))
        resets = self._reader.ends_with_connection or self._reader.unchunks
        resets = resets and not self._is_encoding  # without its last chunk, it is incomplete
        is_told = isinstance(error, NoKey) and self._say_closed(POLICY_VIOLATION, error.message)
        self._journal.ended(error, call, self._close(call))
        self._client.cut(resets=(resets or answer.status == SWITCHING) and not is_told)

    def _problem(self, error: BaseException, call: ExchangeCall | None) -> None:
        """Answer with a problem document."""
        size, _ = self._close(call)
        reply = self._journal.problem(error, call, size)
        keep = self._plan.keeps and self.is_request_whole and not reply.closes
        if not keep and not reply.closes:
            reply = reply._replace(headers=(*reply.headers, CLOSE))
        self._client.answer(reply)
        self._client.finish(keep=keep)
