"""Two heads that known heads take for one and the same."""

from __future__ import annotations

from gateway.admission.calls import Correlation, correlate
from gateway.dispatch.call import Priority
from gateway.http.known_heads import cut_head, make_known_head
from gateway.proxy.forwarding import Forwarding, forward_request
from gateway.proxy.plan import ExchangePlan
from gateway.proxy.request_head import RequestHead, parse_request_head
from gateway.proxy.targets import FunctionTarget, split_target
from registry.errors import FnError
from registry.model.functions import ExchangeLimits, Limits
from registry.model.servers import PathRules
from tests.support.proxied import server_function

DEPLOYED = server_function(ExchangeLimits(), PathRules(), Limits(), "")
ID = b"an-id"


def parsed(raw: bytes) -> tuple[RequestHead, FunctionTarget] | None:
    """Return a head and its target, None if the gateway refuses it."""
    try:
        head = parse_request_head(raw)
        target = split_target(head.target)
    except FnError:
        return None
    return None if target is None else (head, target)


def correlation(head: RequestHead) -> Correlation:
    """Return the ids of a request as its admission reads them."""
    values = head.fields.values
    return correlate(
        lambda name: (
            None
            if (value := values.get(name.lower().encode())) is None
            else value.decode("latin-1")
        )
    )


def treated_alike(first: bytes, second: bytes, *, is_trusted: bool) -> None:
    """Check that two heads with one key are both valid or none is, and that what is known from one
    gives for the other exactly the head and the framing that it gets otherwise."""
    cut, other = cut_head(first), cut_head(second)
    if cut is None or other is None or cut.key != other.key:
        return
    learned, wanted = parsed(first), parsed(second)
    assert (learned is None) == (wanted is None)
    if learned is None or wanted is None:
        return
    head, target = learned
    ids = {"x-request-id": cut.who.request_id, "traceparent": cut.who.traceparent}
    is_cut = all(bool(id) is (name.encode() in head.fields.values) for name, id in ids.items())
    if correlation(head) != cut.who or not is_cut:
        return  # is not learned
    forwarding = Forwarding(
        *(target.upstream, target.prefix, b"::1", ID), is_trusted=is_trusted, expects_continue=True
    )
    plan = ExchangePlan(
        "p", head, target, ExchangeLimits(), 1.0, 1, Priority.NORMAL, False, False, None
    )
    known = make_known_head(plan, DEPLOYED, (None, "", ()), forwarding, cut)
    head, target = wanted
    who = correlation(head)
    assert other.who == who
    id = who.request_id or ID.decode()
    given_anew = forwarding._replace(
        target=target.upstream, request_id=id.encode(), traceparent=who.traceparent.encode()
    )
    assert known.request(other, id) == forward_request(head, given_anew)
    assert known.framing(other) == head.framing
    assert known.plan.target._replace(query=None) == target._replace(query=None)
    fields = ("method", "minor", "keep_alive", "expects_continue", "options", "upgrade")
    for field in fields:
        assert getattr(known.plan.head, field) == getattr(head, field)
