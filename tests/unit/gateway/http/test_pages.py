"""Functions' own hosts through both client sides: routes, tickets, cookies, origins."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gateway.pages.cookies import LIFETIME_S
from registry.model.functions import ExchangeLimits
from registry.model.servers import PathRules
from tests.support import nouns
from tests.support.paged import (
    APP,
    CALLER,
    CLOSE,
    KEY_ID,
    KEYS,
    OTHER,
    OWN,
    UPGRADE,
    App,
    ask,
    code,
    cookie,
    field,
    known,
    status,
)
from tests.support.proxied import KEY, Gate, gate, until, warm


@pytest.fixture(params=[True, False], ids=["fast", "aiohttp"])
def is_fast(request: pytest.FixtureRequest) -> bool:
    """Which of the two client sides reads the requests."""
    return bool(request.param)


@pytest.mark.parametrize("line", [b"/", b"/lab?x=1", b"/ui/", b"/admin/v1/keys", b"/metrics"])
async def test_every_path_is_the_servers(tmp_path: Path, is_fast: bool, line: bytes) -> None:
    """No route of the gateway exists there, and nothing is cut from the path."""
    app = App()
    async with gate(tmp_path, app, is_fast=is_fast) as one:
        answer = await ask(one, b"GET " + line, OWN)
        assert answer.endswith(b"\r\n\r\nGET " + line + b" HTTP/1.1")
        assert b"\r\nHost: web.localhost:80\r\n" in app.heads[0]
        assert b"\r\nX-Forwarded-Host: web.localhost:80\r\n" in app.heads[0]
        assert b"X-Forwarded-Prefix" not in app.heads[0]
        await one.settled()


async def test_calls_of_others_are_the_servers_too(tmp_path: Path, is_fast: bool) -> None:
    """A plain POST to a model's path on a function's host does not reach the model."""
    async with gate(tmp_path, App(), is_fast=is_fast) as one:
        for line in (b"POST /fn/digits", b"POST /fn/web", b"GET /fn/web", b"GET /fn/nobody/x"):
            answer = await ask(one, line, OWN, body=b"{}" if b"POST" in line else b"")
            assert answer.endswith(line + b" HTTP/1.1")
        await one.settled()


async def test_both_forms_share_a_connection(tmp_path: Path) -> None:
    """The fast side reads on after an exchange, whichever host the next request names."""
    async with gate(tmp_path, App()) as one:
        wire = await one.connect()
        for line, host in ((b"/", OWN), (b"/fn/web/", b"Host: localhost\r\n"), (b"/x", OWN)):
            wire.send(b"GET %b HTTP/1.1\r\n%b\r\n" % (line, host))
            sent = b"/" if line == b"/fn/web/" else line
            assert (await wire.answer())[1] == b"GET " + sent + b" HTTP/1.1"
        assert not one.handed_over
        wire.close()
        await one.settled()


async def test_a_host_that_arrives_late(tmp_path: Path, is_fast: bool) -> None:
    """A request line whose Host comes in a later read is understood alike."""
    async with gate(tmp_path, App(), is_fast=is_fast) as one:
        for line in (b"GET /x HTTP/1.1\r\n", b"GET /fn/web/x HTTP/1.1\r\n"):
            wire = await one.connect()
            wire.send(line)
            await until(lambda: one.delivery.held.bytes > 0)
            wire.send(b"X: y\r\n" + OWN + CLOSE + b"\r\n")
            assert (await wire.rest()).endswith(b"\r\n\r\n" + line[:-2])
            wire.close()
        await one.settled()


@pytest.mark.parametrize(
    "host",
    [
        b"digits.localhost",
        b"nobody.localhost",
        b"a.web.localhost",
        b"web.localhost.evil.example",
        b"web.127.0.0.1",
        b"web.localhost.",
        b"-web.localhost",
        b".localhost",
        b"web.evil.example",
    ],
)
async def test_any_other_host_is_foreign(tmp_path: Path, is_fast: bool, host: bytes) -> None:
    """A model, no function, more than one label, another base: 421, which nobody stores."""
    async with gate(tmp_path, App(), is_fast=is_fast) as one:
        for path in (b"/", b"/fn/web/x", b"/.fngate/enter", b"/ui/", b"/healthz"):
            answer = await ask(one, b"GET " + path, b"Host: " + host + b"\r\n")
            assert (status(answer), code(answer)) == (421, "foreign_host"), path
            assert field(answer, b"cache-control") == [b"no-store"]
        await one.settled()


async def test_a_function_that_is_deployed_later_is_found(tmp_path: Path, is_fast: bool) -> None:
    """The answer 421 is not remembered."""
    async with gate(tmp_path, App(), is_fast=is_fast, is_cold=True) as one:
        catalog = one.gateway.invoker.catalog
        deployed = catalog.resolve("web")
        catalog.remove("web")
        assert status(await ask(one, b"GET /", OWN)) == 421
        catalog.put(deployed)
        await warm(one)
        assert status(await ask(one, b"GET /", OWN)) == 200
        await one.settled()


async def test_public_hosts_are_bases(tmp_path: Path, is_fast: bool) -> None:
    """Below each public host name, in any case, with any port; the bare name is the gateway's."""
    async with gate(tmp_path, App(), is_fast=is_fast) as one:
        for host in (b"web.gpu.example", b"WEB.GPU.example:443", b"Web.LocalHost"):
            answer = await ask(one, b"GET /healthz", b"host:  " + host + b" \r\n")
            assert answer.endswith(b"GET /healthz HTTP/1.1"), host
        answer = await ask(one, b"GET /healthz", b"Host: gpu.example\r\n")
        assert answer.endswith(b'{"status":"ok"}')
        await one.settled()


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: web.localhost\r\nHost: localhost\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: web.localhost\r\n",
        b"GET http://localhost/ui/ HTTP/1.1\r\nHost: web.localhost\r\n",
        b"GET /x#y HTTP/1.1\r\nHost: web.localhost\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: web.localhost\r\n",
        b"GET /\\x HTTP/1.1\r\nHost: web.localhost\r\n",
    ],
)
async def test_ambiguous_requests_are_refused(tmp_path: Path, is_fast: bool, head: bytes) -> None:
    """Two hosts, and targets in other forms, reach neither a server nor a route."""
    app = App()
    async with gate(tmp_path, app, is_fast=is_fast) as one:
        assert status(await one.ask(head + CLOSE + b"\r\n")) == 400
        assert app.heads == []
        await one.settled()


