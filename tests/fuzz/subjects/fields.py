"""Readers of single fields: of keys and cookies, of paths, and of what a client prefers."""

from __future__ import annotations

import contextlib
import re
from base64 import b64decode, b64encode
from typing import Any, Final
from urllib.parse import unquote_to_bytes, urlsplit

from gateway.admission.access import Access
from gateway.admission.calls import correlate, requested_priority, requested_wait_s
from gateway.admission.credentials import Realm, read_credential
from gateway.http.compression import requested_coding
from gateway.http.decompression import encoding_of
from gateway.metrics.counters import negotiate_format
from gateway.openapi.descriptions import prefers_page
from gateway.pages.cookies import NAMES, find_values, make_value, read_value
from gateway.pages.entering import check_path
from gateway.pages.origins import Sender, asked_by, asked_for, judge, preflight_fields
from gateway.proxy.answering import Answering, prefix_location, scope_cookie
from gateway.proxy.fields import Malformed, parse_fields
from gateway.proxy.forwarding import Forwarding, forward_request, kept_cookies
from gateway.proxy.own_keys import find_keys
from gateway.proxy.request_head import parse_request_head
from gateway.proxy.targets import claimed_methods, claimed_paths, split_target
from gateway.proxy.trusted import TrustedProxies
from gateway.v1.multipart import form_type
from gateway.v1.scanning import check_query
from registry.errors import FnError
from registry.field_classes import CREDENTIALS, fold
from registry.model.servers import PathRules
from registry.path_rules import CompiledPaths, normalise
from registry.store.keys import KeyRing
from runtime_image.codecs.accept import SHORT, choose
from runtime_image.contract.errors import RequestError
from runtime_image.contract.signature import Signature, TensorSpec
from tests.fuzz.subject import KIB, Bound, Subject

KEY: Final = "fn_" + "k" * 43
TOKEN: Final = "an-admin-token"
RING: Final = KeyRing(token=KEY)
SECRET: Final = bytes(range(32))
NOW_S: Final = 1000.0
COOKIE: Final = make_value(SECRET, "an-id", "web", 2000).encode()
SIGNATURE: Final = Signature("tensors", (), (TensorSpec("y", "FP32", (-1,)),))
ACCESS: Final = Access("127.0.0.1", ["a.example:81", "[::2]"], RING, SECRET, ["https://b.example"])
PROXIES: Final = TrustedProxies(("10.0.0.0/8", "::1"))
WAIT_MAX_S: Final = 60.0
_REFUSALS: Final = (FnError, Malformed)

LINES_OF_FIELDS: Final = (
    b"Host: web.localhost:80\nOrigin: https://b.example\nSec-Fetch-Site: same-site\n"
    b"Sec-Fetch-Mode: navigate\nSec-Fetch-Dest: document",
    b"Accept: application/x-npy;q=0.5;output=y, text/html, */*;q=0.1\nPriority: u=1, i\n"
    b'Prefer: respond-async, wait="10"\nAccept-Encoding: gzip;q=0.5, identity',
    b"Cookie: a=b; fngate=" + COOKIE + b"; __Host-fngate=x\nAuthorization: Bearer " + KEY.encode(),
    b"X-Request-Id: one\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n"
    b'Content-Encoding: gzip\nContent-Type: multipart/form-data; boundary="b"',
    b"Set-Cookie: fngate=a; Path=/; Domain=b; Secure\nLocation: //a/fn/web?x\n"
    b"Access-Control-Request-Method: PUT\nAccess-Control-Request-Headers: a, b",
)


_NEVER: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
"""Characters that no field of a parsed head has."""


class _Headers(dict[str, str]):
    """The values of fields by their lower-case names."""

    def of(self, name: str) -> str | None:
        """Return the value of a field."""
        return self.get(name.lower())


def _headers(data: bytes) -> _Headers:
    found = _Headers()
    for line in data.decode("latin-1").split("\n"):
        name, _, value = line.partition(":")
        found[name.strip().lower()] = _NEVER.sub("", value).strip(" \t")
    return found


