"""One exchange, from its request's head to the end of its answer, as a state machine.

States: HELD (waits for a connection) -> OPEN (the request is sent) -> ANSWERING (the answer's head
was sent to the client), or TUNNEL (a WebSocket) -> OVER. A lost connection may lead from OPEN back
to HELD; FAILING waits for the cause of a replica's death, before an answer or within it. Both
bodies are passed on as they arrive; a side that does not read stops the other one.
"""

from __future__ import annotations

import asyncio
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

from gateway.proxy import retries
from gateway.proxy.answer_edit import FILTERED_MAX, AnswerEdit, begin_edit
from gateway.proxy.answer_reader import CONTINUE, AnswerReader, not_http
from gateway.proxy.answering import forward_interim
from gateway.proxy.deadlines import Deadlines
from gateway.proxy.fields import HEAD_END, Malformed
from gateway.proxy.forwarding import addressed
from gateway.proxy.joining import JOINED_MAX, write_joined
from gateway.proxy.kept_prefix import KeptPrefix, may_resend
from gateway.proxy.known_answers import is_repeatable, make_template
from gateway.proxy.plan import State
from gateway.proxy.ports import answer_last
from gateway.proxy.response_head import SWITCHING, ResponseHead, UpstreamError
from gateway.proxy.tunnel import ASLEEP, STOPPED, Tunnel
from gateway.proxy.websocket import GOING_AWAY, POLICY_VIOLATION, agreed_protocol, is_switched
from gateway.upstream import HostLost
from registry.errors import FnError, NoKey, ReplicaDied, UpstreamFailed, UpstreamTimeout

if TYPE_CHECKING:
    from gateway.delivery import Delivery
    from gateway.http.exchange_journal import ExchangeJournal
    from gateway.http.reservations import BodyBudget
    from gateway.proxy.framing import Data
    from gateway.proxy.known_answers import AnswerTemplate
    from gateway.proxy.plan import ExchangePlan
    from gateway.proxy.ports import ClientSide
    from gateway.server_links import ExchangeCall
    from gateway.upstream import UpstreamConnection

DEATH_S: Final = 0.05
"""Seconds within which a gateway notices that a replica died."""


