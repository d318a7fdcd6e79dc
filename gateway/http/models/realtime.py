"""Requests to /v1/realtime: WebSockets of the function whose model their query names."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

from gateway.admission.calls import correlate
from gateway.admission.control import MODELS, Entry
from gateway.http.exchange_journal import ExchangeJournal
from gateway.http.exchanges import answer, credential_in
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
from gateway.proxy.request_head import header_of
from gateway.proxy.websocket import is_handshake
from gateway.v1 import shapes
from gateway.v1.endpoints import PREFIX, REALTIME, Protocol
from gateway.v1.realtime import PROTOCOL, ModelQuery, Offered, find_model, split_offer
from gateway.v1.upstream_key import with_key
from registry.errors import BadRequest

if TYPE_CHECKING:
    from gateway.admission.callers import Caller
    from gateway.http.context import Invoker
    from gateway.http.exchanges import Exchanges
    from gateway.proxy.exchange import Exchange
    from gateway.proxy.ports import ClientSide
    from gateway.proxy.request_head import RequestHead
    from registry.catalog import Deployed

PLACE: Final = (PREFIX + REALTIME).decode()
_REWRITTEN: Final = OWN | {PROTOCOL.lower()}


class RealtimeRequests:
    """The requests to /v1/realtime of one process. Event loop thread only."""

    def __init__(self, exchanges: Exchanges, invoker: Invoker) -> None:
        self._exchanges = exchanges
        self._invoker = invoker

    def begin(self, head: RequestHead, client: ClientSide, peer: bytes) -> Exchange | None:
        """Begin a WebSocket, as `gateway.http.exchanges.Exchanges.begin`."""
        invoker, header = self._invoker, header_of(head)
        admission = invoker.admission
        journal = ExchangeJournal(invoker, PLACE, head.method.decode(), correlate(header))
        journal.shape = partial(shapes.reply, Protocol.OPENAI, journal.request_id)
        try:
            journal.enter()
            offered = split_offer(head.fields.get(PROTOCOL.lower()))
            asked = asked_for(head.method.decode(), header)
            credential = credential_in(head, offered.keys)
            journal.caller = caller = admission.enter_models(credential, asked)
            journal.added = admission.origins.fields(MODELS, asked.origin)
            if not is_handshake(head):
                expected = "the handshake of a WebSocket (Connection: Upgrade, Upgrade: websocket)"
                raise BadRequest(f"{PLACE}: expected {expected}, got another request")
            query = find_model(head.target.partition(b"?")[2])
            deployed = admission.find_model(caller, query.model, asked)
            journal.admitted(deployed)
            return self._exchange(head, client, peer, journal, (deployed, caller, query, offered))
        except Exception as error:  # noqa: BLE001 - error boundary: the journal hides internals
            answer(head, client, journal.problem(error, None, 0))
            return None

    def _exchange(
        self,
        head: RequestHead,
        client: ClientSide,
        peer: bytes,
        journal: ExchangeJournal,
        found: tuple[Deployed, Caller, ModelQuery, Offered],
    ) -> Exchange:
        """Return the exchange with the server of a model. Raises FnError."""
        deployed, caller, query, offered = found
        invoker, exchanges, api = self._invoker, self._exchanges, api_of(deployed)
        key = upstream_key(invoker, deployed, api)
        # Its tokens are said in messages, which nobody reads here.
        journal.meter = UsageMeter(
            invoker, deployed.function, caller.id, None, monotonic(), says_usage=True
        )
        text = query.text(api.served_model)
        target = model_target(deployed, query.model, api, REALTIME, text)
        sent = _head_for_server(head, offered)
        plan = exchanges.plan(sent, target, Entry(caller, deployed), journal)
        plan = plan._replace(dropped=UNANSWERED, offered=offered.others)
        forwarding = exchanges.forwarding(head, target, peer, deployed.revision, journal)
        forwarding = forwarding._replace(prefix=b"", is_websocket=True)
        request = with_key(forward_request(sent, forwarding), Protocol.OPENAI, key)
        return exchanges.exchange(plan, request, client, journal)


def _head_for_server(head: RequestHead, offered: Offered) -> RequestHead:
    """Return the head with the fields that its server gets: no key, in no field."""
    added = ((PROTOCOL, b", ".join(offered.others)),) if offered.others else ()
    fields = without(head.fields, _REWRITTEN, added)
    return head._replace(fields=fields, options=head.options - _REWRITTEN)
