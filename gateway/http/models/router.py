"""Requests to /v1: their admission, and the way from a model to the exchange with its server."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

import msgspec

from gateway.admission.calls import REQUEST_ID, correlate
from gateway.admission.control import MODELS as PLACE
from gateway.admission.control import Entry
from gateway.http.exchange_journal import ExchangeJournal
from gateway.http.exchanges import answer, credential_in
from gateway.http.models.realtime import RealtimeRequests
from gateway.http.models.request import ModelRequest, Routed, Scanned
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
    from gateway.admission.callers import Caller
    from gateway.http.context import Invoker
    from gateway.http.exchanges import Exchanges
    from gateway.pages.origins import Asked
    from gateway.proxy.ports import ClientExchange, ClientSide
    from gateway.proxy.request_head import RequestHead
    from gateway.replies import Reply
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
_IDENTITY: Final = (b"Accept-Encoding", b"identity")
_CONTENT_TYPE: Final = b"Content-Type"
_NULL, _TRUE = msgspec.Raw(b"null"), msgspec.Raw(b"true")
_STATEFUL: Final = ("previous_response_id", "conversation")
"""Members that need a server that remembers: one that sleeps forgets."""


class ModelRequests:
    """The requests to /v1 of this process. Event loop thread only."""

    def __init__(self, exchanges: Exchanges, invoker: Invoker) -> None:
        self._exchanges = exchanges
        self._invoker = invoker
        self._arriving = invoker.arriving
        self._largest = 0
        self._largest_as_of = -1
        self._turns = invoker.scan_turns
        self._admission = invoker.admission
        self._realtime = RealtimeRequests(exchanges, invoker)

    def sweep(self) -> None:
        """Check the time limits of arriving bodies; to be called once a second."""
        now = monotonic()
        for request in list(self._arriving):
            request.count_second(now)

    def begin(self, head: RequestHead, client: ClientSide, peer: bytes) -> ClientExchange | None:
        """Begin a request; `start` must follow, when the client can take an answer.

        None if the client has been answered already, with an error. `peer`: IP address of the
        client.
        """
        if is_realtime(head.method, head.target):
            return self._realtime.begin(head, client, peer)
        invoker, header = self._invoker, header_of(head)
        path, _, query = head.target.partition(b"?")
        endpoint = ENDPOINTS.get(path.removeprefix(PREFIX))
        protocol = protocol_of(path, header)
        who, ref = correlate(header), path[:SHOWN_MAX].decode()
        journal = ExchangeJournal(invoker, ref, head.method.decode(), who)
        journal.shape = partial(_shaped, protocol, journal.request_id)
        try:
            journal.enter()
            asked = asked_for(head.method.decode(), header)
            credential = credential_in(head, own_keys(protocol, header))
            journal.caller = caller = self._admission.enter_models(credential, asked)
            journal.added = self._admission.origins.fields(PLACE, asked.origin)
            if endpoint is None:
                raise no_endpoint(head.method.decode(), path)
            check_query(query)
            most = self._body_max(head)
        except Exception as error:  # noqa: BLE001 - error boundary: the journal hides internals
            answer(head, client, journal.problem(error, None, 0))
            return None
        router = _Router(self._exchanges, invoker, endpoint, query, caller, asked)
        limits = (most, invoker.settings.body_read_s)
        budget = invoker.body_budget
        shared = (self._arriving, self._turns)
        return ModelRequest(head, client, peer, journal, router, budget, *shared, limits)

    def refusal(self, line: bytes, error: FnError) -> Reply | None:
        """Return the answer to a head that is no request, None if its line names none of these."""
        method, _, rest = line.partition(b" ")
        target = rest.partition(b" ")[0]
        if not is_model_request(method, target):
            return None
        path = target.partition(b"?")[0].removeprefix(PREFIX)
        protocol = ENDPOINTS[path].protocol if path in ENDPOINTS else Protocol.OPENAI
        request_id = self._invoker.new_id()
        reply = shapes.reply(protocol, error, request_id)
        return reply._replace(headers=(*reply.headers, (REQUEST_ID, request_id)))

    def _body_max(self, head: RequestHead) -> int:
        """Return the max bytes of a request's body. Raises FnError if it cannot be read."""
        coding = head.fields.get(b"content-encoding").lower()
        if coding not in (b"", b"identity"):
            got = repr(coding[:40].decode("latin-1"))
            text = f"expected a body without a content coding, got {got}"
            raise UnsupportedEncoding(text, detail={"accepted": ["identity"]})
        most = min(self._largest_body(), self._invoker.settings.held_bytes_max)
        if head.framing.kind is BodyKind.LENGTH and head.framing.length > most:
            text = f"expected a body of at most {most} bytes, got {head.framing.length}"
            raise BodyTooLarge(text)
        return most

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