class Exchange:
    """One exchange between `client` and a server of the function.

    `request_data` and `request_end` bring the request's body in the form in which it goes upstream.
    What only few exchanges need is made when they do: the reader of an answer that is not known
    and whole, the clocks at the first sweep.
    """

    def __init__(  # noqa: PLR0913 - its plan and its collaborators
        self,
        plan: ExchangePlan,
        request: bytes,
        client: ClientSide,
        delivery: Delivery,
        memory: BodyBudget,
        journal: ExchangeJournal,
        open_exchanges: set[Exchange],
    ) -> None:
        """`request`: the head for the server. `open_exchanges` has this from `start` to its end."""
        self._open = open_exchanges
        self._plan = plan
        self._request = request
        self._client = client
        self._delivery = delivery
        self._journal = journal
        self._kept = KeptPrefix(memory)
        self._call: ExchangeCall | None = None
        self._upstream: UpstreamConnection | None = None
        self._answer: ResponseHead | None = None
        self._reader: AnswerReader | None = None
        self._deadlines: Deadlines | None = None
        self._edit: AnswerEdit | None = None
        self._tunnel = None if plan.websocket_key is None else Tunnel(plan.idle_s)
        self._began_s = 0.0
        self._request_bytes = self._bytes_out = self._sends = self._unsent = 0
        self._is_client_full = self._is_upstream_full = self._is_reused = False
        self._keeps = plan.keeps
        self.is_request_whole = plan.head.framing.is_empty
        """Whether the client has sent the whole request."""
        self.state = State.HELD

    @property
    def facts(self) -> tuple[ExchangePlan, ResponseHead | None, ExchangeCall | None]:
        """The plan, the head of the answer once it has begun, and the call."""
        return self._plan, self._answer, self._call

    @property
    def key_id(self) -> str:
        """Id of the caller's key, "" without one."""
        return self._plan.key_id

    @property
    def is_over(self) -> bool:
        """Whether the exchange has ended."""
        return self.state is State.OVER

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
            if self._tunnel.is_used_again:
                self._check_quiet(self._tunnel, monotonic())
        if self._kept.is_whole and state in (State.HELD, State.OPEN) and not self._keep(data):
            return
        if upstream is not None:
            upstream.write(data)

    def request_whole(self, *pieces: Data) -> None:
        """Take the whole body of the request, before `start`."""
        self._request_bytes = size = sum(map(len, pieces))
        self.is_request_whole = True
        try:
            self._kept.add_whole(pieces, size, self._on_evicted)
        except FnError as error:
            self.fail(error)

    def request_end(self) -> None:
        """Note that the request's body is complete."""
        self.is_request_whole = True
        if self._kept.is_whole and not self.is_over:
            self._kept.settle()

    def client_eof(self) -> None:
        """Close the sending direction of a tunnel: the client has ended its own."""
        tunnel, upstream = self._tunnel, self._upstream
        if self.state is not State.TUNNEL or tunnel is None or upstream is None:
            return
        if not tunnel.has_client_ended:
            tunnel.has_client_ended = True
            upstream.write_eof()
            if tunnel.has_server_ended:
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
        self._journal.sent_s = now = monotonic()
        self._began_s = self._began_s or now
        if self._deadlines is not None:
            self._deadlines.sent(now)
        self._is_upstream_full = False
        self._sends += 1
        if self._is_client_full:
            upstream.pause_reading()
        if not self.is_request_whole:
            self._client.resume_body()
        request = self._request
        if self._plan.host:
            request = addressed(request, upstream.port)
        write_joined(upstream.write, request, self._kept.pieces)
        self._release_kept(upstream)

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
        """End with the error: the call got no connection, or it is known why its replica died."""
        call, self._call = self._call, None
        if call is not None and not self.is_over:
            self._end_failed(error, call)

    # Events of the upstream connection

    def upstream_data(self, data: bytes) -> None:
        """Process bytes of the server."""
        if self.state is State.ANSWERING and self._reader is not None:
            self._relay(self._reader, data)
        elif self.state is State.TUNNEL and self._tunnel is not None:
            self._tunnel.from_server.feed(data)
            if self._tunnel.is_used_again:
                self._check_quiet(self._tunnel, monotonic())
            self._bytes_out += len(data)
            self._client.write(data)
        elif self.state is State.OPEN and not (self._reader is None and self._pass_known(data)):
            if self._reader is None:
                self._reader = AnswerReader(self._plan.head.method)
            self._reader.feed(data)
            self._read_heads(self._reader)

    def upstream_eof(self) -> None:
        """Handle the end of the server's bytes."""
        tunnel = self._tunnel
        if self.state is not State.TUNNEL or tunnel is None:
            self._on_upstream_end(None)
        elif self._say_stopped(tunnel):
            self._complete()
        else:
            tunnel.has_server_ended = True
            self._client.write_eof()
            if tunnel.has_client_ended:
                self._complete()

    def upstream_lost(self, exc: Exception | None) -> None:
        """Handle the loss of the connection."""
        tunnel = self._tunnel
        if self.state is State.TUNNEL and tunnel is not None:
            is_over = exc is None and tunnel.has_server_ended
            if is_over or self._say_stopped(tunnel):
                self._complete()
                return
        self._on_upstream_end(exc)

    def upstream_paused(self) -> None:
        """Stop reading the request: the server does not read it."""
        self._is_upstream_full = True
        self._client.pause_body()

    def upstream_resumed(self) -> None:
        """Continue reading the request."""
        self._is_upstream_full = False
        if self._upstream is not None:
            self._release_kept(self._upstream)
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
        moved = self._request_bytes + self._bytes_out + self._head_bytes
        waits_for_body = not (self.is_request_whole or self._is_upstream_full)
        if not self._request_bytes and self._plan.head.expects_continue:
            waits_for_body = False
        is_answered = self._answer is not None
        if self._tunnel is not None and self.state is State.TUNNEL:
            self._check_quiet(self._tunnel, now)
        error = self._clocks().check(now, moved, waits_for_body, is_answered=is_answered)
        if error is not None:
            self.fail(error)

    def _clocks(self) -> Deadlines:
        """Return the clocks of a request that was sent."""
        if self._deadlines is None:
            self._deadlines = Deadlines(self._plan.limits, self._plan.body_s)
            self._deadlines.sent(self._began_s)
            self._deadlines.sent(self._journal.sent_s)
        return self._deadlines

    # The request's kept prefix

    def _release_kept(self, upstream: UpstreamConnection) -> None:
        """Drop the kept bytes of a request that was sent if no rule of `retries` can use them.

        The memory of a whole request is in use until the server has read it.
        """
        plan, kept = self._plan, self._kept
        if may_resend(plan.head.method, plan.retry, self._sends, upstream.is_reused):
            if self.is_request_whole:
                kept.settle()
        elif not (self.is_request_whole and self._is_upstream_full):
            kept.drop()

    def _keep(self, data: bytes) -> bool:
        """Keep more bytes of the request's body. Returns False if that ended the exchange."""
        kept, is_held = self._kept, self.state is State.HELD
        try:
            kept.add(data, self._on_evicted, is_sent=not is_held)
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

    @property
    def _head_bytes(self) -> int:
        """Bytes of the answer before the end of its final head."""
        return 0 if self._reader is None else self._reader.head_bytes

    def _pass_known(self, data: bytes) -> bool:
        """Pass on an answer with a known head; return False if `data` does not begin with one."""
        plan, call, found = self._plan, self._call, self._plan.filter
        if plan.answers is None or not self.is_request_whole or (found and found.has_head):
            return False
        end = data.find(HEAD_END) + len(HEAD_END)
        template = plan.answers.find(data[:end])
        if template is None or call is None or call.pool != plan.pool:
            return False
        if found is not None:
            self._edit, _ = begin_edit(found, template.head, plan.head.minor)
        size = len(data) - end
        if self._edit is None and size == template.size <= JOINED_MAX:
            self._client.write(self._head_of(template) + data[end:])
            self._bytes_out = size
            self._complete(is_clean=True)
        else:
            self._reader = reader = AnswerReader(plan.head.method)
            reader.begin(template.head)
            self._answer_with(reader, template, data[end:])
        return True

    def _read_heads(self, reader: AnswerReader) -> None:
        """Read heads of the answer until the final one."""
        try:
            while self.state is State.OPEN:
                head = reader.next_head()
                if head is None:
                    return
                if head.is_interim:
                    self._pass_interim(reader, head)
                else:
                    self._begin_answer(reader, head)
        except UpstreamError as error:
            self.fail(not_http(str(error)))

    def _pass_interim(self, reader: AnswerReader, head: ResponseHead) -> None:
        """Pass an interim head on to clients that understand it (RFC 9110 section 15.2).

        None where the answer is filtered: its head may have been sent already. "100 Continue" is
        for clients that wait for it, once.
        """
        plan = self._plan
        wanted = head.status != CONTINUE or (plan.head.expects_continue and reader.continues == 1)
        if wanted and plan.head.minor and plan.filter is None:
            self._client.write(forward_interim(head))

    def _begin_answer(self, reader: AnswerReader, head: ResponseHead) -> None:
        """Send the final head to the client, and begin to pass on the body.

        Raises UpstreamError for an upgrade that was not asked for.
        """
        call, plan, is_whole = self._call, self._plan, self.is_request_whole
        assert call is not None
        is_tunnel = is_switched(head, plan.websocket_key)
        keeps, added = plan.keeps and is_whole, self._journal.fields(call)
        if is_tunnel and plan.offered is not None and (one := agreed_protocol(head, plan.offered)):
            added += ((b"Sec-WebSocket-Protocol", one),)
        port = 0 if self._upstream is None else self._upstream.port
        framing = head.framing
        if plan.filter is not None:
            self._edit, framing = begin_edit(plan.filter, head, plan.head.minor)
        template = make_template(plan.answering(port, added, keeps=keeps), head, framing)
        is_usual = is_whole and call.pool == plan.pool and not (self._edit and self._edit.has_head)
        if plan.answers is not None and is_usual and is_repeatable(head):
            plan.answers.learn(reader.raw, template)
        if is_tunnel:
            self._begin_tunnel(self._head_of(template), reader.take_rest())
        else:
            self._answer_with(reader, template, reader.take_rest())

    def _head_of(self, template: AnswerTemplate) -> bytes:
        """Note that the answer begins; return the client's head."""
        call, upstream, journal = self._call, self._upstream, self._journal
        assert call is not None
        assert upstream is not None
        self._kept.drop()
        self.state = State.ANSWERING
        self._answer = template.head
        self._keeps = template.keep_alive
        timing = journal.answered(call, upstream, template.head.status)
        return template.fill(timing, journal.request_id.encode())

    def _answer_with(self, reader: AnswerReader, template: AnswerTemplate, rest: bytes) -> None:
        """Send the final head and `rest`, the first bytes of what follows."""
        head, edit, upstream = self._head_of(template), self._edit, self._upstream
        reader.unchunks = template.is_dechunked
        if edit is not None:
            head = b"" if edit.has_head else head
            if edit.is_rewriting and upstream is not None:
                reader.unchunks = True
                upstream.read_in_steps(FILTERED_MAX, rest[FILTERED_MAX:])
                rest = rest[:FILTERED_MAX]
        self._relay(reader, rest, head)

    def _relay(self, reader: AnswerReader, data: bytes, head: bytes = b"") -> None:
        """Pass on bytes of the answer's body, after its head if that was not sent yet."""
        try:
            content, is_clean = reader.take(data)
            if self._edit is not None:
                content = self._edit.feed(content)
                if reader.body.is_complete:
                    content += self._edit.end()
        except (Malformed, FnError) as error:
            self._client.write(head)
            self.fail(error if isinstance(error, FnError) else not_http(str(error)))
            return
        if head:
            write_joined(self._client.write, head, (content,))
        elif content:
            self._client.write(content)
        self._bytes_out += len(content)
        if reader.body.is_complete:
            upstream = self._upstream
            self._complete(is_clean=is_clean and not (upstream and upstream.has_unread))

    # A WebSocket

    def _begin_tunnel(self, head: bytes, rest: bytes) -> None:
        """Send the head that opens a WebSocket; bytes of both sides follow, `rest` first."""
        assert self._tunnel is not None
        assert self._call is not None
        self.state, self._keeps = State.TUNNEL, False
        self._tunnel.begin(monotonic())
        self._clocks().begin_tunnel()
        self._delivery.tell_tunnel(self._call, is_quiet=False)
        self._client.write(head)
        self._client.begin_tunnel()
        if rest:
            self.upstream_data(rest)

    def _check_quiet(self, tunnel: Tunnel, now: float) -> None:
        """Tell the delivery if a WebSocket has become quiet, or is in use again."""
        was_quiet, call = tunnel.is_quiet, self._call
        if tunnel.check(now) is not was_quiet and call is not None:
            self._delivery.tell_tunnel(call, is_quiet=tunnel.is_quiet)

    def _say_closed(self, tunnel: Tunnel | None, code: int, reason: str) -> bool:
        """Send the client of a WebSocket the frame that says why it ends; return whether it could
        be sent."""
        frame = tunnel.closing(code, reason) if tunnel and self.state is State.TUNNEL else b""
        if frame:
            self._client.write(frame)
        return bool(frame)

    def _say_stopped(self, tunnel: Tunnel) -> bool:
        """Tell the client of a WebSocket whose replica stops; return whether that could be told."""
        call, is_quiet = self._call, tunnel.is_quiet
        if call is None or not self._delivery.is_stopping(call):
            return False
        is_told = self._say_closed(tunnel, GOING_AWAY, ASLEEP if is_quiet else STOPPED)
        if is_told:
            self._journal.closed(self._plan, is_quiet=is_quiet)
        return is_told

    # Ends

    def _on_upstream_end(self, exc: Exception | None) -> None:
        """Handle the end of the server's connection before the end of the answer."""
        if self.is_over:
            return
        is_broken = isinstance(exc, HostLost)
        if self._call is not None:
            self._call.is_broken = is_broken
        if self.state is State.OPEN:
            self._on_unanswered()
            return
        if is_broken or self.state is not State.ANSWERING:
            lost = exc if is_broken else "the server closed the connection"
            self.fail(UpstreamFailed(f"{lost} within its answer"))
            return
        # A process that died ends its connections like one that has said everything, or breaks off.
        is_end = exc is None and self._reader is not None and self._reader.ends_with_connection
        self._leave_upstream()
        asyncio.get_running_loop().call_later(DEATH_S, self._on_settled, is_end)

    def _on_unanswered(self) -> None:
        """Decide about a request whose connection was lost before the answer's head.

        Unless that to the replica's host was lost, or a kept connection and a second run does no
        harm, it matters whether the server died, which may be noticed a little later than the loss:
        until then the kernel accepts connections for it.
        """
        assert self._upstream is not None
        assert self._call is not None
        self._is_reused = self._upstream.is_reused
        self._delivery.tell_unanswered(self._call)
        self._leave_upstream()
        decision, method = self._decide(), self._plan.head.method
        is_safe = isinstance(decision, retries.Resend) and method in retries.IDEMPOTENT
        if self._call.is_broken or (is_safe and self._is_reused):
            self._carry_out(decision)
        else:
            asyncio.get_running_loop().call_later(DEATH_S, self._on_settled)

    def _on_settled(self, is_end: bool = False) -> None:
        """Ask whether the server still listens: a replica of two containers keeps its link when
        only the server has ended. `is_end`: the lost connection may be the end of the answer."""
        if self._call is not None and self._upstream is None:
            self._delivery.ask_server(self._call, partial(self._on_asked, is_end))

    def _on_asked(self, is_end: bool, listens: bool) -> None:
        """Decide about a lost connection, knowing whether the server still listens."""
        call, state = self._call, self.state
        if call is None or self._upstream is not None:
            return
        if state is State.ANSWERING and not listens:
            self.fail(ReplicaDied("the replica died within its answer"))
        elif state is State.ANSWERING and is_end:
            if self._edit is not None and (last := self._edit.end()):
                self._client.write(last)
            self._complete()
        elif state is State.ANSWERING:
            self.fail(UpstreamFailed("the server closed the connection within its answer"))
        elif state is State.OPEN:
            if not listens:
                call.note_death()
            self._carry_out(self._decide(died=not listens))

    def _decide(
        self, *, died: bool = False, is_unsent: bool = False
    ) -> retries.Resend | retries.Fail:
        """Decide about a lost connection. `died`: the server has ended, as is known otherwise than
        by the link to its replica. `is_unsent`: the request was not sent."""
        call = self._call
        assert call is not None
        return retries.decide(
            retries.Loss(
                self._plan.head.method,
                answer_bytes=self._head_bytes,
                is_reused=self._is_reused,
                died=died or self._delivery.has_lost_link(call),
                is_body_kept=not self._kept.is_lost,
                retry=self._plan.retry,
                sends=self._sends,
                is_late=monotonic() >= call.wait_until_s,
                unsent=self._unsent if is_unsent else 0,
                deaths=call.deaths if call.may_poison else 0,
                is_broken=call.is_broken,
            )
        )

    def _carry_out(
        self, decision: retries.Resend | retries.Fail, *, was_refused: bool = False
    ) -> None:
        """Send the request again, or fail.

        The call is queued again; the next connection gets the request from its beginning.
        `was_refused`: nothing was sent on this one.
        """
        if isinstance(decision, retries.Fail):
            self.fail(decision.error(decision.text))
            return
        assert self._call is not None
        self._reader = None
        self.state = State.HELD
        if self._kept.is_full and not self.is_request_whole:
            self._client.pause_body()
        if self._sends:
            # The loss of a connection that was idle could not be made good any more.
            self._call.wants_fresh = True
        self._delivery.retry_exchange(self._call, was_refused=was_refused)
        if decision is retries.Resend.FRESH and self._is_reused:
            self._sends -= 1  # of a server that lives, and has not read the request

    def _complete(self, *, is_clean: bool = False) -> None:
        """End the exchange: the answer is complete. `is_clean`: the server sent no surplus byte."""
        answer, call, upstream = self._answer, self._call, self._upstream
        assert answer is not None
        self._call = self._upstream = None
        kept = is_clean and answer.keep_alive and self.is_request_whole
        kept = kept and self._plan.retry != "never"  # see `ExchangePlan.call`
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
        call, has_begun = self._call, self._answer is not None
        self._leave_upstream()
        waits = self.state not in (State.HELD, State.TUNNEL)
        if has_begun:
            waits &= isinstance(error, ReplicaDied | UpstreamFailed | UpstreamTimeout)
        if call is not None and waits:
            # It has a failed server probed, and calls `_on_refused`: once it is known how it died.
            self.state = State.FAILING
            self._delivery.fail_exchange(call, error)
            return
        self._call = None
        if call is not None and has_begun:
            self._delivery.end_exchange(call, kept=False, outcome="failed")
        elif call is not None:
            self._delivery.cancel(call)
        self._end_failed(error, call)

    def _end_failed(self, error: FnError, call: ExchangeCall | None) -> None:
        """Answer with a problem document; an answer that has begun ends incomplete."""
        answer, reader, edit = self._answer, self._reader, self._edit
        if answer is None:
            self._problem(error, call)
            return
        if edit is not None and (last := edit.failed(error)):
            self._client.write(last)
        resets = reader is not None and (reader.ends_with_connection or reader.unchunks)
        if edit is not None and edit.is_encoding:
            resets = False  # without its last chunk, it is incomplete
        is_told = isinstance(error, NoKey)
        is_told = is_told and self._say_closed(self._tunnel, POLICY_VIOLATION, error.message)
        self._journal.ended(error, call, self._close(call))
        self._client.cut(resets=(resets or answer.status == SWITCHING) and not is_told)

    def _problem(self, error: BaseException, call: ExchangeCall | None) -> None:
        """Answer with a problem document."""
        size, _ = self._close(call)
        reply = self._journal.problem(error, call, size)
        answer_last(self._client, reply, keeps=self._plan.keeps and self.is_request_whole)

    def _close(self, call: ExchangeCall | None) -> tuple[int, int]:
        """Enter OVER; return the bytes of both bodies. `call`: that of this exchange."""
        self.state = State.OVER
        if call is not None and not call.is_free and self._answer is not None:
            self._journal.used(self._plan, self._answer)
        self._open.discard(self)
        if self._kept.is_whole:
            self._kept.drop()
        if self._edit is not None:
            self._edit.close()
        return self._request_bytes, self._bytes_out

    def _leave_upstream(self) -> None:
        """Detach from the upstream connection, which the delivery closes or keeps."""
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.handler = None
            # Bytes that arrive before the delivery decides belong to no exchange.
            upstream.pause_reading()
