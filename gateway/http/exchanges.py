"""Exchanges with the servers of functions: admission, and all that are open in this process.

A *server function* answers with an HTTP server of its own. Both readers of client connections pass
the heads of such requests to `Exchanges.begin`. A function's own host is NAME.BASE, see `Access`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Final

from gateway import statuses
from gateway.admission.callers import KeyProbe
from gateway.admission.calls import (
    Correlation,
    correlate,
    requested_priority,
    requested_wait_s,
)
from gateway.admission.credentials import Realm, read_credential
from gateway.http.exchange_journal import ExchangeJournal
from gateway.http.known_heads import (
    CutHead,
    KnownHead,
    make_known_head,
)
from gateway.metrics.key_times import KeyTime
from gateway.openapi.descriptions import prefers_page
from gateway.pages.entering import CLOSED_HEADERS, closed_page
from gateway.pages.origins import Sender, asked_by, preflight_fields
from gateway.proxy.exchange import Exchange
from gateway.proxy.forwarding import (
    SERVER_ADDRESS,
    Forwarding,
    forward_request,
    outer_prefix,
)
from gateway.proxy.known_answers import KnownAnswers
from gateway.proxy.own_keys import find_keys
from gateway.proxy.plan import ExchangePlan
from gateway.proxy.ports import answer_last
from gateway.proxy.request_head import header_of
from gateway.proxy.targets import (
    FunctionTarget,
    claimed_methods,
    claimed_paths,
    host_target,
    split_target,
)
from gateway.proxy.trusted import TrustedProxies
from gateway.proxy.websocket import check_handshake, is_handshake
from gateway.replies import Reply
from registry.errors import Asleep, ShuttingDown
from registry.model.functions import ExchangeLimits
from registry.model.revisions import Revision
from registry.model.servers import HOST_OF_CLIENT, HOST_OF_LOOPBACK
from registry.path_rules import NEVER_WAKING, CompiledPaths

if TYPE_CHECKING:
    from gateway.admission.control import Entry
    from gateway.admission.credentials import Credential
    from gateway.http.context import Invoker
    from gateway.http.head_memory import HeadMemory
    from gateway.proxy.ports import ClientSide
    from gateway.proxy.request_head import RequestHead

DEFAULT_LIMITS: Final = ExchangeLimits()
CONDITIONS: Final = frozenset({b"if-none-match", b"if-modified-since"})
"""Fields of requests whose answers do not renew a cookie: a cache may keep the fields of a 304."""
IGNORED: Final = "the function is asleep, and its settings say that WebSockets do not wake it"
RULES_SHOWN: Final = 3
"""Max rules in an error."""
_END: Final = b"\r\n\r\n"
_HOST_LINE: Final = re.compile(rb"\r\n[Hh][Oo][Ss][Tt]:[ \t]*+([!-~]++)[ \t]*+\r\n")


class Exchanges:
    """The exchanges of this process. Event loop thread only."""

    def __init__(self, invoker: Invoker, heads: HeadMemory) -> None:
        self._invoker = invoker
        self._open = invoker.open_exchanges
        self._paths: dict[str, CompiledPaths] = {}
        self._paths_as_of = -1
        self._trusted = TrustedProxies(invoker.settings.trusted_proxies)
        self._admission = invoker.admission
        self._hosts = invoker.access.hosts
        self._heads = heads

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
        return self._invoker.catalog.find_server(ref) is not None

    def has_document(self, ref: str) -> bool:
        """Return whether the server of `ref` has its own OpenAPI document, or none: of Python
        functions the gateway makes it."""
        found = self._invoker.catalog.find_server(ref)
        return found is not None and not found.revision.is_python

    def forwarding(
        self,
        head: RequestHead,
        target: FunctionTarget,
        peer: bytes,
        revision: Revision,
        journal: ExchangeJournal,
        probe: KeyProbe | None = None,
    ) -> Forwarding:
        """Return what decides which fields of a request its server gets. `peer`: the client's IP
        address. `probe` is asked which texts are keys."""
        assert revision.server is not None
        return Forwarding(
            target.upstream,
            target.prefix,
            peer,
            journal.request_id.encode(),
            traceparent=journal.traceparent.encode(),
            is_trusted=self._trusted.has(peer),
            fields=frozenset(map(str.encode, revision.server.fields)),
            host=_host_for(revision),
            keys=find_keys(head.fields, probe or self.probe()),
        )

    def probe(self) -> KeyProbe:
        """Return a new probe for the keys in the fields of a request."""
        return KeyProbe(self._invoker.access.callers)

    def page_of(self, head: bytes) -> str | None:
        """Return the function whose own host the first bytes of a request name, None for others.

        None also if the bytes end before the field Host.
        """
        end = head.find(_END)
        found = _HOST_LINE.search(head, 0, len(head) if end < 0 else end + 2)
        return None if found is None else self._hosts.function_of(found[1].decode())

    def target_of(self, head: RequestHead) -> FunctionTarget | None:
        """Return a request's target; None if it is not for a function. Raises BadRequest."""
        name = self._hosts.function_of(head.fields.get(b"host").decode("latin-1"))
        return split_target(head.target) if name is None else host_target(name, head.target)

    def begin(
        self,
        head: RequestHead,
        target: FunctionTarget,
        client: ClientSide,
        peer: bytes,
        raw: bytes = b"",
    ) -> Exchange | None:
        """Begin an exchange; `start` must follow, when the client can take an answer.

        None if the client has been answered already: with an error, or as a preflight. `peer`: IP
        address of the client. `raw`: the bytes of the head, if the same bytes may begin another
        request.
        """
        invoker = self._invoker
        header = header_of(head)
        who = correlate(header)
        journal = ExchangeJournal(invoker, target.ref, head.method.decode(), who)
        try:
            journal.enter()
            admitted = self._admit(head, target, journal)
        except Exception as error:  # noqa: BLE001 - error boundary: the journal hides internals
            answer(head, client, _for_browsers(journal.problem(error, None, 0), target, header))
            return None
        if isinstance(admitted, Reply):
            answer(head, client, admitted)
            return None
        plan, entry = admitted
        deployed = entry.deployed
        if self._trusted.has(peer):
            values = head.fields.values
            host = values.get(b"x-forwarded-host", b"")
            plan = plan._replace(outer=outer_prefix(values), public_host=host)
        probe = self.probe()
        forwarding = self.forwarding(head, target, peer, deployed.revision, journal, probe)
        forwarding = forwarding._replace(
            expects_continue=True, is_websocket=plan.websocket_key is not None
        )
        # A cookie expires, which nothing tells.
        may_learn = plan.wakes and plan.websocket_key is None and not entry.by_cookie
        may_learn = may_learn and self.is_repeatable(head, who)
        cut = self._heads.repeated(peer, raw, who) if raw and may_learn else None
        if cut is not None:
            plan = plan._replace(answers=KnownAnswers())
            decided = (entry.caller, journal.applied, journal.added)
            known = make_known_head(plan, deployed, decided, forwarding, cut)
            self._heads.learn(peer, cut.key, known, probe)
        return self.exchange(plan, forward_request(head, forwarding), client, journal)

    def _admit(
        self,
        head: RequestHead,
        target: FunctionTarget,
        journal: ExchangeJournal,
    ) -> tuple[ExchangePlan, Entry] | Reply:
        """Return the plan, and who sends the request; or the answer to a preflight. Raises
        FnError."""
        header, method = header_of(head), head.method.decode()
        asked = asked_by(method, header)
        page = self._admission.judge_page(asked, target)
        journal.added = page.fields
        if page.sender is Sender.PREFLIGHT:
            names = header("Access-Control-Request-Headers")
            return journal.preflight(preflight_fields(asked, names, with_cookies=page.with_cookies))
        credential = credential_in(head)
        entry = self._admission.enter_server(credential, target, method, self._invoker.wall())
        journal.caller = entry.caller
        if entry.renewed and CONDITIONS.isdisjoint(head.fields.values):
            journal.added += (("Set-Cookie", entry.renewed), ("Cache-Control", "no-store"))
        journal.admitted(entry.deployed)
        return self.plan(head, target, entry, journal), entry

    def begin_known(self, known: KnownHead, cut: CutHead, client: ClientSide) -> Exchange | None:
        """Begin an exchange with a known head; see `begin`. `cut`: this request's."""
        invoker, plan = self._invoker, known.plan
        ref = plan.target.ref
        journal = ExchangeJournal(invoker, ref, known.method, cut.who)
        journal.caller, journal.applied, journal.added = known.caller, known.applied, known.added
        try:
            journal.enter()
        except ShuttingDown as error:
            answer(plan.head, client, journal.problem(error, None, 0))
            return None
        journal.admitted(known.deployed)
        return self.exchange(plan, known.request(cut, journal.request_id), client, journal)

    def exchange(
        self, plan: ExchangePlan, request: bytes, client: ClientSide, journal: ExchangeJournal
    ) -> Exchange:
        """Return a new exchange. `request`: the head for the server."""
        journal.began(plan.key_time)
        invoker = self._invoker
        if not plan.is_free:
            invoker.key_times.arrived(plan.key_time)
        if invoker.gate.headers:  # the process is shutting down
            plan = plan._replace(keeps=False, answers=None)
        return Exchange(
            plan, request, client, invoker.delivery, invoker.body_budget, journal, self._open
        )

    def is_repeatable(self, head: RequestHead, who: Correlation) -> bool:
        """Return whether the ids of a head may differ in the next one that is treated alike.

        Not an invalid id, which is not cut out of the head, and not where each has a trace.
        """
        fields = head.fields.values
        if bool(who.request_id) is not (b"x-request-id" in fields):
            return False
        if bool(who.traceparent) is not (b"traceparent" in fields):
            return False
        return self._invoker.tracer is None

    def _paths_of(self, revision: Revision) -> CompiledPaths:
        """Return the path rules of a revision, compiled once per version of the catalog."""
        version = self._invoker.catalog.version
        if self._paths_as_of != version:
            self._paths_as_of = version
            self._paths.clear()
        found = self._paths.get(revision.key)
        if found is None:
            assert revision.server is not None
            server = revision.server
            control = server.park.control if server.park else ()
            found = CompiledPaths(server.paths, server.ready, control)
            self._paths[revision.key] = found
        return found

    def plan(
        self,
        head: RequestHead,
        target: FunctionTarget,
        entry: Entry,
        journal: ExchangeJournal,
    ) -> ExchangePlan:
        """Apply the function's path rules and limits. Raises FnError."""
        caller, deployed = entry.caller, entry.deployed
        invoker, function = self._invoker, deployed.function
        pool = deployed.revision.key
        limits = function.exchange or DEFAULT_LIMITS
        rules = self._paths_of(deployed.revision)
        claimed: tuple[bytes, ...] = ()
        if rules.denies:
            claimed = claimed_methods(head.fields)
            for path in claimed_paths(head.fields, target.prefix):
                rules.judge(head.method, path, claimed)
        rule = rules.judge(head.method, target.path or b"/", claimed)
        key = check_handshake(head) if is_handshake(head) else None
        # A page that is left open connects again and again: that must not wake the function either.
        is_ignored = key is not None and limits.websockets == "ignore"
        wakes = rule.wakes and not is_ignored
        if not wakes and invoker.delivery.is_cold(pool):
            path = target.path or b"/"
            raise Asleep(IGNORED if is_ignored else _asleep(deployed.revision, path))
        is_free = rule.is_free or not wakes
        header = header_of(head)
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
            requested_priority(header("Priority"), may_be_high=caller.is_high),
            "@" in target.ref,
            is_free,
            key,
            # A client whose handshake is refused may have sent frames already.
            head.keep_alive and key is None,
            settings.body_read_s,
            function.limits.retry,
            wakes,
            key_time=KeyTime(caller.id, function.namespace, function.name),
            idle_s=function.scaling.idle_s,
            host=_host_for(deployed.revision),
        )


