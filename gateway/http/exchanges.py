"""Exchanges with the servers of functions: admission, and all that are open in this process.

A *server function* answers with an HTTP server of its own. Both readers of client connections pass
the heads of such requests to `Exchanges.begin`.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Final

from gateway.access import Access
from gateway.http.admission import (
    Correlation,
    correlate,
    requested_priority,
    requested_wait_s,
)
from gateway.http.exchange_journal import ExchangeJournal
from gateway.http.known_heads import (
    CutHead,
    KnownHead,
    KnownHeads,
    make_known_head,
)
from gateway.proxy.exchange import Exchange
from gateway.proxy.forwarding import Forwarding, forward_request, outer_prefix
from gateway.proxy.known_answers import KnownAnswers
from gateway.proxy.plan import ExchangePlan
from gateway.proxy.targets import FunctionTarget
from gateway.proxy.trusted import TrustedProxies
from gateway.proxy.websocket import check_handshake, is_handshake
from gateway.replies import CLOSE
from registry.catalog import Deployed
from registry.errors import Asleep, NoKey, ShuttingDown, Unknown
from registry.model import ExchangeLimits, Revision
from registry.path_rules import NEVER_WAKING, CompiledPaths

if TYPE_CHECKING:
    from gateway.http.context import Invoker
    from gateway.proxy.ports import ClientSide
    from gateway.proxy.request_head import RequestHead

DEFAULT_LIMITS: Final = ExchangeLimits()
RULES_SHOWN: Final = 3
"""Max rules in an error."""


class Exchanges:
    """The exchanges of this process. Event loop thread only."""

    def __init__(self, invoker: Invoker) -> None:
        self._invoker = invoker
        self._open = invoker.open_exchanges
        self._paths: dict[str, CompiledPaths] = {}
        self._paths_as_of = -1
        self._trusted = TrustedProxies(invoker.settings.trusted_proxies)
        self.known = KnownHeads(invoker.catalog, invoker.access)
        """The heads that clients repeat."""

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> list[Exchange]:
        """Return the open exchanges."""
        return list(self._open)

    def sweep(self) -> None:
        """Check the time limits of every exchange; to be called once a second."""
        now = monotonic()
        for exchange in list(self._open):
            exchange.tick(now)

    def is_server(self, ref: str) -> bool:
        """Return whether `ref` names a deployed server function."""
        found = self._invoker.catalog.find(ref)
        return found is not None and found.revision.server is not None

    def begin(
        self,
        head: RequestHead,
        target: FunctionTarget,
        client: ClientSide,
        peer: bytes,
        raw: bytes = b"",
    ) -> Exchange | None:
        """Begin an exchange; `start` must follow, when the client can take an answer.

        An error is answered to the client at once, and None is returned. `peer`: IP address of the
        client. `raw`: the bytes of the head, if the same bytes may begin another request.
        """
        invoker = self._invoker
        header = _header_of(head)
        credential, is_ours = find_credential(
            invoker.access, header("Fn-Key"), header("Authorization")
        )
        method = head.method.decode()
        who = correlate(header)
        journal = ExchangeJournal(invoker, target.ref, method, credential, who)
        try:
            journal.enter()
            deployed = self._resolve(header, target, credential, method)
            journal.admitted(deployed)
            plan = self._plan(head, target, deployed, journal)
        except Exception as error:  # noqa: BLE001 - error boundary: the journal hides internals
            refuse(head, client, journal, error)
            return None
        is_trusted = self._trusted.has(peer)
        if is_trusted:
            values = head.fields.values
            host = values.get(b"x-forwarded-host", b"")
            plan = plan._replace(outer=outer_prefix(values), public_host=host)
        forwarding = Forwarding(
            target.upstream,
            target.prefix,
            peer,
            journal.request_id.encode(),
            traceparent=journal.traceparent.encode(),
            is_trusted=is_trusted,
            drops_authorization=is_ours,
            expects_continue=True,
            is_websocket=plan.websocket_key is not None,
        )
        may_learn = raw and self._is_repeatable(plan, who)
        cut = self.known.repeated(peer, raw, who) if may_learn else None
        if cut is not None:
            plan = plan._replace(answers=KnownAnswers())
            decided = (credential, journal.applied)
            known = make_known_head(plan, deployed, decided, forwarding, cut)
            self.known.learn(peer, cut.key, known)
        if invoker.gate.headers:
            plan = plan._replace(keeps=False, answers=None)
        return self._exchange(plan, forward_request(head, forwarding), client, journal)

    def begin_known(self, known: KnownHead, cut: CutHead, client: ClientSide) -> Exchange | None:
        """Begin an exchange with a known head; see `begin`. `cut`: this request's."""
        invoker, plan = self._invoker, known.plan
        ref = plan.target.ref
        journal = ExchangeJournal(invoker, ref, known.method, known.credential, cut.who)
        journal.applied = known.applied
        try:
            journal.enter()
        except ShuttingDown as error:
            refuse(plan.head, client, journal, error)
            return None
        journal.admitted(known.deployed)
        if not plan.is_free:
            function = known.deployed.function
            invoker.history.arrived(function.namespace, function.name)
        if invoker.gate.headers:
            plan = plan._replace(keeps=False, answers=None)
        return self._exchange(plan, known.request(cut, journal.request_id), client, journal)

    def _exchange(
        self, plan: ExchangePlan, request: bytes, client: ClientSide, journal: ExchangeJournal
    ) -> Exchange:
        journal.began()
        invoker = self._invoker
        return Exchange(
            plan, request, client, invoker.delivery, invoker.body_budget, journal, self._open
        )

    def _is_repeatable(self, plan: ExchangePlan, who: Correlation) -> bool:
        """Return whether the next request with the same head is treated alike.

        Not those with an invalid id, which is not cut out of the head.
        """
        fields = plan.head.fields.values
        if bool(who.request_id) is not (b"x-request-id" in fields):
            return False
        if bool(who.traceparent) is not (b"traceparent" in fields):
            return False
        return plan.wakes and plan.websocket_key is None and self._invoker.tracer is None

    def _resolve(
        self,
        header: Callable[[str], str | None],
        target: FunctionTarget,
        credential: str | None,
        method: str,
    ) -> Deployed:
        """Return the function and revision, after all access checks.

        Raises FnError; Unknown if it is not a server function.
        """
        access, host = self._invoker.access, header("Host") or ""
        access.check_host(host)
        access.check_origin(header("Origin"), header("Sec-Fetch-Site"), host)
        access.check(credential, "invoke", target.name)
        deployed = self._invoker.catalog.resolve(target.ref)
        if deployed.revision.server is None:
            path = (target.prefix + target.path).decode()
            raise Unknown(f"no route {method} {path[:200]}")
        return deployed

    def _paths_of(self, revision: Revision) -> CompiledPaths:
        """Return the path rules of a revision, compiled once per version of the catalog."""
        version = self._invoker.catalog.version
        if self._paths_as_of != version:
            self._paths_as_of = version
            self._paths.clear()
        found = self._paths.get(revision.key)
        if found is None:
            assert revision.server is not None
            found = CompiledPaths(revision.server.paths, revision.server.ready)
            self._paths[revision.key] = found
        return found

    def _plan(
        self,
        head: RequestHead,
        target: FunctionTarget,
        deployed: Deployed,
        journal: ExchangeJournal,
    ) -> ExchangePlan:
        """Apply the function's path rules and limits. Raises FnError."""
        invoker, function = self._invoker, deployed.function
        pool = deployed.revision.key
        limits = function.exchange or DEFAULT_LIMITS
        rule = self._paths_of(deployed.revision).judge(head.method, target.path or b"/")
        if not rule.wakes and invoker.delivery.is_cold(pool):
            raise Asleep(_asleep(deployed.revision))
        key = check_handshake(head) if is_handshake(head) else None
        is_free = rule.is_free or not rule.wakes
        if key is not None and limits.websockets == "ignore":
            is_free = True
        if not is_free:
            invoker.history.arrived(function.namespace, function.name)
        header = _header_of(head)
        settings = invoker.settings
        wait_s, journal.applied = requested_wait_s(
            header("Prefer"), function.limits.wait_s, settings.wait_max_s
        )
        return ExchangePlan(
            pool,
            head,
            target,
            limits,
            wait_s,
            function.limits.queue,
            requested_priority(header("Priority")),
            "@" in target.ref,
            is_free,
            key,
            # A client whose handshake is refused may have sent frames already.
            head.keep_alive and key is None,
            settings.body_read_s,
            function.limits.retry,
            rule.wakes,
        )


