"""Requests to /v1: their admission, and the way from a model to the exchange with its server."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final, cast

import msgspec

from gateway import problems
from gateway.admission.calls import NOT_CORRELATED, REQUEST_ID, Correlation, correlate
from gateway.admission.control import MODELS as PLACE
from gateway.admission.control import Entry
from gateway.http.exchange_journal import ExchangeJournal
from gateway.http.exchanges import answer, credential_in
from gateway.http.known_heads import CutHead, KnownHead, make_known_head
from gateway.http.models.realtime import RealtimeRequests
from gateway.http.models.request import ModelHead, ModelRequest, Routed, Scanned
from gateway.http.models.resolution import (
    OWN,
    UNANSWERED,
    api_of,
    model_target,
    upstream_key,
    without,
)
from gateway.http.models.usage import UsageMeter
from gateway.pages.origins import asked_for
from gateway.proxy.forwarding import forward_request
from gateway.proxy.framing import BodyKind, Framing
from gateway.proxy.known_answers import KnownAnswers
from gateway.proxy.own_keys import find_keys
from gateway.proxy.request_head import header_of
from gateway.settings import MIB
from gateway.v1 import shapes
from gateway.v1.endpoints import (
    ENDPOINTS,
    MODELS,
    PREFIX,
    REALTIME,
    BodyForm,
    Endpoint,
    Protocol,
    UsageForm,
    is_model_request,
    is_realtime,
)
from gateway.v1.multipart import form_type, scan_multipart
from gateway.v1.rewriting import ModelAnswer
from gateway.v1.scanning import JsonRequest, check_query, scan
from gateway.v1.upstream_key import with_key
from gateway.v1.waiting import WaitingStream
from gateway.v1.writing import upstream_body
from registry.errors import (
    BadRequest,
    BodyTooLarge,
    FnError,
    MethodNotAllowed,
    Unknown,
    UnsupportedEncoding,
)

if TYPE_CHECKING:
    from gateway.http.context import Invoker
    from gateway.http.exchanges import Exchanges
    from gateway.http.head_memory import HeadMemory
    from gateway.proxy.plan import ExchangePlan
    from gateway.proxy.ports import ClientExchange, ClientSide
    from gateway.proxy.request_head import RequestHead
    from gateway.replies import Reply
    from registry.catalog import Deployed
    from registry.model.servers import ModelApi

BODY_MIB_LEAST: Final = 1
"""Max MiB of a body where there is no model."""
SHOWN_MAX: Final = 200
"""Max bytes of a path in errors and in the access log."""
_KEY: Final = "x-api-key"
_VERSION: Final = "anthropic-version"
_STREAMED: Final = (("Cache-Control", "no-cache"), ("X-Accel-Buffering", "no"))
"""Fields of streams, without which proxies would collect them."""
_UNSENT: Final = OWN | {
    *(b"accept-encoding", b"content-encoding", b"content-type"),
    *(b"content-md5", b"digest", b"content-digest", b"repr-digest"),
}
"""Fields of a request that its server does not get, or gets in another form."""
_TRACE: Final = frozenset({b"traceparent"})
_IDENTITY: Final = (b"Accept-Encoding", b"identity")
_CONTENT_TYPE: Final = b"Content-Type"
_NULL, _TRUE = msgspec.Raw(b"null"), msgspec.Raw(b"true")
_STATEFUL: Final = ("previous_response_id", "conversation")
"""Members that need a server that remembers: one that sleeps forgets."""


class ModelRequests:
    """The requests to /v1 of this process. Event loop thread only."""

    def __init__(self, exchanges: Exchanges, invoker: Invoker, heads: HeadMemory) -> None:
        self._exchanges = exchanges
        self._invoker = invoker
        self._heads = heads
        self.arriving = invoker.arriving
        self.turns = invoker.scan_turns
        self.budget = invoker.body_budget
        self.body_read_s = invoker.settings.body_read_s
        self._largest = 0
        self._largest_as_of = -1
        self._admission = invoker.admission
        self._realtime = RealtimeRequests(exchanges, invoker)

    def sweep(self) -> None:
        """Check the time limits of arriving bodies; to be called once a second."""
        now = monotonic()
        for request in list(self.arriving):
            request.count_second(now)

    def begin(
        self, head: RequestHead, client: ClientSide, peer: bytes, raw: bytes = b""
    ) -> ClientExchange | None:
        """Begin a request; `start` must follow, when the client can take an answer.

        None if the client has been answered already, with an error. `peer`: IP address of the
        client. `raw`: the bytes of the head, if the same bytes may begin another request.
        """
        if is_realtime(head.method, head.target):
            return self._realtime.begin(head, client, peer)
        header, path = header_of(head), head.target.partition(b"?")[0]
        protocol, who = protocol_of(path, header), correlate(header)
        ref, method = path[:SHOWN_MAX].decode(), head.method.decode()
        journal = self._journal(ref, method, who, protocol)
        try:
            journal.enter()
            asked = asked_for(method, header)
            credential = credential_in(head, own_keys(protocol, header))
            journal.caller = caller = self._admission.enter_models(credential, asked)
            journal.added = added = self._admission.origins.fields(PLACE, asked.origin)
            endpoint, query = self._endpoint(head)
            most = self._body_max(head)
            as_of = self._invoker.catalog.version
            decided = ModelHead(
                head, ref, method, endpoint, query, caller, asked, added, most, as_of
            )
            _check_size(head.framing, decided.body_max)
        except Exception as error:  # noqa: BLE001 - error boundary: the journal hides internals
            answer(head, client, journal.problem(error, None, 0))
            return None
        # Which origins are listed, and whether two keys are one too many, depends on the openness.
        is_plain = asked.origin is None and len(credential.secrets) <= 1
        may_learn = raw and is_plain and self._exchanges.is_repeatable(head, who)
        cut = self._heads.repeated(peer, raw, who) if may_learn else None
        if cut is not None:
            probe = self._exchanges.probe()
            find_keys(head.fields, probe)
            self._heads.learn(peer, cut.key, _without_trace(decided), probe)
        key = None if cut is None else cut.key
        return ModelRequest(self, decided, head.framing, client, peer, journal, key)

    def begin_known(
        self, known: ModelHead, cut: CutHead, client: ClientSide, peer: bytes
    ) -> ClientExchange | None:
        """Begin a request with a known head; see `begin`. `cut`: this request's."""
        framing = known.framing(cut)
        journal = self._journal(known.ref, known.method, cut.who, known.endpoint.protocol)
        journal.caller, journal.added = known.caller, known.added
        try:
            journal.enter()
            _check_size(framing, known.body_max)
        except FnError as error:
            answer(known.head, client, journal.problem(error, None, 0))
            return None
        return ModelRequest(self, known, framing, client, peer, journal, cut.key)

    def _journal(
        self, ref: str, method: str, who: Correlation, protocol: Protocol
    ) -> ExchangeJournal:
        journal = ExchangeJournal(self._invoker, ref, method, who)
        journal.shape = partial(shapes.reply, protocol, journal.request_id)
        return journal

    def refusal(self, line: bytes, error: FnError) -> Reply | None:
        """Return the answer to a head that is no request, None if its line names none of these."""
        method, _, rest = line.partition(b" ")
        target = rest.partition(b" ")[0]
        if not is_model_request(method, target):
            return None
        path = target.partition(b"?")[0].removeprefix(PREFIX)
        protocol = ENDPOINTS[path].protocol if path in ENDPOINTS else Protocol.OPENAI
        request_id = self._invoker.new_id()
        reply = shapes.reply(protocol, request_id, error)
        return reply._replace(headers=(*reply.headers, (REQUEST_ID, request_id)))

    def _endpoint(self, head: RequestHead) -> tuple[Endpoint, bytes]:
        """Return the endpoint of a request, and its query. Raises FnError."""
        path, _, query = head.target.partition(b"?")
        endpoint = ENDPOINTS.get(path.removeprefix(PREFIX))
        if endpoint is None:
            raise no_endpoint(head.method.decode(), path)
        check_query(query)
        return endpoint, query

    def _body_max(self, head: RequestHead) -> int:
        """Return the max bytes of a request's body. Raises FnError if it cannot be read."""
        coding = head.fields.get(b"content-encoding").lower()
        if coding not in (b"", b"identity"):
            got = repr(coding[:40].decode("latin-1"))
            text = f"expected a body without a content coding, got {got}"
            raise UnsupportedEncoding(text, detail={"accepted": ["identity"]})
        return min(self._largest_body(), self._invoker.settings.held_bytes_max)

    def _largest_body(self) -> int:
        """Return the max bytes of a body that any model takes, found once per version of the
        catalog. Without a model, there is nothing to send."""
        catalog = self._invoker.catalog
        if self._largest_as_of != catalog.version:
            self._largest_as_of = catalog.version
            servers = (one.revision.server for one in catalog.every())
            found = [one.api.body_mib for one in servers if one is not None and one.api is not None]
            self._largest = max(found, default=BODY_MIB_LEAST) * MIB
        return self._largest

    def scan(self, decided: ModelHead, body: bytes) -> Generator[None, None, Scanned]:
        """Return what the gateway reads of a request, yielding between. Raises BadRequest."""
        kind = decided.head.fields.get(b"content-type")
        if decided.endpoint.form_of(kind) is BodyForm.JSON:
            return scan(body)
        return scan_multipart(body, kind)

    def route(self, request: ModelRequest, scanned: Scanned) -> Routed:
        """Return the exchange of a request. Raises FnError."""
        decided, journal, invoker = request.decided, request.journal, self._invoker
        endpoint, caller = decided.endpoint, decided.caller
        key, known = self._recall(request, scanned)
        if known is None:
            deployed = self._admission.find_model(caller, scanned.model, decided.asked)
        else:
            deployed = known.deployed
        api = api_of(deployed)
        _check_body(scanned, endpoint, api)
        journal.admitted(deployed)
        secret = upstream_key(invoker, deployed, api)
        body = upstream_body(scanned, endpoint, api)
        size, is_stream = sum(map(len, body.pieces)), scanned.is_stream and endpoint.streams
        if known is None:
            journal.added += _STREAMED if is_stream else ()
            plan, sent = self._decide(request, scanned, deployed, size, key)
        else:
            plan, sent = self._continue(known, journal, size)
        model_answer = ModelAnswer(
            scanned.model if api.served_model not in ("", scanned.model) else "",
            asks_usage=body.asks_usage,
            is_nested=endpoint.usage is not UsageForm.CHUNKS,
            protocol=endpoint.protocol,
            shape=journal.shape or problems.reply,
            memory=self.budget,
        )
        journal.meter = UsageMeter(
            *(invoker, deployed.function, caller.id, model_answer, request.began_s),
            says_usage=endpoint.usage is not UsageForm.NONE,
        )
        sent = with_key(sent, endpoint.protocol, secret)
        plan = plan._replace(filter=model_answer)
        exchange = self._exchanges.exchange(plan, sent, request, journal)
        waiting = None
        if is_stream and decided.head.minor and api.comment_after_s > 0:
            waiting = WaitingStream(endpoint.protocol, monotonic(), api.comment_after_s)
        return Routed(exchange, body.pieces, model_answer, waiting, api.on_disconnect == "drain")

    def _recall(
        self, request: ModelRequest, scanned: Scanned
    ) -> tuple[Hashable | None, KnownHead | None]:
        """Return the key under which a route is remembered, and the route. Each None for none."""
        # The catalog may have changed while the body arrived. The route learned now would have the
        # headers of answers that the head was given before.
        if request.key is None or request.decided.as_of != self._invoker.catalog.version:
            return None, None
        # What the server gets depends on the first two, and the head of its answer on all.
        key = (request.key, scanned.model, scanned.is_stream, scanned.options is not None)
        known = self._heads.recall(request.peer, key)
        is_callers = isinstance(known, KnownHead) and known.caller is request.decided.caller
        return key, cast("KnownHead", known) if is_callers else None

    def _continue(
        self, known: KnownHead, journal: ExchangeJournal, size: int
    ) -> tuple[ExchangePlan, bytes]:
        """Return what `_decide` returned for a request whose route is known."""
        journal.applied, journal.added = known.applied, known.added
        cut = CutHead(b"", b"", size, Correlation("", journal.traceparent))
        return known.plan, known.request(cut, journal.request_id)

    def _decide(
        self, request: ModelRequest, scanned: Scanned, deployed: Deployed, size: int, key: Hashable
    ) -> tuple[ExchangePlan, bytes]:
        """Return the plan of an exchange and the head for the server, whose body has `size` bytes.
        Both are learned under `key`, unless that is None. Raises FnError."""
        decided, journal, exchanges = request.decided, request.journal, self._exchanges
        endpoint, caller, api = decided.endpoint, decided.caller, api_of(deployed)
        target = model_target(deployed, scanned.model, api, endpoint.path, decided.query)
        head = _head_for_server(decided.head, scanned)
        plan = exchanges.plan(head, target, Entry(caller, deployed), journal)
        is_free_of_effects = not endpoint.has_effects and plan.retry == "auto"
        retry = "always" if is_free_of_effects else plan.retry
        plan = plan._replace(dropped=UNANSWERED, retry=retry, may_poison=retry == "always")
        probe = exchanges.probe()
        forwarding = exchanges.forwarding(
            decided.head, target, request.peer, deployed.revision, journal, probe
        )
        forwarding = forwarding._replace(prefix=b"", framing=Framing(BodyKind.LENGTH, size))
        if key is not None and plan.wakes:
            plan = plan._replace(answers=KnownAnswers())
            learned = (caller, journal.applied, journal.added)
            cut = CutHead(b"", b"", size, NOT_CORRELATED)
            known = make_known_head(plan, deployed, learned, forwarding, cut)
            self._heads.learn(request.peer, key, known, probe)
        return plan, forward_request(head, forwarding)