async def test_a_cookie_opens_the_functions_host(tmp_path: Path, is_fast: bool) -> None:
    """Only that function's, only with its key, and its server sees neither it nor a key."""
    app = App()
    async with gate(tmp_path, app, is_fast=is_fast, keys=KEYS) as one:
        secure = cookie().replace(b"fngate=", b"fngate=0.0.x; __Host-fngate=")
        for good in (cookie(), secure, cookie(age_s=LIFETIME_S - 1)):
            assert status(await ask(one, b"GET /", OWN, good)) == 200
            assert b"\r\nCookie: a=b; c=d\r\n" in app.heads[-1]
        for bad in (
            *(cookie("other"), cookie(age_s=LIFETIME_S), cookie(key="nobody"), b""),
            *(cookie().replace(b"fngate=", b"fngate=x"), b"Cookie: fngate=\r\n"),
        ):
            answer = await ask(one, b"GET /", OWN, bad)
            assert (status(answer), code(answer)) == (401, "no_key")
        answer = await ask(one, b"GET /", OWN, cookie(key=OTHER[3:9]))
        assert (status(answer), code(answer)) == (403, "wrong_scope")
        assert len(app.heads) == 3
        await one.settled()


async def test_a_cookie_dies_with_its_key(tmp_path: Path, is_fast: bool) -> None:
    """From the removal of the key on, without a restart."""
    async with gate(tmp_path, App(), is_fast=is_fast, keys=KEYS) as one:
        ring = one.gateway.invoker.access.ring
        assert status(await ask(one, b"GET /", OWN, cookie())) == 200
        key = ring.with_id(KEY_ID)
        assert key is not None
        ring.remove(key)
        assert status(await ask(one, b"GET /", OWN, cookie())) == 401
        await one.settled()


