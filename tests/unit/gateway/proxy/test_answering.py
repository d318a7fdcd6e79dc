"""Answers as the client gets them."""

from __future__ import annotations

import pytest

from gateway.proxy.answering import (
    SANDBOX,
    Answering,
    ClientAnswer,
    forward_answer,
    forward_interim,
    prefix_location,
    scope_cookie,
)
from gateway.proxy.fields import Field
from gateway.proxy.response_head import ResponseHead, parse_response_head
from registry.field_classes import ANSWER_CLASSES, SHARED_ORIGIN, FieldClass

GIVEN = Answering(b"/fn/web", b"a:8080")
CSP = (b"Content-Security-Policy", SANDBOX)
KEPT = (b"Connection", b"keep-alive")
CLOSED = (b"Connection", b"close")
EMPTY = (b"Content-Length", b"0")


def parse(*lines: bytes, line: bytes = b"HTTP/1.1 200 OK", method: bytes = b"GET") -> ResponseHead:
    """Parse a head with these lines."""
    return parse_response_head(b"\r\n".join((line, *lines, b"", b"")), method)


def fields_of(answer: ClientAnswer) -> tuple[Field, ...]:
    """Return the fields of an answer for a client."""
    return parse_response_head(answer.head, b"GET").fields.lines


def answered(*lines: bytes, given: Answering = GIVEN) -> tuple[Field, ...]:
    """Return the fields that the client gets of an answer without content, less the usual ones."""
    got = fields_of(forward_answer(parse(b"Content-Length: 0", *lines), given))
    assert got[-3:] == (CSP, EMPTY, KEPT)
    return got[:-3]


def test_a_plain_answer() -> None:
    """Status, reason and fields are the server's; the connection is the client's."""
    head = parse(b"Content-Length: 5", b"X-A: b", b"Server: s", line=b"HTTP/1.0 299 a  b")
    answer = forward_answer(head, GIVEN)

    assert answer.head.startswith(b"HTTP/1.1 299 a  b\r\n")
    assert fields_of(answer) == (
        *((b"X-A", b"b"), (b"Server", b"s"), CSP, (b"Content-Length", b"5"), KEPT),
    )
    assert (answer.keep_alive, answer.is_dechunked) == (True, False)


def test_the_usual_answer_is_the_default() -> None:
    """Without other facts the client speaks HTTP/1.1, and its connection stays open."""
    answer = forward_answer(parse(b"Transfer-Encoding: chunked"), Answering(b"/fn/web", b"a"))

    assert (answer.keep_alive, answer.is_dechunked) == (True, False)
    assert ClientAnswer(b"", keep_alive=True).is_dechunked is False


def test_an_empty_reason() -> None:
    """The space after the status stays (RFC 9112 section 4)."""
    head = parse(b"Content-Length: 0", line=b"HTTP/1.1 200")

    assert forward_answer(head, GIVEN).head.startswith(b"HTTP/1.1 200 \r\n")


@pytest.mark.parametrize(
    "line",
    [
        b"Connection: close",
        b"Keep-Alive: timeout=5",
        b"Proxy-Authenticate: Basic",
        b"Proxy-Anything: x",
        b"Upgrade: h2c",
        b"TE: trailers",
        b"Service-Worker-Allowed: /",
        b'Clear-Site-Data: "*"',
        b"Alt-Svc: h3",
        b"Strict-Transport-Security: max-age=1",
        b"NEL: {}",
        b"Report-To: {}",
        b"Fn-Revision: other@1",
        b"fn-anything: x",
        b"Fn-Traceback: x",
        b"Set-Cookie: fngate=mine",
    ],
)
def test_what_is_not_forwarded(line: bytes) -> None:
    """Fields of one hop, of the gateway, and those that reach beyond the function."""
    assert answered(line, b"X-A: b") == ((b"X-A", b"b"),)