def _asked(data: bytes) -> dict[str, Any]:
    """Return what each reader of a field makes of its value; a refusal stands for itself."""
    given = _headers(data)
    value = given.of
    host = value("Host") or ""
    cookies = (value("Cookie") or "").encode("latin-1")
    readers: dict[str, Any] = {
        "wait": lambda: requested_wait_s(value("Prefer"), 5.0, WAIT_MAX_S),
        "priority": lambda: requested_priority(value("Priority"), may_be_high=False),
        "coding": lambda: requested_coding((value("Accept-Encoding") or "",)),
        "encoding": lambda: encoding_of([value("Content-Encoding") or ""]),
        "accept": lambda: choose(value("Accept") or "", SHORT, SIGNATURE),
        "page": lambda: prefers_page(value("Accept") or ""),
        "format": lambda: negotiate_format(value("Accept") or ""),
        "correlation": lambda: correlate(value),
        "boundary": lambda: form_type((value("Content-Type") or "").encode("latin-1")),
        "cookies": lambda: kept_cookies(cookies, frozenset({KEY.encode()})),
        "sent": lambda: find_values(cookies),
        "set-cookie": lambda: scope_cookie(
            (value("Set-Cookie") or "").encode("latin-1"), Answering(b"/fn/web", b"a")
        ),
        "location": lambda: prefix_location(
            (value("Location") or "").encode("latin-1"), Answering(b"/fn/web", b"a", port=81)
        ),
        "host": lambda: ACCESS.hosts.check(host),
        "function": lambda: ACCESS.hosts.function_of(host),
        "page_host": lambda: ACCESS.hosts.page_host("web", host),
        "origin": lambda: ACCESS.check_source(asked_for("POST", value), "/fn/web"),
        "sender": lambda: judge(asked_by("OPTIONS", value), ("https://b.example",), is_linked=True),
        "preflight": lambda: preflight_fields(
            asked_by("OPTIONS", value),
            value("Access-Control-Request-Headers"),
            with_cookies=False,
        ),
        "caller": lambda: ACCESS.identify(read_credential(value, host, given), Realm.ADMIN),
        "peer": lambda: PROXIES.has((value("X-Forwarded-For") or "").encode("latin-1")),
        "path": lambda: check_path(value("Path") or ""),
    }
    found: dict[str, Any] = {}
    for name, read in readers.items():
        try:
            found[name] = read()
        except (FnError, RequestError) as error:
            found[name] = error
    return found


def _check_asked(data: bytes, found: Any) -> None:
    """What is read is one of the things that can be meant, and is safe where it is sent on."""
    given = _headers(data)
    wait_s, applied = found["wait"]
    assert 0 <= wait_s <= WAIT_MAX_S
    assert re.fullmatch(r"(?:wait=[0-9]{1,2})?", applied)
    assert found["coding"] in ("", "gzip", "deflate")
    request_id, traceparent = found["correlation"]
    assert KEY not in request_id
    assert re.fullmatch(r"[A-Za-z0-9._-]{0,128}", request_id)
    assert re.fullmatch(r"(?:[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})?", traceparent)
    _check_cookies(given, found)
    _check_senders(given, found)
    if isinstance(found["path"], str):
        assert found["path"].startswith("/")
        assert found["path"][1:2] not in ("/", "\\"), "a path that names another host"
    for name, value in found["preflight"] if isinstance(found["preflight"], tuple) else ():
        assert not re.search(r"[\r\n\0]", name + value)


def _check_cookies(given: _Headers, found: dict[str, Any]) -> None:
    """The server gets no cookie of the gateway's, and the function sets none; the gateway believes
    its own."""
    names = [pair.partition(b"=")[0].strip() for pair in found["cookies"].split(b";")]
    assert not NAMES & set(names), "the gateway's cookie"
    assert KEY.encode() not in found["cookies"], "a key in a cookie"
    for sent in found["sent"]:
        read = read_value(SECRET, sent.value, "web", NOW_S)
        assert read is None or sent.value == COOKIE, "a forged cookie"
    cookie = found["set-cookie"]
    pair = cookie.partition(b";")[0].lstrip(b"= \t").partition(b"=")[0].strip()
    assert pair not in NAMES, "a function sets the gateway's cookie"
    assert not re.search(rb"(?i);\s*domain\s*=", cookie), "a cookie of other hosts"
    assert b"\r" in (given.of("Location") or "").encode("latin-1") or b"\r" not in found["location"]