def _host_for(revision: Revision) -> bytes:
    """Return the Host that a revision's server gets, as of `Forwarding`."""
    assert revision.server is not None
    host = revision.server.seen_host
    if host == HOST_OF_CLIENT:
        return b""
    return SERVER_ADDRESS if host == HOST_OF_LOOPBACK else host.encode()


def answer(head: RequestHead, client: ClientSide, reply: Reply) -> None:
    """Answer a request that gets no exchange."""
    answer_last(client, reply, keeps=head.keep_alive and head.framing.is_empty)


def _for_browsers(
    reply: Reply, target: FunctionTarget, header: Callable[[str], str | None]
) -> Reply:
    """Return a problem document as a page, if a browser opens a function's host without a key."""
    is_refused = reply.status in statuses.CLOSED
    if not (target.is_own_host and is_refused and prefers_page(header("Accept") or "")):
        return reply
    headers = [pair for pair in reply.headers if pair[0] != "Content-Type"]
    return Reply(reply.status, (*headers, *CLOSED_HEADERS.items()), closed_page(target.name))


def credential_in(head: RequestHead, own: tuple[str, ...] = ()) -> Credential:
    """Return the credentials of a request that goes on to a function's server. `own` as in
    `Credential`."""
    values, header = head.fields.values, header_of(head)
    names = (name.decode("latin-1") for name in values)
    return read_credential(header, header("Host") or "", names, Realm.SERVERS, own)


def _asleep(revision: Revision, path: bytes) -> str:
    """Return why a request for `path` does not wake the function, and which ones do."""
    assert revision.server is not None
    rules = revision.server.paths.wake
    never = [path.decode() for path in NEVER_WAKING]
    if revision.server.ready not in ("", "/"):
        never.append(revision.server.ready)
    shown = path.decode("latin-1")
    is_probe = shown in never
    why = f"{shown} only probes it" if is_probe else "this request does not wake it"
    expected = f"another path than {', '.join(never)}, which only probe it"
    if rules:
        more = ", ..." if len(rules) > RULES_SHOWN else ""
        expected = f"one of {', '.join(rules[:RULES_SHOWN])}{more}"
    return (
        f"the function is asleep, and {why}: to wake it, expected {expected};"
        f" `fnctl warm {revision.name}` starts it, too"
    )
