"""One request to /v1: its body is read, then its model's function gets it as an exchange.

`ModelRequest` stands between the client's connection and the exchange. To the connection it is the
exchange, to the exchange it is the client.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from gateway.admission.calls import REQUEST_ID
from gateway.proxy.fields import Malformed
from gateway.proxy.framing import BodyKind, Framing, encode_chunk, make_framer
from gateway.proxy.plan import State
from gateway.proxy.ports import answer_last
from gateway.v1.bounds import SLICE
from gateway.v1.waiting import WaitingStream
from registry.errors import BadRequest, BodyTimeout, BodyTooLarge, FnError

if TYPE_CHECKING:
    from gateway.admission.callers import Caller
    from gateway.http.exchange_journal import ExchangeJournal
    from gateway.http.known_heads import CutHead
    from gateway.http.models.router import ModelRequests
    from gateway.http.reservations import BodyReservation
    from gateway.pages.origins import Asked
    from gateway.proxy.exchange import Exchange
    from gateway.proxy.framing import BodyFramer, Data
    from gateway.proxy.ports import ClientSide
    from gateway.proxy.request_head import RequestHead
    from gateway.replies import Reply
    from gateway.v1.endpoints import Endpoint
    from gateway.v1.multipart import FormRequest
    from gateway.v1.rewriting import ModelAnswer
    from gateway.v1.scanning import JsonRequest

Scanned: TypeAlias = "JsonRequest | FormRequest"

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
RATE_MIN: Final = 1024
"""Bytes per second: a body that arrives more slowly than that has no more than its time limit."""
SMALL_MAX: Final = 64 * 1024
"""Max bytes of a body that is scanned as soon as it is complete, without a turn."""


class ModelHead(NamedTuple):
    """What was decided about the head of a request, whose body names the model."""

    head: RequestHead
    ref: str
    """Its path, for the access log."""
    method: str
    endpoint: Endpoint
    query: bytes
    caller: Caller
    asked: Asked
    added: tuple[tuple[str, str], ...]
    """Further headers of every answer."""
    body_max: int
    """Max bytes of the body."""
    as_of: int
    """Version of the catalog on which `added` and `body_max` depend."""

    def framing(self, cut: CutHead) -> Framing:
        """Return the framing of the body of a request with this head."""
        return Framing(BodyKind.LENGTH, cut.length) if cut.length else self.head.framing


class Routed(NamedTuple):
    """A request whose function is known. `waiting`: None where the client gets no comments.
    `drains`: the server finishes an answer whose client has left."""

    exchange: Exchange
    body: Sequence[Data]
    answer: ModelAnswer
    waiting: WaitingStream | None
    drains: bool


class _State(Enum):
    ARRIVING = "arriving"
    SCANNING = "scanning"
    RUNNING = "running"
    OVER = "over"


class ModelRequest:
    """One request to /v1, whose head is `decided` and whose body has the `framing`.

    `key`: of the head in the memory of heads, None where that does not learn.
    """

    __slots__ = (
        "_body",
        "_client",
        "_exchange",
        "_framer",
        "_framing",
        "_is_client_full",
        "_is_client_gone",
        "_is_cut",
        "_is_started",
        "_models",
        "_moved_s",
        "_reservation",
        "_routed",
        "_scanning",
        "_size",
        "_state",
        "began_s",
        "decided",
        "is_request_whole",
        "journal",
        "key",
        "peer",
    )

    def __init__(  # noqa: PLR0913 - its head and its collaborators
        self,
        models: ModelRequests,
        decided: ModelHead,
        framing: Framing,
        client: ClientSide,
        peer: bytes,
        journal: ExchangeJournal,
        key: bytes | None,
    ) -> None:
        self._models = models
        self.decided = decided
        self.peer = peer
        self.journal = journal
        self.key = key
        self._client = client
        self._framing = framing
        self._framer: BodyFramer | None = None
        self._body: bytes | bytearray = b""
        self._size = 0
        self.began_s = self._moved_s = monotonic()
        self._reservation: BodyReservation | None = None
        self._scanning: Generator[None, None, None] | None = None
        self._exchange: Exchange | None = None
        self._routed: Routed | None = None
        self._is_started = self._is_client_full = self._is_client_gone = self._is_cut = False
        self.is_request_whole = framing.is_empty
        self._state = _State.ARRIVING

    # The exchange, for the client's connection

    @property
    def is_over(self) -> bool:
        """Whether the client has been answered."""
        return self._state is _State.OVER

    def start(self) -> None:
        """Begin, once the client can take an answer."""
        self._is_started = True
        if self.is_request_whole:
            self._begin_scan()
            return
        self._models.arriving.add(self)
        if self.decided.head.expects_continue and not self._size:
            self._client.write(CONTINUE)

    def request_data(self, data: bytes) -> None:
        """Take bytes of the body, in the framing of the head."""
        if self._state is not _State.ARRIVING:
            return
        if self._framer is None or self._reservation is None:
            self._framer, self._body = make_framer(self._framing), bytearray()
            self._reservation = self._models.budget.open(self._refuse)
        pieces: list[Data] = []
        try:
            self._framer.feed(data, pieces)
            count = sum(map(len, pieces))
            self._size += count
            if self._size > (most := self.decided.body_max):
                raise BodyTooLarge(f"expected a body of at most {most} bytes, got more")
            self._reservation.grow(count)
            # One buffer: a chunk of two bytes takes fifty as an object.
            self._body += b"".join(pieces)
        except Malformed as error:
            self._refuse(BadRequest(f"the body cannot be read: {error}"))
        except FnError as error:
            self._refuse(error)
        self._moved_s = monotonic()

    def request_whole(self, data: bytes) -> None:
        """Take the whole body, before `start`."""
        if len(data) > SMALL_MAX:
            self.request_data(data)
        else:
            self._body, self._size = data, len(data)  # its exchange counts it, in the same step
        self.request_end()

    def request_end(self) -> None:
        """Note that the body is complete."""
        self.is_request_whole = True
        if self._is_started and self._state is _State.ARRIVING:
            self._begin_scan()

    def fail(self, error: FnError) -> None:
        """End the request with an error."""
        if self._exchange is not None:
            self._exchange.fail(error)
        else:
            self._refuse(error)

    def client_lost(self) -> None:
        """End the request: the client has left. Its answer may go on at the server."""
        if self.is_over:
            return
        exchange, routed = self._exchange, self._routed
        if exchange is None:
            self._leave()
            self.journal.left(None, (self._size, 0))
        elif routed is not None and routed.drains and exchange.state is not State.HELD:
            self._is_client_gone = True
            if self._is_client_full:
                exchange.client_resumed()
        else:
            exchange.client_lost()
            self._leave()

    def client_paused(self) -> None:
        """Stop the answer: the client does not read it."""
        self._is_client_full = True
        if self._exchange is not None:
            self._exchange.client_paused()

    def client_resumed(self) -> None:
        """Continue the answer."""
        self._is_client_full = False
        if self._exchange is not None:
            self._exchange.client_resumed()

    # The client, for the exchange

    def write(self, data: bytes) -> None:
        """Implement `ClientSide.write`."""
        if self._routed is not None and self._routed.waiting is not None:
            self._routed.waiting.wrote(monotonic())
        if not self._is_client_gone:
            self._client.write(data)

    def _ignore(self) -> None:
        """Do nothing: there is no tunnel, and the body is complete."""

    client_eof = begin_tunnel = write_eof = pause_body = resume_body = _ignore

    def answer(self, reply: Reply) -> None:
        """Implement `ClientSide.answer`. After a comment, an error is an event, and the end cut."""
        if self._is_client_gone:
            return
        if self._routed is not None and self._routed.answer.has_head:
            self._is_cut = True
            self._client.write(encode_chunk(self._routed.answer.refused(bytes(reply.body))))
        else:
            self._client.answer(reply)

    def finish(self, *, keep: bool) -> None:
        """Implement `ClientSide.finish`."""
        self._leave()
        if self._is_client_gone:
            return
        if self._is_cut:
            self._client.cut(resets=False)
        else:
            self._client.finish(keep=keep)

    def cut(self, *, resets: bool) -> None:
        """Implement `ClientSide.cut`."""
        self._leave()
        if not self._is_client_gone:
            self._client.cut(resets=resets)

    def tick(self) -> bool:
        """Implement `ClientSide.tick`.

        An answer that only the server still wants is not begun anew.
        """
        if not (self._is_client_gone or self._client.tick()):
            self.client_lost()
            return True
        if self._is_client_gone:
            return self._exchange is None or self._exchange.state is not State.HELD
        self._bridge()
        return True

    # Timers

    def count_second(self, now: float) -> None:
        """Refuse a body that arrives too slowly; to be called once a second while it arrives."""
        limit_s = self._models.body_read_s
        if not self._client.tick():
            self.client_lost()
        elif now - self._moved_s > limit_s:
            self._refuse(BodyTimeout(f"no byte of the body arrived in {limit_s:g} s"))
        elif now - self.began_s > limit_s + self._size / RATE_MIN:
            self._refuse(
                BodyTimeout(f"the body arrived with less than {RATE_MIN} bytes per second")
            )

    def _bridge(self) -> None:
        """Send a comment to a client that has waited for long."""
        routed = self._routed
        if routed is None or routed.waiting is None or self._is_client_full:
            return
        if not routed.answer.is_between_events:
            return
        comment = routed.waiting.due(monotonic())
        if not comment:
            return
        if routed.answer.begin_early():
            keeps = self.decided.head.keep_alive
            added = (*self.journal.added, (REQUEST_ID, self.journal.request_id))
            self._client.write(routed.waiting.head(added, keeps=keeps))
        self._client.write(encode_chunk(comment))

    # The request

    def _begin_scan(self) -> None:
        """Find the model in the complete body."""
        self._models.arriving.discard(self)
        self._state = _State.SCANNING
        self._scanning = self._scan()
        if self._size > SMALL_MAX or self.continue_scan():
            self._models.turns.add(self.continue_scan)

    def _scan(self) -> Generator[None, None, None]:
        """Scan the body and begin the exchange; yields where the loop should take a turn."""
        body, self._body = bytes(self._body), b""
        if len(body) > SLICE:
            yield  # each copy of a large body takes as long as a turn should
        scanned = yield from self._models.scan(self.decided, body)
        if len(body) > SLICE:
            yield
        del body  # in `scanned`, as far as it is needed
        self._run(scanned)

    def continue_scan(self) -> bool:
        """Scan for one turn of the loop; return whether the scan goes on."""
        if self._scanning is None or self._state is not _State.SCANNING:
            return False
        try:
            next(self._scanning)
        except StopIteration:
            return False
        except Exception as error:  # noqa: BLE001 - error boundary: the journal hides internals
            self._refuse(error)
            return False
        return True

    def _run(self, scanned: Scanned) -> None:
        """Begin the exchange."""
        try:
            routed = self._models.route(self, scanned)
        except Exception as error:  # noqa: BLE001 - error boundary: the journal hides internals
            self._refuse(error)
            return
        self._state = _State.RUNNING
        self._forget_body()
        self._exchange = routed.exchange
        # The exchange counts the memory of the body, and gives it back.
        self._routed = routed._replace(body=())
        if self._is_client_full:
            routed.exchange.client_paused()
        routed.exchange.request_whole(*routed.body)
        if not routed.exchange.is_over:
            routed.exchange.start()

    def _refuse(self, error: BaseException) -> None:
        """Answer with an error, before there is an exchange."""
        if self._state not in (_State.ARRIVING, _State.SCANNING):
            return
        self._leave()
        reply = self.journal.problem(error, None, self._size)
        keeps = self.decided.head.keep_alive and self.is_request_whole
        answer_last(self._client, reply, keeps=keeps)

    def _leave(self) -> None:
        self._state = _State.OVER
        self._models.arriving.discard(self)
        self._scanning = None
        self._forget_body()

    def _forget_body(self) -> None:
        self._body = b""
        reservation, self._reservation = self._reservation, None
        if reservation is not None:
            reservation.release()