class _Router:
    """The router of one request, as `gateway.http.models.request.Router`."""

    def __init__(
        self,
        exchanges: Exchanges,
        invoker: Invoker,
        endpoint: Endpoint,
        query: bytes,
        caller: Caller,
        asked: Asked,
    ) -> None:
        self._exchanges = exchanges
        self._invoker = invoker
        self._endpoint = endpoint
        self._query = query
        self._caller = caller
        self._asked = asked
        self._began_s = monotonic()

    def scan(self, request: ModelRequest, body: bytes) -> Generator[None, None, Scanned]:
        """Implement `Router.scan`."""
        kind = request.head.fields.get(b"content-type")
        if self._endpoint.form_of(kind) is BodyForm.JSON:
            return scan(body)
        return scan_multipart(body, kind)

    def route(self, request: ModelRequest, scanned: Scanned) -> Routed:
        """Implement `Router.route`."""
        caller = self._caller
        deployed = self._invoker.admission.find_model(caller, scanned.model, self._asked)
        api, journal, endpoint = api_of(deployed), request.journal, self._endpoint
        if scanned.size > api.body_mib * MIB:
            got = scanned.size
            raise BodyTooLarge(f"expected a body of at most {api.body_mib} MiB, got {got}")
        if endpoint.path == b"/responses" and isinstance(scanned, JsonRequest):
            _check_stateless(scanned)
        journal.admitted(deployed)
        key = upstream_key(self._invoker, deployed, api)
        body = upstream_body(scanned, endpoint, api)
        is_stream = scanned.is_stream and endpoint.streams
        journal.added += _STREAMED if is_stream else ()
        model_answer = self._answer(journal, scanned.model, api, asks_usage=body.asks_usage)
        journal.meter = UsageMeter(
            *(self._invoker, deployed.function, caller.id, model_answer, self._began_s),
            says_usage=endpoint.usage is not UsageForm.NONE,
        )
        target = model_target(deployed, scanned.model, api, endpoint.path, self._query)
        head = _head_for_server(request.head, scanned)
        plan = self._exchanges.plan(head, target, Entry(caller, deployed), journal)
        is_free_of_effects = not endpoint.has_effects and plan.retry == "auto"
        retry = "always" if is_free_of_effects else plan.retry
        plan = plan._replace(
            filter=model_answer,
            dropped=UNANSWERED,
            retry=retry,
            may_poison=retry == "always",
        )
        forwarding = self._exchanges.forwarding(
            request.head, target, request.peer, deployed.revision, journal
        )
        framing = Framing(BodyKind.LENGTH, sum(map(len, body.pieces)))
        forwarding = forwarding._replace(prefix=b"", framing=framing)
        sent = with_key(forward_request(head, forwarding), endpoint.protocol, key)
        exchange = self._exchanges.exchange(plan, sent, request, journal)
        waiting = None
        if is_stream and head.minor and api.comment_after_s > 0:
            waiting = WaitingStream(endpoint.protocol, monotonic(), api.comment_after_s)
        return Routed(exchange, body.pieces, model_answer, waiting, api.on_disconnect == "drain")

    def _answer(
        self, journal: ExchangeJournal, model: str, api: ModelApi, *, asks_usage: bool
    ) -> ModelAnswer:
        """Return the filter of the answer of a model that the client names `model`."""
        is_renamed = api.served_model not in ("", model)
        return ModelAnswer(
            model if is_renamed else "",
            asks_usage=asks_usage,
            is_nested=self._endpoint.usage is not UsageForm.CHUNKS,
            protocol=self._endpoint.protocol,
            shape=journal.shape or partial(_shaped, self._endpoint.protocol, journal.request_id),
            memory=self._invoker.body_budget,
        )


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


def _shaped(protocol: Protocol, request_id: str, error: FnError) -> Reply:
    return shapes.reply(protocol, error, request_id)


def _check_stateless(request: JsonRequest) -> None:
    """Raise BadRequest for a request that needs what an earlier one has left at the server."""
    for name in _STATEFUL:
        if request.members.get(name, _NULL) != _NULL:
            text = f"{name}: expected none, as servers that sleep keep no responses"
            raise BadRequest(text, detail={"param": name})
    if request.members.get("background") == _TRUE:
        text = "background: expected false, as servers that sleep keep no responses"
        raise BadRequest(text, detail={"param": "background"})