async def test_a_cookie_opens_nothing_else(tmp_path: Path, is_fast: bool) -> None:
    """Not the path form, which shares its origin with the dashboard."""
    app = App()
    async with gate(tmp_path, app, is_fast=is_fast, keys=KEYS) as one:
        for line in (b"GET /fn/web/x", b"GET /fn/web"):
            assert status(await ask(one, line, b"Host: localhost\r\n", cookie())) == 401
        assert app.heads == []
        await one.settled()


async def test_keys_open_the_functions_host(tmp_path: Path, is_fast: bool) -> None:
    """As below /fn/; an Authorization of the server's own goes through beside a cookie."""
    app = App()
    async with gate(tmp_path, app, is_fast=is_fast, keys=KEYS) as one:
        bearer = b"Authorization: Bearer " + CALLER.encode() + b"\r\n"
        fn_key = b"Fn-Key: " + CALLER.encode() + b"\r\n"
        theirs = b"Authorization: token of-jupyter\r\n"
        for fields in ((bearer,), (fn_key,), (theirs, cookie())):
            assert status(await ask(one, b"GET /", OWN, *fields)) == 200
            assert CALLER.encode() not in app.heads[-1]
        assert theirs in app.heads[-1]
        assert status(await ask(one, b"GET /", OWN, theirs)) == 401
        assert status(await ask(one, b"GET /", OWN, b"Fn-Key: no\r\n", cookie())) == 401
        assert status(await ask(one, b"GET /?key=" + CALLER.encode(), OWN)) == 401
        await one.settled()


async def test_a_browser_without_a_cookie_gets_a_page(tmp_path: Path, is_fast: bool) -> None:
    """It says how to get in, and runs nothing."""
    async with gate(tmp_path, App(), is_fast=is_fast, keys=KEYS) as one:
        answer = await ask(one, b"GET /", OWN, b"Accept: text/html,*/*;q=0.8\r\n")
        assert status(answer) == 401
        assert b"fnctl open web" in answer
        assert field(answer, b"content-type") == [b"text/html; charset=utf-8"]
        assert b"default-src 'none'" in field(answer, b"content-security-policy")[0]
        await one.settled()


async def redeem(one: Gate, word: bytes, *fields: bytes, host: bytes = OWN) -> bytes:
    """Return the answer to a ticket."""
    return await ask(one, b"POST /.fngate/enter", host, *fields, body=word)


async def test_a_ticket_is_exchanged_for_a_cookie(tmp_path: Path, is_fast: bool) -> None:
    """Once, by the page of the same host; the cookie then opens the function."""
    app = App()
    async with gate(tmp_path, app, is_fast=is_fast, keys=KEYS) as one:
        page = await ask(one, b"GET /.fngate/enter", OWN)
        assert status(page) == 200
        assert b"location.hash" in page
        word = one.tickets.issue(KEY_ID, "web", "/lab").encode()
        from_here = b"Origin: http://web.localhost:80\r\nSec-Fetch-Site: same-origin\r\n"
        for foreign in (b"", b"Origin: http://evil.example\r\n"):
            assert status(await redeem(one, word, foreign)) == 403
        entered = await redeem(one, word, from_here)
        assert status(entered) == 200
        assert json.loads(entered.partition(b"\r\n\r\n")[2]) == {"path": "/lab"}
        (given,) = field(entered, b"set-cookie")
        assert given.startswith(b"fngate=")
        assert b"Domain" not in given
        sent = b"Cookie: " + given.partition(b";")[0] + b"\r\n"
        assert status(await ask(one, b"GET /lab", OWN, sent)) == 200
        again = await redeem(one, word, from_here)
        assert (status(again), field(again, b"set-cookie")) == (401, [])
        assert app.heads[0].startswith(b"GET /lab ")
        await one.settled()