@pytest.mark.parametrize("one", ANSWER_CLASSES, ids=lambda one: one.title)
def test_a_class_of_answers_is_dropped(one: FieldClass) -> None:
    """In answers, and in the interim ones before them. What holds for a whole origin passes where
    that is the function's own."""
    dropped = one.names | {prefix + b"any" for prefix in one.prefixes}
    lines = [b"%b: x" % name for name in sorted(dropped - {b"transfer-encoding", b"connection"})]
    own_host = GIVEN._replace(prefix=b"")
    interim = forward_interim(parse(*lines, b"X-A: b", line=b"HTTP/1.1 103 E"))

    assert answered(*lines, b"X-A: b") == ((b"X-A", b"b"),)
    assert interim == b"HTTP/1.1 103 E\r\nX-A: b\r\n\r\n"
    on_own_host = fields_of(forward_answer(parse(b"Content-Length: 0", *lines), own_host))
    assert len(on_own_host) == 3 + (len(lines) if one is SHARED_ORIGIN else 0)


def test_a_server_may_ask_a_proxy_not_to_collect_its_answer() -> None:
    """It does not say what the proxy answers with."""
    line = b"X-Accel-Buffering: no"
    interim = forward_interim(parse(line, line=b"HTTP/1.1 103 E"))

    assert answered(line) == ((b"X-Accel-Buffering", b"no"),)
    assert interim == b"HTTP/1.1 103 E\r\n%b\r\n\r\n" % line


def test_fields_that_connection_names_are_not_forwarded() -> None:
    """Connection names fields of one hop."""
    assert answered(b"X-Hop: 1", b"X-A: b", b"Connection: X-HOP") == ((b"X-A", b"b"),)


def test_fields_of_the_gateway() -> None:
    """They replace the server's, apart from those that may stand beside them."""
    added = ((b"Fn-Revision", b"web@3"), (b"X-Request-Id", b"ours"), (b"Server-Timing", b"b"))
    got = answered(
        *(b"x-request-id: theirs", b"Server-Timing: a", b"Content-Security-Policy: default-src x"),
        given=GIVEN._replace(added=added),
    )

    assert got == (
        (b"Server-Timing", b"a"),
        (b"Content-Security-Policy", b"default-src x"),
        *added,
    )
    assert answered(b"X-Request-Id: theirs") == ((b"X-Request-Id", b"theirs"),)


@pytest.mark.parametrize(
    ("line", "framed", "minor", "keeps", "is_dechunked"),
    [
        (b"Content-Length: 5", (b"Content-Length", b"5"), 1, True, False),
        (b"Content-Length: 5", (b"Content-Length", b"5"), 0, True, False),
        (b"Transfer-Encoding: chunked", (b"Transfer-Encoding", b"chunked"), 1, True, False),
        (b"Transfer-Encoding: chunked", None, 0, False, True),
        (b"X-A: b", None, 1, False, False),
        (b"X-A: b", None, 0, False, False),
    ],
)
def test_the_end_of_the_body(
    line: bytes, framed: Field | None, minor: int, keeps: bool, is_dechunked: bool
) -> None:
    """The body is framed as the server framed it; HTTP/1.0 clients get chunks as plain content.

    Where nothing else ends the body, the connection does.
    """
    for asked in (True, False):
        answer = forward_answer(parse(line), GIVEN._replace(minor=minor, keep_alive=asked))
        got = fields_of(answer)
        assert (answer.keep_alive, answer.is_dechunked) == (keeps and asked, is_dechunked)
        assert got[-1] == (KEPT if keeps and asked else CLOSED)
        assert [
            field for field in got if field[0] in (b"Content-Length", b"Transfer-Encoding")
        ] == ([framed] if framed else [])


@pytest.mark.parametrize(
    ("method", "status", "expected"),
    [
        (b"HEAD", 200, b"5"),
        (b"GET", 304, b"5"),
        (b"GET", 204, None),
        (b"HEAD", 204, None),
        (b"GET", 200, b"5"),
    ],
)
def test_lengths_of_answers_without_a_body(
    method: bytes, status: int, expected: bytes | None
) -> None:
    """HEAD and 304 tell the length that another answer would have; 204 has none."""
    head = parse(b"Content-Length: 5", line=b"HTTP/1.1 %d X" % status, method=method)
    got = dict(fields_of(forward_answer(head, GIVEN)))

    assert got.get(b"Content-Length") == expected