def _without_trace(decided: ModelHead) -> ModelHead:
    """Return what was decided about a head, for all requests with it: each has a trace of its own,
    which is cut out of the head, or none."""
    fields = without(decided.head.fields, _TRACE, ())
    return decided._replace(head=decided.head._replace(fields=fields))


def _head_for_server(head: RequestHead, scanned: Scanned) -> RequestHead:
    """Return the head with the fields that its server gets.

    Its Content-Type is that of the body that was scanned: a server that took it for something else
    might find another model there.
    """
    kind = shapes.JSON.encode()
    if not isinstance(scanned, JsonRequest):
        kind = form_type(head.fields.get(b"content-type")).field()
    fields = without(head.fields, _UNSENT, (_IDENTITY, (_CONTENT_TYPE, kind)))
    return head._replace(fields=fields, options=head.options - _UNSENT)


def own_keys(protocol: Protocol, header: Callable[[str], str | None]) -> tuple[str, ...]:
    """Return the keys in the fields that only requests of a protocol have."""
    key = header(_KEY) if protocol is Protocol.ANTHROPIC else None
    return () if key is None else (key,)


def protocol_of(path: bytes, header: Callable[[str], str | None]) -> Protocol:
    """Return the protocol in which a client of a path below PREFIX expects its errors.

    Where the path does not tell, a field does that all clients of Anthropic's API send.
    """
    place = path.removeprefix(PREFIX)
    endpoint = ENDPOINTS.get(place)
    if endpoint is not None:
        return endpoint.protocol
    return Protocol.OPENAI if place == REALTIME or header(_VERSION) is None else Protocol.ANTHROPIC