async def test_under_https_the_cookie_is_secure(tmp_path: Path) -> None:
    """The origin of the page says by which scheme the browser came."""
    async with gate(tmp_path, App(), keys=KEYS) as one:
        word = one.tickets.issue(KEY_ID, "web").encode()
        host = b"Host: web.gpu.example\r\n"
        answer = await redeem(one, word, b"Origin: https://web.gpu.example\r\n", host=host)
        (given,) = field(answer, b"set-cookie")
        assert given.startswith(b"__Host-fngate=")
        assert given.endswith(b"; Secure")


async def test_a_ticket_without_its_key_is_void(tmp_path: Path, is_fast: bool) -> None:
    """The key may have been removed, or be one of another function."""
    async with gate(tmp_path, App(), is_fast=is_fast, keys=KEYS) as one:
        origin = b"Origin: http://web.localhost:80\r\n"
        for key, expected in (("nobody", 401), (OTHER[3:9], 403)):
            word = one.tickets.issue(key, "web").encode()
            assert status(await redeem(one, word, origin)) == expected
        assert status(await redeem(one, b"x" * 300, origin)) == 413


async def test_the_gateways_own_paths(tmp_path: Path, is_fast: bool) -> None:
    """Below /.fngate/ nothing reaches the server."""
    app = App()
    async with gate(tmp_path, app, is_fast=is_fast, keys=KEYS) as one:
        for line, expected in (
            (b"GET /.fngate/", 404),
            (b"GET /.fngate/enter?key=x", 404),
            (b"DELETE /.fngate/enter", 405),
            (b"PUT /.fngate/leave", 405),
            (b"POST /.fngate/leave?x", 404),
            (b"POST /.fngate/Leave", 404),
            (b"GET /.fngate/enter/../../x", 404),
        ):
            assert status(await ask(one, line, OWN, cookie())) == expected, line
        assert status(await ask(one, b"GET /.fngate/enter", b"Host: localhost\r\n")) == 404
        assert app.heads == []


async def test_links_lead_in_and_other_pages_do_not_send(tmp_path: Path, is_fast: bool) -> None:
    """A navigation from another site passes with the cookie; nothing else of that site does."""
    app = App()
    async with gate(tmp_path, app, is_fast=is_fast, keys=KEYS) as one:
        cross = b"Sec-Fetch-Site: cross-site\r\n"
        navigate = b"Sec-Fetch-Mode: navigate\r\n"
        evil = b"Origin: https://evil.example\r\n"
        assert status(await ask(one, b"GET /", OWN, cookie(), cross, navigate)) == 200
        for line, fields in (
            (b"GET /", (cross,)),
            (b"GET /", (cross, b"Sec-Fetch-Mode: no-cors\r\n")),
            (b"POST /", (cross, navigate)),
            (b"POST /", (evil,)),
            (b"GET /", (evil, cross, navigate)),
            (b"GET /", (b"Origin: http://digits.localhost:80\r\n", UPGRADE)),
        ):
            answer = await ask(one, line, OWN, cookie(), *fields)
            assert (status(answer), code(answer)) == (403, "foreign_origin")
        below = await ask(one, b"GET /fn/web/", b"Host: localhost\r\n", cross, navigate)
        assert status(below) == 403
        assert len(app.heads) == 1
        await one.settled()