@pytest.mark.parametrize("status", [200, 304])
def test_codings_of_answers_without_a_body(status: int) -> None:
    """No chunks are promised where none follow; the client's connection is kept."""
    head = parse(b"Transfer-Encoding: chunked", line=b"HTTP/1.1 %d X" % status, method=b"HEAD")
    answer = forward_answer(head, GIVEN)

    assert fields_of(answer) == (CSP, KEPT)
    assert answer.keep_alive is True


def test_a_switch_of_protocols() -> None:
    """101 names the only protocol that can follow."""
    head = parse(
        *(b"Upgrade: WebSocket", b"Connection: Upgrade", b"Sec-WebSocket-Accept: x"),
        line=b"HTTP/1.1 101 Switching Protocols",
    )

    assert fields_of(forward_answer(head, GIVEN)) == (
        *((b"Sec-WebSocket-Accept", b"x"), CSP),
        *((b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")),
    )


def test_interim_answers() -> None:
    """They have no field of one hop, no cookie and no length."""
    head = parse(
        *(b"Link: </a>", b"Set-Cookie: a=b", b"Content-Length: 5", b"X-Hop: 1", b"Fn-A: x"),
        *(b"Connection: x-hop", b"Alt-Svc: h3"),
        line=b"HTTP/1.1 103 Early Hints",
    )

    assert forward_interim(head) == b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    assert forward_interim(parse(line=b"HTTP/1.1 100 Continue")) == b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"/", b"/fn/web/"),
        (b"/x?a=/b#c", b"/fn/web/x?a=/b#c"),
        (b"/fn/web", b"/fn/web"),
        (b"/fn/web/x", b"/fn/web/x"),
        (b"/fn/web?x", b"/fn/web?x"),
        (b"/fn/web#x", b"/fn/web#x"),
        (b"/fn/web2", b"/fn/web/fn/web2"),
        (b"/fn/we", b"/fn/web/fn/we"),
        (b"/fn/other/", b"/fn/web/fn/other/"),
        (b"/\\evil.example", b"/fn/web/\\evil.example"),
        (b"http://a:8080/x", b"http://a:8080/fn/web/x"),
        (b"HTTPS://A:8080/x", b"HTTPS://A:8080/fn/web/x"),
        (b"//a:8080/x", b"//a:8080/fn/web/x"),
        (b"http://a:8080", b"http://a:8080/fn/web/"),
        (b"http://a:8080?x", b"http://a:8080/fn/web/?x"),
        (b"http://a:8080/fn/web/x", b"http://a:8080/fn/web/x"),
        (b"http://a/x", b"http://a/x"),
        (b"http://user@a:8080/x", b"http://user@a:8080/x"),
        (b"//evil.example/x", b"//evil.example/x"),
        (b"https://login.example/?next=/x", b"https://login.example/?next=/x"),
        (b"ftp://a:8080/x", b"ftp://a:8080/x"),
        (b"mailto:x", b"mailto:x"),
        (b"x/y", b"x/y"),
        (b"../x", b"../x"),
        (b"?x", b"?x"),
        (b"", b""),
    ],
)
def test_locations_get_the_prefix_once(value: bytes, expected: bytes) -> None:
    """Paths of the function's server are below /fn/NAME for clients."""
    assert prefix_location(value, GIVEN) == expected
    assert answered(b"Location: " + value) == ((b"Location", expected),)
    assert answered(b"content-location: " + value) == ((b"content-location", expected),)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"x", b"/fn/web/x"),
        (b"?x", b"/fn/web/?x"),
        (b"", b"/fn/web/"),
        (b"./x:y", b"/fn/web/./x:y"),
        (b"mailto:x", b"mailto:x"),
        (b"/x", b"/fn/web/x"),
    ],
)
def test_relative_locations_of_a_bare_name(value: bytes, expected: bytes) -> None:
    """The client would resolve them against /fn/, the server means its `/`."""
    assert prefix_location(value, GIVEN._replace(is_bare=True)) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"/x", b"/@gw/fn/web/x"),
        (b"/", b"/@gw/fn/web/"),
        (b"/@gw/fn/web/x", b"/@gw/fn/web/x"),
        (b"/fn/web/x", b"/@gw/fn/web/x"),
        (b"/@gw/x", b"/@gw/fn/web/@gw/x"),
        (b"http://a:8080/x", b"http://a:8080/@gw/fn/web/x"),
        (b"https://Public.example/x", b"https://Public.example/@gw/fn/web/x"),
        (b"https://public.example/@gw/fn/web?x", b"https://public.example/@gw/fn/web?x"),
        (b"https://other.example/x", b"https://other.example/x"),
        (b"http:///x", b"http:///x"),
    ],
)
def test_locations_get_the_prefix_of_a_trusted_proxy(value: bytes, expected: bytes) -> None:
    """Its clients reach the function below the proxy's own path, and on the proxy's host."""
    given = GIVEN._replace(outer=b"/@gw", public_host=b"public.example")

    assert prefix_location(value, given) == expected