def _check_senders(given: _Headers, found: dict[str, Any]) -> None:
    """Who is let in has what lets him in."""
    host = given.of("Host") or ""
    bare = re.sub(r":[0-9]{1,5}$", "", host).lower().strip("[]")
    if found["host"] is None:
        assert bare in ("127.0.0.1", "::1", "localhost", "a.example", "::2"), host
    function = found["function"]
    if isinstance(function, str):
        assert re.fullmatch(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?", function)
        assert bare in (f"{function}.localhost", f"{function}.a.example"), host
    if not isinstance(found["caller"], Exception):
        assert KEY in (given.of("Authorization") or ""), "a caller without a key"
    origin = given.of("Origin")
    if found["sender"] is Sender.LISTED or found["sender"] is Sender.PREFLIGHT:
        assert origin == "https://b.example"
    elif found["sender"] is Sender.OWN and origin is not None:
        assert origin.partition("://")[2].lower() == host.lower()


KEYED: Final = (
    b"Authorization: Basic " + b64encode(f"user:{KEY}".encode()) + b"\r\n",
    b"X-Api-Key: " + KEY.encode() + b"\r\nCookie: a=" + KEY.encode() + b"; b=c\r\nX: fn_\r\n",
    b"X-Token: " + TOKEN.encode() + b"\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n",
)


def _is_key(secret: str) -> bool:
    return secret in (KEY, TOKEN)


def _forwarded(data: bytes) -> bytes:
    """Return the head that a server gets of a request with these fields."""
    head = parse_request_head(b"GET /fn/web/ HTTP/1.1\r\nHost: a\r\n" + data + b"\r\n")
    keys = find_keys(head.fields, _is_key)
    return forward_request(head, Forwarding(b"/", b"/fn/web", b"::1", b"id", keys=keys))


def _check_forwarded(_data: bytes, found: Any) -> None:
    """No field that the server gets has a key of ours, as it is or as a credential in base64."""
    if isinstance(found, Exception):
        return
    fields = parse_fields(found, found.index(b"\r\n") + 2, 200)
    for low, (name, value) in zip(fields.names, fields.lines, strict=True):
        assert KEY.encode() not in value, f"a key in {name!r}"
        if fold(low) not in CREDENTIALS.names:
            continue
        scheme, rest = (*value.split(None, 1), b"", b"")[:2]
        assert rest.strip(b" \t") != TOKEN.encode(), f"a key in {name!r}"
        assert value != TOKEN.encode(), f"a key in {name!r}"
        if scheme.lower() == b"basic":
            for said in _decodings(rest.strip(b" \t")):
                assert KEY.encode() not in said, f"a coded key in {name!r}"
                assert TOKEN.encode() not in said.split(b":", 1), f"a coded key in {name!r}"


def _decodings(text: bytes) -> list[bytes]:
    """Return what decoders of base64 read, Python's and ones as lenient as that of Node."""
    found = []
    for one in {text, text.split(b"=")[0], text.split(None, 1)[0] if text.split() else b""}:
        with contextlib.suppress(ValueError):
            found.append(b64decode(one + b"=="))
        plain = re.sub(rb"[^A-Za-z0-9+/]", b"", one.replace(b"-", b"+").replace(b"_", b"/"))
        found.append(b64decode(plain[: len(plain) - (len(plain) % 4 == 1)] + b"=="))
    return found


DENIED: Final = CompiledPaths(PathRules(deny=("/admin", "/admin/*", "POST /b/*.x")))
FREE: Final = CompiledPaths(PathRules(free=("/static/*",), wake=("/api/*",)), "/ready?x")
TARGETS: Final = (
    b"/fn/web@2/static/a%20b?q=1",
    b"/fn/web/%61dmin/../x;y=1/",
    b"/fn/web/a//b/./c",
    b"/fn/web?model=a&b=c",
    b"/fn/web/a\nhttp://h/fn/web/b?c",
)


def _path(data: bytes) -> Any:
    """Return what is decided by a request's target: the split, what is free, what is denied."""
    head = parse_request_head(
        b"GET "
        + data.partition(b"\n")[0]
        + b" HTTP/1.1\r\nHost: a\r\nDestination: "
        + data.partition(b"\n")[2]
        + b"\r\nX-HTTP-Method-Override: PUT\r\n\r\n"
    )
    target = split_target(head.target)
    path = head.target.partition(b"?")[0] if target is None else target.path or b"/"
    methods = claimed_methods(head.fields)
    claimed = claimed_paths(head.fields, b"" if target is None else target.prefix)
    with contextlib.suppress(FnError):
        check_query(b"" if target is None else target.query or b"")
    free = [FREE.judge(b"GET", one) for one in (path, *claimed)]
    try:
        denied: Any = [DENIED.judge(b"POST", one, methods) for one in (path, *claimed)]
    except FnError as error:
        denied = error
    return head, target, path, claimed, free, denied


def _readings(path: bytes) -> set[bytes]:
    """Return what servers of several kinds take a path for."""
    found = {path}
    for _ in range(3):
        found |= {unquote_to_bytes(one) for one in found}
        found |= {re.sub(rb";[^/]*", b"", one) for one in found}
        found |= {re.sub(rb"/[/\\]+", b"/", one.replace(b"\\", b"/")) for one in found}
        found |= {re.sub(rb"\A/[/\\]+[^/\\]*", b"", one) or b"/" for one in found}
        found |= {re.sub(rb"/\.(?=/|\Z)", b"", one) for one in found}
        found |= {re.sub(rb"/[^/]+/\.\.(?=/|\Z)", b"", one, count=1) for one in found}
        found |= {re.split(rb"[?#\0]", one, maxsplit=1)[0] for one in found}
    return found


def _by_urllib(url: bytes) -> bytes:
    """Return the path that Python's parser reads in a URL."""
    try:
        return urlsplit(url.decode("latin-1")).path.encode("latin-1")
    except ValueError:
        return b""


def _check_path(_data: bytes, found: Any) -> None:
    """A target is split into its parts; no reading of a path that passes is denied, and what takes
    no slot is free in each reading."""
    if isinstance(found, Exception):
        return
    head, target, path, claimed, free, denied = found
    if target is not None:
        query = b"" if target.query is None else b"?" + target.query
        assert target.prefix + target.path + query == head.target, "another target"
    for one, treatment in zip((path, *claimed), free, strict=True):
        plain = normalise(one)
        assert plain.startswith(b"/")
        assert not {b".", b".."} & set(plain.split(b"/")), "a dot segment is left"
        if treatment.is_free:
            for reading in _readings(one) if len(one) < 200 else ():
                assert normalise(reading, cuts_parameters=False).startswith(b"/static/"), reading
    if isinstance(denied, Exception) or len(path) > 200:
        return
    destination = head.fields.get(b"destination")
    second = _by_urllib(destination) if len(destination) < 200 else b""
    for reading in _readings(path) | _readings(second):
        low = reading.lower().rstrip(b"/")
        assert low != b"/admin", f"denied is read: {reading!r}"
        assert not low.startswith(b"/admin/"), f"denied is read: {reading!r}"
        is_b = low.startswith(b"/b/") and low.endswith(b".x")
        assert not is_b, f"denied is read: {reading!r}"


FIELDS = (
    Subject("asked", _asked, LINES_OF_FIELDS, 32 * KIB, check=_check_asked, lines=Bound(4000, 30)),
    Subject("keys", _forwarded, KEYED, 32 * KIB, _REFUSALS, check=_check_forwarded),
    Subject("path", _path, TARGETS, 32 * KIB, _REFUSALS, check=_check_path, lines=Bound(4000, 40)),
)