async def test_a_websocket_of_the_own_page(tmp_path: Path, is_fast: bool) -> None:
    """Its origin is the host of the request, or listed."""
    app = App()
    async with gate(tmp_path, app, is_fast=is_fast, keys=KEYS, origins=(APP,)) as one:
        for origin in (b"http://web.localhost:80", APP.encode()):
            wire = await one.connect()
            fields = OWN + cookie() + UPGRADE + b"Origin: " + origin + b"\r\n"
            wire.send(b"GET /ws HTTP/1.1\r\n" + fields + b"\r\n")
            assert (await wire.head()).startswith(b"HTTP/1.1 101 ")
            wire.close()
        await one.settled()


@pytest.mark.parametrize(
    ("line", "host"), [(b"/x", OWN), (b"/fn/web/x", b"Host: localhost\r\n")], ids=["own", "path"]
)
async def test_listed_origins(tmp_path: Path, is_fast: bool, line: bytes, host: bytes) -> None:
    """A preflight is answered without a key and wakes nothing; a listed page reads every answer."""
    app = App(b"Access-Control-Allow-Origin: *", b"Access-Control-Allow-Methods: X", b"Vary: A")
    origin = f"Origin: {APP}\r\n".encode()
    asks = b"Access-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: fn-key\r\n"
    async with gate(tmp_path, app, is_fast=is_fast, keys=KEYS, origins=(APP,), is_cold=True) as one:
        answer = await ask(one, b"OPTIONS " + line, host, origin, asks)
        assert status(answer) == 200
        assert field(answer, b"access-control-allow-origin") == [APP.encode()]
        assert field(answer, b"access-control-allow-headers") == [b"fn-key"]
        evil = b"Origin: https://evil.example\r\n"
        assert status(await ask(one, b"OPTIONS " + line, host, evil, asks)) == 403
        assert not one.delivery.loads().get(KEY)
        refused = await ask(one, b"PUT " + line, host, origin)
        assert status(refused) == 401
        assert field(refused, b"access-control-allow-origin") == [APP.encode()]
        await warm(one)
        key = b"Fn-Key: " + CALLER.encode() + b"\r\n"
        answer = await ask(one, b"PUT " + line, host, origin, key)
        assert status(answer) == 200
        assert field(answer, b"access-control-allow-origin") == [APP.encode()]
        assert field(answer, b"access-control-allow-methods") == []
        assert field(answer, b"vary") == [b"A", b"Origin"]
        plain = await ask(one, b"GET " + line, host, key)
        assert field(plain, b"vary") == [b"A", b"Origin"]
        assert field(plain, b"access-control-allow-origin") == [b"*"]
        assert len(app.heads) == 2
        await one.settled()


async def test_answers_on_both_forms(tmp_path: Path, is_fast: bool) -> None:
    """The path form is sandboxed; the own host is not, but no other page may frame it."""
    app = App(
        b"Set-Cookie: a=b; Domain=localhost; Path=/x",
        b"Set-Cookie: fngate=mine",
        b"Location: /lab",
        b"Service-Worker-Allowed: /",
        b"Clear-Site-Data: *",
        b"Alt-Svc: h3",
        b"Strict-Transport-Security: max-age=1",
        b"Accept-CH: DPR",
        b'Reporting-Endpoints: x="/fn/digits"',
    )
    async with gate(tmp_path, app, is_fast=is_fast) as one:
        own = await ask(one, b"GET /", OWN)
        below = await ask(one, b"GET /fn/web/", b"Host: localhost\r\n")
        assert field(own, b"set-cookie") == [b"a=b; Path=/x"]
        assert field(below, b"set-cookie") == [b"a=b; Path=/fn/web/x"]
        assert field(own, b"location") == [b"/lab"]
        assert field(below, b"location") == [b"/fn/web/lab"]
        policy = b"content-security-policy"
        assert field(own, policy) == [b"frame-ancestors 'self'"]
        assert field(below, policy) == [b"sandbox allow-scripts allow-forms allow-downloads"]
        assert field(own, b"service-worker-allowed") == [b"/"]
        for answer, left in ((own, 0), (below, 0)):
            for name in (b"clear-site-data", b"alt-svc", b"strict-transport-security"):
                assert len(field(answer, name)) == left
        assert field(below, b"service-worker-allowed") == []
        assert field(own, b"accept-ch") == [b"DPR"]
        assert field(below, b"accept-ch") == field(below, b"reporting-endpoints") == []
        await one.settled()