def test_the_prefix_of_a_trusted_proxy_in_other_places() -> None:
    """Paths of cookies, and what is relative to the name alone."""
    given = GIVEN._replace(outer=b"/gw")

    for value, path in ((b"/", b"/gw/fn/web"), (b"/x", b"/gw/fn/web/x"), (b"/fn/web/x", None)):
        expected = b"a=b; Path=" + (path or b"/gw/fn/web/x")
        assert scope_cookie(b"a=b; Path=" + value, given) == expected
    bare = given._replace(is_bare=True)
    assert scope_cookie(b"a=b", bare) == b"a=b; Path=/gw/fn/web"
    assert prefix_location(b"x", bare) == b"/gw/fn/web/x"
    revision = given._replace(prefix=b"/fn/web@3")
    assert prefix_location(b"/fn/web/x", revision) == b"/gw/fn/web/x"
    assert prefix_location(b"/gw/fn/web/x", revision) == b"/gw/fn/web/x"
    assert prefix_location(b"/x", revision) == b"/gw/fn/web@3/x"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"http://127.0.0.1:8000/x?y#z", b"/fn/web/x?y#z"),
        (b"HTTP://LocalHost:8000/x", b"/fn/web/x"),
        (b"//localhost:8000/x", b"/fn/web/x"),
        (b"http://localhost:8000", b"/fn/web/"),
        (b"http://localhost:8000?x", b"/fn/web/?x"),
        (b"http://localhost:8000/fn/web/x", b"/fn/web/x"),
        (b"http://localhost:8000//evil.example/x", b"/fn/web//evil.example/x"),
        (b"http://Web.example:8000/x", b"/fn/web/x"),
        (b"http://web.example:8080/x", b"http://web.example:8080/fn/web/x"),
        (b"https://localhost:8000/x", b"https://localhost:8000/x"),
        (b"http://localhost:8001/x", b"http://localhost:8001/x"),
        (b"http://localhost/x", b"http://localhost/x"),
        (b"http://localhost:08000/x", b"http://localhost:08000/x"),
        (b"http://a@localhost:8000/x", b"http://a@localhost:8000/x"),
        (b"http://10.0.0.1:8000/x", b"http://10.0.0.1:8000/x"),
        (b"http://web.example:8000.evil.example/x", b"http://web.example:8000.evil.example/x"),
    ],
)
def test_locations_on_the_servers_own_address(value: bytes, expected: bytes) -> None:
    """Clients cannot connect to the port of a server in a namespace of its own."""
    given = GIVEN._replace(host=b"web.example:8080", port=8000)

    assert prefix_location(value, given) == expected