def refuse(
    head: RequestHead, client: ClientSide, journal: ExchangeJournal, error: BaseException
) -> None:
    """Answer a request that gets no exchange."""
    reply = journal.problem(error, None, 0)
    keep = head.keep_alive and head.framing.is_empty and not reply.closes
    if not keep and not reply.closes:
        reply = reply._replace(headers=(*reply.headers, CLOSE))
    client.answer(reply)
    client.finish(keep=keep)


def find_credential(
    access: Access, fn_key: str | None, authorization: str | None
) -> tuple[str | None, bool]:
    """Return the value to authorise a request with, and whether Authorization is a key of ours.

    A key may come as Fn-Key, so that Authorization is left to the function's server. Where nobody
    needs a key, an Authorization that is none of our keys belongs to that server, too.
    """
    is_ours = authorization is not None and _is_key(access, authorization)
    if fn_key is not None:
        return f"Bearer {fn_key}", is_ours
    if is_ours or not access.is_open:
        return authorization, is_ours
    return None, False


def _is_key(access: Access, authorization: str) -> bool:
    try:
        access.scopes(authorization)
    except NoKey:
        return False
    return True


def _header_of(head: RequestHead) -> Callable[[str], str | None]:
    values = head.fields.values

    def header(name: str) -> str | None:
        value = values.get(name.lower().encode())
        return None if value is None else value.decode("latin-1")

    return header


def _asleep(revision: Revision) -> str:
    """Return why a request does not wake the function, and which ones do."""
    assert revision.server is not None
    rules = revision.server.paths.wake
    never = [path.decode() for path in NEVER_WAKING]
    if revision.server.ready not in ("", "/"):
        never.append(revision.server.ready)
    expected = f"another path than {', '.join(never)}"
    if rules:
        more = ", ..." if len(rules) > RULES_SHOWN else ""
        expected = f"one of {', '.join(rules[:RULES_SHOWN])}{more}"
    return f"the function is asleep, and this request does not wake it: expected {expected}"
