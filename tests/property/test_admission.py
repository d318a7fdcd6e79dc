"""What was decided about a head is right at once after every change: the memory of admissions and
of known heads gives what a fresh decision gives, over random orders of changes."""

from __future__ import annotations

from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from gateway.admission.access import Access
from gateway.admission.calls import Admission, Head, make_head
from gateway.admission.control import AdmissionControl
from registry.catalog import Catalog
from registry.errors import FnError
from registry.model.functions import ExchangeLimits, Limits
from registry.model.keys import Key
from registry.model.servers import PathRules
from registry.openness import Openness
from registry.store.keys import KeyRing, fingerprint
from tests.support import nouns
from tests.support.proxied import Gate, Wire, gate, server_function

SECRETS = tuple(f"fn_{letter * 43}" for letter in "abc")
SCOPES = (("invoke",), ("invoke:web",), ("invoke:digits",), ("read",), ("admin",))
STEPS, SEEDS = 60, 6


class Changes:
    """Random changes of the keys, the openness and the functions of a server."""

    def __init__(self, random: Random, ring: KeyRing, catalog: Catalog) -> None:
        self._random = random
        self._ring = ring
        self._catalog = catalog
        self._current = {name: catalog.find(name) for name in ("web", "digits")}

    def make(self) -> None:
        """Make one change."""
        random, ring, catalog = self._random, self._ring, self._catalog
        secret, name = random.choice(SECRETS), random.choice(["web", "digits"])
        key = Key(secret[3:9], fingerprint(secret), random.choice(SCOPES))
        current = self._current[name]
        assert current is not None
        match random.randrange(8):
            case 0 | 1:
                ring.put(key)
            case 2 | 3:
                ring.remove(key)
            case 4:
                ring.decide(random.choice([Openness.OPEN, Openness.OPEN, Openness.CLOSED]))
            case 5:
                if catalog.find(name) is not None:
                    catalog.remove(name)
            case 6:
                catalog.put(current)
            case 7:
                limits = Limits(queue=random.randrange(1, 9))
                rules = PathRules(deny=("/x",) if random.random() < 0.3 else ())
                made = server_function(ExchangeLimits(), rules, limits, "")
                function = replace(current.function, limits=limits)
                revision = made.revision if name == "web" else current.revision
                catalog.put(replace(current, function=function, revision=revision))


def heads() -> list[Head]:
    """Return heads of calls with each key, and without one."""
    sent = (None, "Basic x", *(f"Bearer {secret}" for secret in SECRETS))
    asked = [{} if one is None else {"authorization": one} for one in sent]
    return [
        make_head(ref, "localhost", lambda name, of=fields: of.get(name.lower()), fields)
        for fields in asked
        for ref in ("digits", "digits@1", "web")
    ]


def decided(control: AdmissionControl, head: Head) -> Admission | str:
    """Return the admission of a head, or why there is none."""
    found = control.find(head)
    try:
        return found or control.admit(head, head, control.enter_call(head))
    except FnError as error:
        return f"{error.code}: {error}"


def facts(admission: Admission | str) -> object:
    """Return what tells an admission from another one."""
    if isinstance(admission, str):
        return admission
    caller, route, limits = admission.caller, admission.route, admission.limits
    return caller.id, caller.scopes, caller.is_live, route.pool, limits, admission.key_time.key_id


@pytest.mark.parametrize("seed", range(SEEDS))
def test_calls(seed: int) -> None:
    """Of models: who may call, which revision answers, and within which limits."""
    random = Random(seed)
    ring = KeyRing((), "", Openness.OPEN)
    web = server_function(ExchangeLimits(), PathRules(), Limits(), "")
    catalog = Catalog([nouns.deployed("digits"), web])
    access = Access("127.0.0.1", (), ring)
    control = AdmissionControl(access, catalog, 600.0, 2**30)
    changes, asked, remembered = Changes(random, ring, catalog), heads(), 0
    for _ in range(10 * STEPS):
        if random.random() < 0.3:
            changes.make()
        head = random.choice(asked)
        remembered += control.find(head) is not None
        fresh = AdmissionControl(Access("127.0.0.1", (), ring), catalog, 600.0, 2**30)
        assert facts(decided(control, head)) == facts(decided(fresh, head)), head
    assert remembered > STEPS // 6


FIELDS = (
    b"",
    b"Authorization: Basic eDp5\r\n",
    *(b"Authorization: Bearer %b\r\n" % secret.encode() for secret in SECRETS),
    *(b"Fn-Key: %b\r\n" % secret.encode() for secret in SECRETS),
    b"Fn-Key: %b\r\nAuthorization: Bearer %b\r\n" % tuple(map(str.encode, SECRETS[:2])),
    b"X-Other: %b\r\n" % SECRETS[1].encode(),
)


async def echo(reader: Reader, writer: Writer) -> None:
    """Answer each request with its head."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(head), head))


async def asks(wire: Wire, fields: bytes) -> tuple[bytes, list[bytes]]:
    """Return the status and the lines of the answer that do not differ in each request."""
    wire.send(b"GET /fn/web/x HTTP/1.1\r\nHost: localhost\r\n" + fields + b"\r\n")
    head, body = await wire.answer()
    lines = body.split(b"\r\n")
    varying = (b"X-Request-Id", b'{"type')
    return head[9:12], [line for line in lines if not line.startswith(varying)]


async def wire_of(one: Gate, wires: dict[int, Wire]) -> Wire:
    """Return a connection of a gate, by its port; a new one if the last was closed."""
    wire = wires.get(one.port)
    if wire is None or wire.reader.at_eof():
        if wire is not None:
            wire.close()
        wire = wires[one.port] = await one.connect()
    return wire


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_exchanges(tmp_path: Path, seed: int) -> None:
    """Of server functions: also which fields the server gets."""
    async with gate(tmp_path / "a", echo) as one, gate(tmp_path / "b", echo) as fresh:
        random = Random(seed)
        both = (one, fresh)
        mutual = Random(seed + 1).getstate()
        worlds = []
        for each in both:
            source = Random()
            source.setstate(mutual)
            invoker = each.gateway.invoker
            worlds.append(Changes(source, invoker.access.ring, invoker.catalog))
        wires: dict[int, Wire] = {}
        remembered = 0
        for step in range(STEPS):
            if step and random.random() < 0.3:
                for world in worlds:
                    world.make()
            fields = random.choice(FIELDS)
            for _ in range(3):
                fresh.gateway.parts.heads._forget()
                remembered += len(one.gateway.parts.heads._known)
                answers = [await asks(await wire_of(each, wires), fields) for each in both]
                assert answers[0] == answers[1], fields
        assert remembered
        for wire in wires.values():
            wire.close()
        for each in both:
            await each.settled()