def no_endpoint(method: str, path: bytes) -> FnError:
    """Return the error for a request that no endpoint takes."""
    place, shown = path.removeprefix(PREFIX), path[:SHOWN_MAX].decode("utf-8", "replace")
    allow = ["POST"] if place in ENDPOINTS else []
    if place == MODELS or place.startswith(MODELS + b"/"):
        allow = ["GET", "HEAD"]
    if place == REALTIME:
        allow = ["GET"]
    if not allow:
        return Unknown(f"no route {method} {shown}")
    text = f"{shown}: expected {' or '.join(allow)}, got {method}"
    return MethodNotAllowed(text, detail={"allow": allow})


def _check_size(framing: Framing, most: int) -> None:
    """Raise BodyTooLarge for a request whose head says that its body is."""
    if framing.kind is BodyKind.LENGTH and framing.length > most:
        raise BodyTooLarge(f"expected a body of at most {most} bytes, got {framing.length}")


def _check_body(scanned: Scanned, endpoint: Endpoint, api: ModelApi) -> None:
    """Raise an error for a body that is too large for its model, and BadRequest for one that needs
    what an earlier request has left at the server."""
    if scanned.size > api.body_mib * MIB:
        got = scanned.size
        raise BodyTooLarge(f"expected a body of at most {api.body_mib} MiB, got {got}")
    if endpoint.path != b"/responses" or not isinstance(scanned, JsonRequest):
        return
    for name in _STATEFUL:
        if scanned.members.get(name, _NULL) != _NULL:
            text = f"{name}: expected none, as servers that sleep keep no responses"
            raise BadRequest(text, detail={"param": name})
    if scanned.members.get("background") == _TRUE:
        text = "background: expected false, as servers that sleep keep no responses"
        raise BadRequest(text, detail={"param": "background"})
