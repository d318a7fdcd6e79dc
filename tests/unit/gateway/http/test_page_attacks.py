"""Attacks on a function's own host as bytes, through both client sides: none reaches the server.

What a browser does, or refuses to do, is in tests/e2e/test_pages.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.pages.cookies import LIFETIME_S, RENEWED_S, make_value
from registry.model.servers import PathRules
from tests.support.paged import (
    CALLER,
    KEY_ID,
    KEYS,
    OWN,
    UPGRADE,
    App,
    ask,
    cookie,
    field,
    status,
)
from tests.support.proxied import KEY, SECRET, TOKEN, gate

EVIL = b"Origin: http://evil.localhost\r\n"
VALUE = cookie().partition(b"fngate=")[2].partition(b";")[0]
BEYOND = cookie("web", KEY_ID, -1).partition(b"fngate=")[2].partition(b";")[0]


@pytest.fixture(params=[True, False], ids=["fast", "aiohttp"])
def is_fast(request: pytest.FixtureRequest) -> bool:
    """Which of the two client sides reads the requests."""
    return bool(request.param)


HOSTS = {
    "a final dot": b"Host: web.localhost.\r\n",
    "two final dots": b"Host: web.localhost..\r\n",
    "an own domain": b"Host: web.localhost.evil.example\r\n",
    "a rebound name": b"Host: evil.example\r\n",
    "a rebound name with the port": b"Host: evil.example:8080\r\n",
    "a rebound name that looks alike": b"Host: weblocalhost\r\n",
    "an address as a name": b"Host: web.127.0.0.1.nip.io\r\n",
    "a user": b"Host: web.localhost@evil.example\r\n",
    "a user before it": b"Host: evil@web.localhost\r\n",
    "brackets": b"Host: [web.localhost]\r\n",
    "an IPv6 address": b"Host: [::ffff:192.0.2.1]\r\n",
    "another base": b"Host: web.0.0.0.0\r\n",
    "a path": b"Host: web.localhost/x\r\n",
    "a fragment": b"Host: web.localhost#x\r\n",
    "a scheme": b"Host: http://web.localhost\r\n",
    "a port without digits": b"Host: web.localhost:http\r\n",
    "a port of six digits": b"Host: web.localhost:080080\r\n",
    "two ports": b"Host: web.localhost:80:80\r\n",
    "a list": b"Host: web.localhost, localhost\r\n",
    "two words": b"Host: web.localhost localhost\r\n",
    "an escape": b"Host: web%2elocalhost\r\n",
    "another dot": "Host: web\u3002localhost\r\n".encode(),
    "other letters": "Host: wèb.localhost\r\n".encode(),
    "its ASCII form": b"Host: xn--wb-vka.localhost\r\n",
    "an underscore": b"Host: w_b.localhost\r\n",
    "two labels": b"Host: web.web.localhost\r\n",
    "no label": b"Host: .localhost\r\n",
    "a revision": b"Host: web@1.localhost\r\n",
    "an empty one": b"Host: \r\n",
    "none": b"",
    "two": b"Host: web.localhost\r\nHost: evil.example\r\n",
    "two alike": b"Host: web.localhost\r\nHost: web.localhost\r\n",
    "a folded one": b"Host: web.localhost\r\n .evil.example\r\n",
    "a space before the colon": b"Host : web.localhost\r\n",
    "a claim of a proxy": b"Host: evil.example\r\nX-Forwarded-Host: web.localhost\r\n",
    "another claim": b"Host: evil.example\r\nForwarded: host=web.localhost\r\n",
    "an older claim": b"Host: evil.example\r\nX-Original-Host: web.localhost\r\n",
}


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS)
async def test_no_other_host_leads_in(tmp_path: Path, is_fast: bool, host: bytes) -> None:
    """Neither to the server nor to a route, by either form and in both versions."""
    app = App()
    async with gate(tmp_path, app, is_fast=is_fast) as one:
        for line in (b"GET /", b"GET /fn/web/", b"GET /.fngate/enter", b"POST /fn/digits"):
            # HTTP/1.0 without a host is for the address that it came to, which is no function's.
            for version in (b"1.1", b"1.0") if host or b"web" in line else (b"1.1",):
                head = b"%b HTTP/%b\r\n%bConnection: close\r\n\r\n" % (line, version, host)
                assert status(await one.ask(head)) in (400, 421), (line, version)
        assert app.heads == []
        await one.settled()


COOKIES = {
    "of another function": cookie("other"),
    "expired": cookie(age_s=LIFETIME_S),
    "of a removed key": cookie(key="removed"),
    "of no key": cookie(key=""),
    "of another secret": b"Cookie: fngate="
    + make_value(SECRET[::-1], KEY_ID, "web", LIFETIME_S).encode(),
    "of no secret": b"Cookie: fngate=" + make_value(b"", KEY_ID, "web", LIFETIME_S).encode(),
    "with a later end": b"Cookie: fngate=" + VALUE.replace(b".", b".f", 1),
    "with zeros before its end": b"Cookie: fngate=" + VALUE.replace(b".", b".0", 1),
    "in capitals": b"Cookie: fngate=" + VALUE.upper(),
    "without its signature": b"Cookie: fngate=" + VALUE.rpartition(b".")[0] + b".",
    "with a short signature": b"Cookie: fngate=" + VALUE[:-1],
    "with a padded signature": b"Cookie: fngate=" + VALUE + b"=",
    "with the same bits in its last digit": b"Cookie: fngate="
    + VALUE[:-1]
    + bytes([VALUE[-1] + 1]),
    "quoted": b'Cookie: fngate="' + VALUE + b'"',
    "escaped": b"Cookie: fngate=" + VALUE.replace(b".", b"%2E"),
    "with a name in capitals": b"Cookie: FNGATE=" + VALUE,
    "with a similar name": b"Cookie: xfngate=" + VALUE + b"; fngate2=" + VALUE,
    "after a comma": b"Cookie: a=b, fngate=" + VALUE,
    "as another field": b"Set-Cookie: fngate=" + VALUE,
    "as a key": b"Fn-Key: " + VALUE,
    "as authorization": b"Authorization: Bearer " + VALUE,
    "behind too many others": b"Cookie: " + b"fngate=x; " * 4 + b"fngate=" + VALUE,
}


@pytest.mark.parametrize("sent", COOKIES.values(), ids=COOKIES)
async def test_no_other_cookie_opens(tmp_path: Path, is_fast: bool, sent: bytes) -> None:
    """It is refused, is not renewed, and does not reach the server."""
    app = App()
    async with gate(tmp_path, app, is_fast=is_fast, keys=KEYS) as one:
        answer = await ask(one, b"GET /", OWN, sent.removesuffix(b"\r\n") + b"\r\n")
        assert (status(answer), field(answer, b"set-cookie")) == (401, [])
        assert app.heads == []
        await one.settled()


async def test_a_cookie_among_others_opens(tmp_path: Path, is_fast: bool) -> None:
    """Also among invalid ones, and in a second field; the server sees none of them."""
    app = App()
    async with gate(tmp_path, app, is_fast=is_fast, keys=KEYS) as one:
        good = b"fngate=" + VALUE
        for sent in (
            b"Cookie: fngate=x; __Host-fngate=y; fngate=; " + good,
            b"Cookie: a=b\r\nCookie: " + good,
            b"Cookie: " + good + b"; fngate=" + BEYOND,
            b"cookie:a=b;;fngate = " + VALUE + b" ;",
            b'Cookie: a="; ' + good + b'; b="',
        ):
            assert status(await ask(one, b"GET /", OWN, sent + b"\r\n")) == 200
            assert b"fngate" not in app.heads[-1]
        await one.settled()


DENIED = PathRules(deny=("/shutdown", "/admin/*", "DELETE /items*"), free=("/static/*",))
DENIED_PATHS = [
    *("/shutdown", "/shutdown/", "/shutdown//", "/SHUTDOWN", "/ShutDown?x", "/shutdown?"),
    *("/shutdown;x", "/shutdown;", "/%73hutdown", "/%53HUTDOWN", "/shutdown%3bx", "/;x/shutdown"),
    *("/x//../shutdown", "//shutdown", "///shutdown", "//x/shutdown", "//x//shutdown"),
    *("/./shutdown", "/x/../shutdown", "/../shutdown", "/static/../shutdown"),
    *("/static/..;/shutdown", "/static/%2e%2e/shutdown", "/.%2e/shutdown", "/%2e/shutdown"),
    *("/%2fshutdown", "/static/..%2fshutdown", "/%5cshutdown", "/static/..%5cshutdown"),
    *("/shutdown%00", "/shutdown%00.css", "/shutdown%0a", "/shutdown%0d%0a", "/shutdown%3fx"),
    *("/shutdown%23x", "/shutdown%2f", "/%25%37%33hutdown", "/%2573hutdown", "/%"),
    *("/%c0%afshutdown", "/%e0%80%afshutdown", "/%ff", "/shutdown%", "/shutdown%2"),
    *("/%u0073hutdown", "/admin/x", "/admin", "/admin;x/y", "/Admin//x", "/admin/x/.."),
    *("/admin/%2e%2e/x", "/x#/../shutdown", r"/x\..\shutdown", "http://localhost/shutdown", "*"),
    *("shutdown"),
]


@pytest.mark.parametrize(
    ("prefix", "host"), [(b"", OWN), (b"/fn/web", b"Host: localhost\r\n")], ids=["own", "path"]
)
async def test_no_spelling_reaches_a_denied_path(
    tmp_path: Path, is_fast: bool, prefix: bytes, host: bytes
) -> None:
    """By no method and no field that claims one; neither as a WebSocket."""
    app = App()
    async with gate(tmp_path, app, is_fast=is_fast, paths=DENIED) as one:
        for path in map(str.encode, DENIED_PATHS):
            answer = await ask(one, b"GET " + prefix + path, host)
            assert status(answer) in (400, 403, 404), path
        for method in (b"HEAD", b"POST", b"PUT", b"OPTIONS", b"PROPFIND", b"X", b"get", b"TRACE"):
            answer = await ask(one, method + b" " + prefix + b"/shutdown", host)
            assert status(answer) in (400, 403), method
        assert status(await ask(one, b"GET " + prefix + b"/shutdown", host, UPGRADE)) == 403
        for name in (b"X-HTTP-Method-Override", b"x_http_method", b"X-Method-Override"):
            claim = name + b": GET, delete\r\n"
            assert status(await ask(one, b"POST " + prefix + b"/items/1", host, claim)) == 403
        for name in (b"X-Original-URL", b"X-Rewrite-URL", b"X_Rewrite_URL"):
            claim = name + b": /shutdown\r\n"
            assert status(await ask(one, b"GET " + prefix + b"/x", host, claim)) == 200
            assert b"shutdown" not in app.heads.pop()
        assert app.heads == []
        await one.settled()


WAKING = PathRules(wake=("/lab*",), free=("/static/*",))
ASLEEP = [
    *("/", "/LAB", "/x/lab", "/lab/..", "//x/lab", "/lab%2f..", "/%25lab", "/;/x?/lab"),
    *("/static/x", "/favicon.ico", "/robots.txt?x"),
]


async def test_nothing_that_is_refused_wakes(tmp_path: Path, is_fast: bool) -> None:
    """Neither what path rules leave asleep in any spelling, nor what lacks a key, nor the gateway's
    own pages, nor what pages of other sites send."""
    cross = b"Sec-Fetch-Site: cross-site\r\n"
    navigate = b"Sec-Fetch-Mode: navigate\r\n"
    ahead = navigate + b"Sec-Fetch-Site: none\r\nSec-Purpose: prefetch\r\n"
    asks = b"Access-Control-Request-Method: GET\r\n"
    key = b"Fn-Key: " + CALLER.encode() + b"\r\n"
    attempts: list[tuple[bytes, bytes, int]] = [
        *((b"GET " + path.encode(), key, 503) for path in ASLEEP),
        *((b"GET /lab", sent, 401) for sent in (b"", cookie("other"), b"Fn-Key: x\r\n")),
        (b"GET /.fngate/enter", b"", 200),
        (b"GET /.fngate/leave", b"", 200),
        (b"GET /.fngate/lab", key, 404),
        (b"OPTIONS /lab", key + EVIL + asks, 403),
        *((b"GET /lab", key + sent, 403) for sent in (EVIL, EVIL + UPGRADE, cross, ahead)),
        *(
            (b"GET /lab", key + cross + navigate + b"Sec-Fetch-Dest: " + dest + b"\r\n", 403)
            for dest in (b"iframe", b"frame", b"object", b"embed", b"image")
        ),
        (b"POST /lab", key + b"Origin: null\r\n" + cross + navigate, 403),
        (b"GET /lab", key + b"Origin: https://web.localhost:80\r\n" + cross, 403),
    ]
    async with gate(tmp_path, App(), is_fast=is_fast, keys=KEYS, paths=WAKING, is_cold=True) as one:
        for line, fields, expected in attempts:
            assert status(await ask(one, line, OWN, fields)) == expected, (line, fields)
        assert not one.delivery.loads().get(KEY)
        await one.settled()


TICKETS = {
    "no origin": b"",
    "another origin": b"Origin: http://evil.example\r\n",
    "another function": b"Origin: http://digits.localhost:80\r\n",
    "another port": b"Origin: http://web.localhost\r\n",
    "a sandbox": b"Origin: null\r\n",
    "a user": b"Origin: http://web.localhost:80@evil.example\r\n",
    "a path": b"Origin: http://web.localhost:80/\r\n",
    "two origins": b"Origin: http://web.localhost:80\r\nOrigin: http://evil.example\r\n",
    "a same site": b"Origin: http://web.localhost:80\r\nSec-Fetch-Site: same-site\r\n",
    "a typed address": b"Origin: http://web.localhost:80\r\nSec-Fetch-Site: none\r\n",
}


@pytest.mark.parametrize("fields", TICKETS.values(), ids=TICKETS)
async def test_no_other_page_redeems_a_ticket(tmp_path: Path, is_fast: bool, fields: bytes) -> None:
    """Nor guesses one; the ticket stays with its owner."""
    async with gate(tmp_path, App(), is_fast=is_fast, keys=KEYS) as one:
        word = one.tickets.issue(KEY_ID, "web").encode()
        own = b"Origin: http://web.localhost:80\r\n"
        answer = await ask(one, b"POST /.fngate/enter", OWN, fields, body=word)
        assert (status(answer), field(answer, b"set-cookie")) == (403, [])
        for line, guess, expected in (
            (b"POST /.fngate/enter", word[:-1], 401),
            (b"POST /.fngate/enter", word.swapcase(), 401),
            (b"POST /.fngate/enter", b"ticket=" + word, 401),
            (b"POST /.fngate/enter?" + word, b"", 404),
            (b"GET /.fngate/enter?" + word, b"", 404),
            (b"POST /.fngate/enter/", word, 404),
            (b"PUT /.fngate/enter", word, 405),
        ):
            answer = await ask(one, line, OWN, own, body=guess)
            assert (status(answer), field(answer, b"set-cookie")) == (expected, []), line
        assert status(await ask(one, b"POST /.fngate/enter", OWN, own, body=word)) == 200


async def test_a_websocket_ends_with_its_key(tmp_path: Path, is_fast: bool) -> None:
    """Although it outlasts the cookie that stands for the key; a new one is refused."""
    async with gate(tmp_path, App(), is_fast=is_fast, keys=KEYS) as one:
        wire = await one.connect()
        handshake = OWN + cookie() + UPGRADE + b"Origin: http://web.localhost:80\r\n"
        wire.send(b"GET /ws HTTP/1.1\r\n" + handshake + b"\r\n")
        assert (await wire.head()).startswith(b"HTTP/1.1 101 ")
        ring = one.gateway.invoker.access.ring
        key = ring.with_id(KEY_ID)
        assert key is not None
        ring.remove(key)
        assert status(await ask(one, b"GET /ws", handshake)) == 401
        assert await wire.rest() == b"\x88\x15\x03\xf0the key was removed"
        wire.close()
        await one.settled()


async def test_no_key_is_kept_or_passed_on(tmp_path: Path, is_fast: bool) -> None:
    """A key in a query or a cookie is none; the access log has neither keys nor queries."""
    app = App()
    async with gate(tmp_path, app, is_fast=is_fast, keys=KEYS) as one:
        caller, token = CALLER.encode(), TOKEN.encode()
        for secret in (caller, token):
            for line, fields in (
                (b"GET /?key=" + secret, b""),
                (b"GET /?fn-key=" + secret + b"&access_token=" + secret, b""),
                (b"GET /", b"Cookie: Fn-Key=" + secret + b"; fngate=" + secret + b"\r\n"),
                (b"GET /", b"Referer: http://web.localhost/?key=" + secret + b"\r\n"),
                (b"GET /", b"Authorization: Basic " + secret + b"\r\n"),
            ):
                assert status(await ask(one, line, OWN, fields)) == 401
        bearer = b"Authorization: Bearer " + token
        for fields in (b"Fn-Key: " + caller, bearer, b"Fn-Key: " + token):
            assert status(await ask(one, b"GET /?key=mine", OWN, fields + b"\r\n")) == 200
            assert caller not in app.heads[-1]
            assert token not in app.heads[-1]
        await one.settled()
        logged = repr(one.events).encode()
        for secret in (caller, token, b"key=mine", VALUE):
            assert secret not in logged


async def test_a_cookie_is_renewed_by_its_use(tmp_path: Path, is_fast: bool) -> None:
    """In its last hours, beside the cookies of the server, by its own name and in no cache; not by
    a request that names what a cache has."""
    app = App(b"Set-Cookie: a=b", b"Cache-Control: public, max-age=60")
    old = cookie(age_s=LIFETIME_S - RENEWED_S + 1)
    async with gate(tmp_path, app, is_fast=is_fast, keys=KEYS) as one:
        for good, name in (
            (cookie(age_s=LIFETIME_S - RENEWED_S), b""),
            (old, b"fngate="),
            (old.replace(b"fngate=", b"__Host-fngate="), b"__Host-fngate="),
        ):
            answer = await ask(one, b"GET /", OWN, good)
            theirs, *ours = field(answer, b"set-cookie")
            assert theirs == b"a=b"
            assert [given.startswith(name) for given in ours] == ([True] if name else [])
            kept = b"no-store" if name else b"public, max-age=60"
            assert field(answer, b"cache-control") == [kept]
        sent = b"Cookie: " + ours[0].partition(b";")[0] + b"\r\n"
        assert len(field(await ask(one, b"GET /", OWN, sent), b"set-cookie")) == 1
        wire = await one.connect()
        origin = b"Origin: http://web.localhost:80\r\n"
        wire.send(b"GET /ws HTTP/1.1\r\n" + OWN + old + UPGRADE + origin + b"\r\n")
        assert b"\r\nSet-Cookie: fngate=" in await wire.head()
        wire.close()
        for condition in (b'If-None-Match: "x"\r\n', b"If-Modified-Since: x\r\n"):
            answer = await ask(one, b"GET /", OWN, old, condition)
            assert field(answer, b"set-cookie") == [b"a=b"]
        await one.settled()


async def test_leaving_removes_the_cookie(tmp_path: Path, is_fast: bool) -> None:
    """Only for a page of the same host; the server gets nothing of it."""
    app = App()
    async with gate(tmp_path, app, is_fast=is_fast, keys=KEYS) as one:
        page = await ask(one, b"GET /.fngate/leave", OWN)
        assert (status(page), field(page, b"set-cookie")) == (200, [])
        for foreign in (b"", b"Origin: http://evil.example\r\n", b"Origin: null\r\n"):
            answer = await ask(one, b"POST /.fngate/leave", OWN, foreign)
            assert (status(answer), field(answer, b"set-cookie")) == (403, [])
        for scheme, name in ((b"http", b"fngate"), (b"https", b"__Host-fngate")):
            origin = b"Origin: " + scheme + b"://web.localhost:80\r\n"
            (given,) = field(await ask(one, b"POST /.fngate/leave", OWN, origin), b"set-cookie")
            assert given.startswith(name + b"=; Path=/; Max-Age=0;")
        assert app.heads == []