@pytest.mark.parametrize(
    ("told", "port", "value", "expected"),
    [
        (b"App.example", 8000, b"http://app.example/x", b"/fn/web/x"),
        (b"App.example", 8000, b"https://app.example/x", b"/fn/web/x"),
        (b"App.example", 8000, b"//app.example/x", b"/fn/web/x"),
        (b"App.example", 8000, b"http://app.example:8000/x", b"/fn/web/x"),
        (b"App.example:81", 8000, b"http://app.example:81/x", b"/fn/web/x"),
        (b"App.example:81", 8000, b"http://app.example/x", b"http://app.example/x"),
        (b"App.example", 8000, b"http://web.example:8080/x", b"http://web.example:8080/fn/web/x"),
        (b"127.0.0.1:8000", 8000, b"https://127.0.0.1:8000/x", b"/fn/web/x"),
        (b"localhost", 0, b"http://localhost/x", b"/fn/web/x"),
        (b"localhost", 0, b"///x", b"///x"),
    ],
)
def test_locations_on_the_host_that_the_server_got(
    told: bytes, port: int, value: bytes, expected: bytes
) -> None:
    """A host that stands for the client's is one that clients cannot reach."""
    given = GIVEN._replace(host=b"web.example:8080", port=port, server_host=told)

    assert prefix_location(value, given) == expected


def test_locations_on_the_default_port() -> None:
    """Without a number the port is 80; without a port the server has no address."""
    given = GIVEN._replace(host=b"[::1]:8080", port=80)

    for authority in (b"localhost", b"localhost:80", b"[::1]", b"[::1]:80"):
        value = b"http://%b/x" % authority
        assert prefix_location(value, given) == b"/fn/web/x"
        assert prefix_location(value, given._replace(port=0)) == value


@pytest.mark.parametrize("prefix", [b"/fn/web@3", b"/fn/web%403"])
def test_the_prefix_of_a_revision(prefix: bytes) -> None:
    """A server that has /fn/NAME in its settings is not prefixed twice."""
    given = GIVEN._replace(prefix=prefix)

    assert prefix_location(b"/x", given) == prefix + b"/x"
    assert prefix_location(prefix + b"/x", given) == prefix + b"/x"
    assert prefix_location(b"/fn/web/x", given) == b"/fn/web/x"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"a=b", b"a=b"),
        (b"a=b; Path=/", b"a=b; Path=/fn/web"),
        (b"a=b; path = /x", b"a=b; Path=/fn/web/x"),
        (b"a=b;Path=/fn/web;HttpOnly", b"a=b; Path=/fn/web; HttpOnly"),
        (b"a=b; Path=/fn/web/x", b"a=b; Path=/fn/web/x"),
        (b"a=b; Path=/fn/webs", b"a=b; Path=/fn/web/fn/webs"),
        (b"a=b; Path=/x; Path=/", b"a=b; Path=/fn/web/x; Path=/fn/web"),
        (b"a=b; Path=x", b"a=b"),
        (b"a=b; Path", b"a=b"),
        (b"a=b; Domain=example.com; Secure", b"a=b; Secure"),
        (b"a=b; DOMAIN =.example.com", b"a=b"),
        (b"a=b; Max-Age=5; SameSite=Lax", b"a=b; Max-Age=5; SameSite=Lax"),
        (b"a", b"a"),
        (b"a=b=c ; Secure", b"a=b=c; Secure"),
        (b"domain=x; Path=/", b"domain=x; Path=/fn/web"),
        (b"fngate2=x", b"fngate2=x"),
        (b"fngate=x; Path=/", b""),
        (b" fngate =x", b""),
        (b"=fngate=x", b""),
        (b"= = fngate", b""),
        (b"fngate", b""),
    ],
)
def test_cookies_stay_with_the_function(value: bytes, expected: bytes) -> None:
    """No domain, and a path below the function's; the gateway's own cookie cannot be set."""
    assert scope_cookie(value, GIVEN) == expected
    assert answered(b"Set-Cookie: " + value) == (((b"Set-Cookie", expected),) if expected else ())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"a=b", b"a=b; Path=/fn/web"),
        (b"a=b; Path=x", b"a=b; Path=/fn/web"),
        (b"a=b; Path=/", b"a=b; Path=/fn/web"),
    ],
)
def test_cookies_of_a_bare_name(value: bytes, expected: bytes) -> None:
    """Clients would derive the path /fn, which all functions share."""
    assert scope_cookie(value, GIVEN._replace(is_bare=True)) == expected