async def test_path_rules_and_held_calls(tmp_path: Path, is_fast: bool) -> None:
    """They apply to the whole path; a cold page is held until its replica is ready."""
    paths = PathRules(deny=("/shutdown", "DELETE /*"), free=("/static/*",))
    async with gate(tmp_path, App(), is_fast=is_fast, paths=paths, is_cold=True) as one:
        assert status(await ask(one, b"GET /shutdown", OWN)) == 403
        assert status(await ask(one, b"GET //x/shutdown", OWN)) == 400
        claims = b"X-HTTP-Method-Override: DELETE\r\n"
        assert status(await ask(one, b"POST /items", OWN, claims)) == 403
        assert status(await ask(one, b"GET /favicon.ico", OWN)) == 503
        visit = asyncio.create_task(ask(one, b"GET /lab", OWN))
        await until(lambda: one.delivery.loads().get(KEY) is not None)
        await warm(one)
        assert (await visit).endswith(b"GET /lab HTTP/1.1")
        await one.settled()


async def test_ignored_websockets_wake_nothing(tmp_path: Path, is_fast: bool) -> None:
    """An open page that connects again and again neither wakes the function nor takes a slot."""
    limits = ExchangeLimits(websockets="ignore")
    async with gate(tmp_path, App(), is_fast=is_fast, exchange=limits, is_cold=True) as one:
        answer = await ask(one, b"GET /ws", OWN, UPGRADE)
        assert (status(answer), code(answer)) == (503, "asleep")
        assert not one.delivery.loads().get(KEY)
        await warm(one)
        wire = await one.connect()
        wire.send(b"GET /ws HTTP/1.1\r\n" + OWN + UPGRADE + b"\r\n")
        assert (await wire.head()).startswith(b"HTTP/1.1 101 ")
        (frame,) = [frame for frame in one.sidecar.got if frame.kind.name == "OPEN"]
        assert frame.flags
        wire.close()
        await one.settled()


async def test_models_have_no_hosts(tmp_path: Path, is_fast: bool) -> None:
    """Also a function that becomes a model loses its host."""
    async with gate(tmp_path, App(), is_fast=is_fast) as one:
        catalog = one.gateway.invoker.catalog
        catalog.remove("web")
        catalog.put(nouns.deployed("web"))
        assert status(await ask(one, b"GET /", OWN)) == 421
        assert status(await ask(one, b"GET /.fngate/enter", OWN)) == 421


async def test_repeated_heads_are_treated_alike(tmp_path: Path) -> None:
    """What is remembered of a head keeps its fields for other origins, and its host; a cookie is
    checked each time, because it expires."""
    app = App()
    async with gate(tmp_path, app, keys=KEYS, origins=(APP,)) as one:
        key = b"Fn-Key: " + CALLER.encode() + b"\r\n"
        origin = f"Origin: {APP}\r\n".encode()
        wire = await one.connect()
        for fields, learns in ((key + origin, True), (cookie(), False), (key, True)):
            before = known(one)
            for _ in range(4):
                wire.send(b"GET /x?y HTTP/1.1\r\n" + OWN + fields + b"\r\n")
                head, body = await wire.answer()
                assert body == b"GET /x?y HTTP/1.1"
                allowed = field(head, b"access-control-allow-origin")
                assert allowed == ([APP.encode()] if origin in fields else [])
                assert field(head, b"vary") == [b"Origin"]
                assert field(head, b"content-security-policy") == [b"frame-ancestors 'self'"]
            assert known(one) - before == learns
        assert not one.handed_over
        wire.close()
        await one.settled()