def test_the_cookie_of_https_is_cut() -> None:
    """A function cannot set the gateway's cookie under its second name."""
    assert scope_cookie(b"__Host-fngate=x; Path=/; Secure", GIVEN) == b""


OWN_HOST = GIVEN._replace(prefix=b"")


@pytest.mark.parametrize(
    ("lines", "is_added"),
    [
        ((), True),
        ((b"Content-Security-Policy: default-src 'self'",), True),
        ((b"Content-Security-Policy: frame-ancestors https://a.example",), False),
        ((b"content-security-policy: default-src 'self';FRAME-Ancestors *",), False),
        (
            (
                b"Content-Security-Policy: default-src 'self'",
                b"Content-Security-Policy: frame-ancestors 'none'",
            ),
            False,
        ),
        ((b"Content-Security-Policy: frame-ancestorsx 'none'",), True),
        ((b"Content-Security-Policy: report-uri /frame-ancestors",), True),
        ((b"X-Frame-Options: DENY",), False),
        ((b"X-Frame-Options: sameorigin",), False),
        ((b"X-Frame-Options: DENY", b"X-Frame-Options: DENY"), False),
        ((b"X-Frame-Options: ALLOWALL",), True),
        ((b"X-Frame-Options:",), True),
    ],
)
def test_pages_on_their_own_host_are_not_framed(lines: tuple[bytes, ...], is_added: bool) -> None:
    """Unless their server says who may; X-Frame-Options would be ignored beside the policy."""
    got = fields_of(forward_answer(parse(*lines), OWN_HOST))

    assert ((b"Content-Security-Policy", b"frame-ancestors 'self'") in got) is is_added
    assert CSP not in got


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"a=b; Domain=localhost; Path=/x; Secure", b"a=b; Path=/x; Secure"),
        (b"a=b; domain = .gpu.example", b"a=b"),
        (b"a=b; Path=x", b"a=b"),
        (b"a=b; Path=/", b"a=b; Path=/"),
        (b"fngate=x", b""),
    ],
)
def test_cookies_on_the_own_host(value: bytes, expected: bytes) -> None:
    """They stay on this host, at the path that the server gave."""
    assert scope_cookie(value, OWN_HOST) == expected


@pytest.mark.parametrize("value", [b"/lab", b"http://a:8080/lab", b"lab", b"?q", b""])
def test_links_on_the_own_host_stay(value: bytes) -> None:
    """There is no prefix."""
    assert prefix_location(value, OWN_HOST) == value


def test_links_on_the_own_host_to_the_servers_address() -> None:
    """They become paths; behind a trusted proxy with a path, that comes first."""
    given = OWN_HOST._replace(port=1234)

    assert prefix_location(b"http://127.0.0.1:1234/lab", given) == b"/lab"
    assert prefix_location(b"/lab", given._replace(outer=b"/outer")) == b"/outer/lab"
    assert scope_cookie(b"a=b; Path=/", given._replace(outer=b"/outer")) == b"a=b; Path=/outer"


def test_the_gateways_permission_replaces_the_servers() -> None:
    """One origin is allowed, never two; what may be read stays the server's word."""
    added = ((b"Access-Control-Allow-Origin", b"https://a.example"), (b"Vary", b"Origin"))
    given = GIVEN._replace(added=added)

    assert answered(
        b"Access-Control-Allow-Origin: *",
        b"access-control-allow-credentials: true",
        b"Access-Control-Expose-Headers: X-A",
        b"Vary: Accept",
        given=given,
    ) == ((b"Access-Control-Expose-Headers", b"X-A"), (b"Vary", b"Accept"), *added)
