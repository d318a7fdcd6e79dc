"""Requests as a function's server gets them."""

from __future__ import annotations

import pytest

from gateway.proxy.fields import Field, parse_fields
from gateway.proxy.forwarding import (
    HOPS_MAX,
    SERVER_ADDRESS,
    Forwarding,
    addressed,
    forward_request,
    framing_line,
    kept_cookies,
    outer_prefix,
)
from gateway.proxy.framing import CHUNKED, NO_BODY, UNTIL_CLOSE, BodyKind, Framing
from gateway.proxy.request_head import RequestHead, parse_request_head
from registry.field_classes import (
    CLAIMS,
    CREDENTIALS,
    FILES,
    HOP_BY_HOP,
    MESSAGE,
    METHODS,
    OWN,
    PATHS,
    WRITTEN,
    FieldClass,
)

GIVEN = Forwarding(b"/x?q", b"/fn/web", b"192.0.2.1", b"id-1")
HOST = (b"Host", b"a:8080")
ORIGIN = (
    (b"X-Forwarded-For", b"192.0.2.1"),
    (b"X-Forwarded-Proto", b"http"),
    (b"X-Forwarded-Host", b"a:8080"),
    (b"X-Forwarded-Prefix", b"/fn/web"),
    (b"Forwarded", b'for=192.0.2.1;host="a:8080";proto=http'),
    (b"X-Request-Id", b"id-1"),
)


def parse(*lines: bytes, line: bytes = b"POST /fn/web/x?q HTTP/1.1") -> RequestHead:
    """Parse a head with Host and these lines."""
    return parse_request_head(b"\r\n".join((line, b"Host: a:8080", *lines, b"", b"")))


def forwarded(head: RequestHead, given: Forwarding = GIVEN) -> tuple[Field, ...]:
    """Return the fields that the server gets."""
    raw = forward_request(head, given)
    return parse_fields(raw, raw.index(b"\r\n") + 2, 200).lines


def values(head: RequestHead, given: Forwarding = GIVEN) -> dict[bytes, bytes]:
    """Return the fields that the server gets, by lower-case name."""
    lines = forwarded(head, given)
    found = {name.lower(): value for name, value in lines}
    assert len(found) == len(lines)
    return found


def test_a_plain_request() -> None:
    """The server gets its own target, the client's fields, and where the request came from."""
    head = parse(b"Accept: */*", b"X-A: b")

    assert forward_request(head, GIVEN).startswith(b"POST /x?q HTTP/1.1\r\n")
    assert forwarded(head) == (HOST, (b"Accept", b"*/*"), (b"X-A", b"b"), *ORIGIN)


def test_an_http_1_0_request_is_forwarded_as_http_1_1() -> None:
    """The version is that of this hop (RFC 9110 section 6.2)."""
    raw = forward_request(parse(line=b"GET /fn/web HTTP/1.0"), GIVEN)

    assert raw.startswith(b"GET /x?q HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "line",
    [
        b"Connection: close",
        b"Connection: keep-alive",
        b"Keep-Alive: timeout=5",
        b"Proxy-Connection: keep-alive",
        b"Proxy-Authorization: Basic x",
        b"Proxy-Anything: x",
        b"Proxy_Authorization: x",
        b"TE: deflate",
        b"Upgrade: h2c",
        b"HTTP2-Settings: AAM",
        b"Fn-Key: secret",
        b"Fn_Key: secret",
        b"fn-key: secret",
        b"X-Request-Id: other",
        b"X_Request_Id: other",
        b"Content_Length: 5",
        b"Transfer_Encoding: chunked",
        b"Expect: 100-continue",
        b"Cookie: fngate=x",
    ],
)
def test_what_is_not_forwarded(line: bytes) -> None:
    """Fields of one hop, and those that are meant for the gateway; names that servers of the CGI
    family take for them, too."""
    assert forwarded(parse(line)) == (HOST, *ORIGIN)


def test_fields_that_connection_names_are_not_forwarded() -> None:
    """Connection names fields of one hop; the other fields are."""
    head = parse(b"X-Hop: 1", b"Connection: close, X-HOP", b"x-hop: 2", b"X-Hop-2: 3")

    assert forwarded(head) == (HOST, (b"X-Hop-2", b"3"), *ORIGIN)


def test_fields_of_the_gateway_cannot_be_removed_by_the_client() -> None:
    """Connection removes what the client sent, not what the gateway adds."""
    head = parse(b"Connection: X-Forwarded-For, X-Request-Id, Forwarded")

    assert forwarded(head) == (HOST, *ORIGIN)


@pytest.mark.parametrize(
    "line",
    [
        b"Forwarded: for=x",
        b"X-Forwarded-For: 203.0.113.9",
        b"X-Forwarded-Proto: https",
        b"X-Forwarded-Host: b",
        b"X-Forwarded-Prefix: /b",
        b"X-Forwarded-Port: 1",
        b"X_Forwarded_For: x",
        b"x-forwarded_port: x",
        b"X-Real-IP: x",
        b"X_Real_IP: x",
        b"X-Original-URL: /admin",
        b"X-Rewrite-URL: /admin",
        b"X-Original-Host: x",
        b"X-Client-IP: x",
        b"X-Cluster-Client-IP: x",
        b"True-Client-IP: x",
        b"CF-Connecting-IP: x",
    ],
)
def test_claims_about_the_origin_are_replaced(line: bytes) -> None:
    """A client that is no trusted proxy cannot say where it comes from."""
    assert forwarded(parse(line)) == (HOST, *ORIGIN)


def test_a_trusted_proxy_is_believed() -> None:
    """What it says is continued, but for a path that no path rule has seen."""
    given = GIVEN._replace(is_trusted=True)
    head = parse(
        b"X-Forwarded-For: 203.0.113.9",
        b"X-Forwarded-Proto: https",
        b"X-Forwarded-Host: public",
        b"X-Forwarded-Prefix: /gw/",
        b"X-Forwarded-Port: 443",
        b"X-Real-IP: 203.0.113.9",
        *(b"X-Original-URL: /admin", b"X-Rewrite-URL: /admin", b"X_Original_URL: /admin"),
    )
    got = values(head, given)

    assert got[b"x-forwarded-for"] == b"203.0.113.9, 192.0.2.1"
    assert got[b"x-forwarded-proto"] == b"https"
    assert got[b"x-forwarded-host"] == b"public"
    assert got[b"x-forwarded-prefix"] == b"/gw/fn/web"
    assert got[b"x-forwarded-port"] == b"443"
    assert got[b"x-real-ip"] == b"203.0.113.9"
    assert {b"x-original-url", b"x-rewrite-url", b"x_original_url"} & got.keys() == set()
    assert got[b"forwarded"] == (
        b'for=203.0.113.9;host="public";proto=https, for=192.0.2.1;host="a:8080";proto=http'
    )
    assert forwarded(parse(), given) == (HOST, *ORIGIN)


def test_a_trusted_proxy_that_writes_forwarded_only() -> None:
    """Its value is continued as it is."""
    head = parse(b"Forwarded: for=203.0.113.9;by=_x", b"Forwarded: for=_y")
    got = values(head, GIVEN._replace(is_trusted=True))

    end = b'for=192.0.2.1;host="a:8080";proto=http'
    assert got[b"forwarded"] == b"for=203.0.113.9;by=_x, for=_y, " + end
    assert got[b"x-forwarded-for"] == b"192.0.2.1"


@pytest.mark.parametrize(
    ("chain", "host", "scheme", "expected"),
    [
        (b"203.0.113.9", b"public:443", b"https", b'for=203.0.113.9;host="public:443";proto=https'),
        (b"203.0.113.9:5678", b"p", b"http", b'for=203.0.113.9;host="p";proto=http'),
        (b"a, 2001:db8::1", b"p", b"h", b'for=unknown;host="p";proto=h, for="[2001:db8::1]"'),
        (b" ,[::1],, 10.0.0.1", b"p", b"h", b'for="[::1]";host="p";proto=h, for=10.0.0.1'),
        (b"::ffff:10.0.0.1", b"[::1]:80", b"h", b'for="[::ffff:10.0.0.1]";host="[::1]:80";proto=h'),
        (b'1.2.3.4";host=x', b'p";proto=x', b"h", b"for=unknown;proto=h"),
        (b",", b"p, q", b"https, http", b"for=unknown"),
    ],
)
def test_forwarded_says_what_the_other_fields_of_a_proxy_say(
    chain: bytes, host: bytes, scheme: bytes, expected: bytes
) -> None:
    """A client's Forwarded that a proxy of the X-Forwarded kind has passed on unseen is not
    believed, and no value of another field can add a parameter."""
    head = parse(
        *(b"Forwarded: for=spoofed", b"X-Forwarded-For: " + chain),
        *(b"X-Forwarded-Host: " + host, b"X-Forwarded-Proto: " + scheme),
    )
    got = values(head, GIVEN._replace(is_trusted=True))

    assert got[b"forwarded"] == expected + b', for=192.0.2.1;host="a:8080";proto=http'
    assert got[b"x-forwarded-for"] == chain.strip() + b", 192.0.2.1"


def test_the_hops_in_forwarded_are_limited() -> None:
    """The last ones are those nearest to this server."""
    chain = b", ".join(b"10.0.0.%d" % (hop % 200) for hop in range(HOPS_MAX + 7))
    got = values(parse(b"X-Forwarded-For: " + chain), GIVEN._replace(is_trusted=True))

    nodes = got[b"forwarded"].split(b", ")
    assert len(nodes) == HOPS_MAX + 1
    assert nodes[0].startswith(b"for=10.0.0.7;")


@pytest.mark.parametrize(
    ("outer", "expected"),
    [
        (b"/gw", b"/gw/fn/web"),
        (b"/gw/a/", b"/gw/a/fn/web"),
        *((odd, b"/fn/web") for odd in (b"gw", b"//evil", b"/a b", b"/a, /b", b"/", b"", b"/a?b")),
    ],
)
def test_an_outer_prefix_is_a_path(outer: bytes, expected: bytes) -> None:
    """Anything else is ignored, because servers write the prefix into links."""
    head = parse(b"X-Forwarded-Prefix: " + outer)
    got = values(head, GIVEN._replace(is_trusted=True))

    assert got[b"x-forwarded-prefix"] == expected
    assert outer_prefix(head.fields.values) + b"/fn/web" == expected


@pytest.mark.parametrize(
    ("peer", "scheme", "chain", "element"),
    [
        (b"::1", b"https", b"::1", b'for="[::1]";host="a:8080";proto=https'),
        (b"fe80::1%e0", b"http", b"fe80::1%e0", b'for=unknown;host="a:8080";proto=http'),
        (b"", b"http", b"unknown", b'for=unknown;host="a:8080";proto=http'),
    ],
)
def test_where_a_request_came_from(
    peer: bytes, scheme: bytes, chain: bytes, element: bytes
) -> None:
    """IPv6 addresses are quoted in Forwarded, which has no zones (RFC 7239 section 6); a peer may
    be unknown."""
    got = values(parse(), GIVEN._replace(peer=peer, scheme=scheme))

    assert (got[b"x-forwarded-for"], got[b"x-forwarded-proto"]) == (chain, scheme)
    assert got[b"forwarded"] == element


def test_no_field_with_a_key_of_this_server_is_forwarded() -> None:
    """Of cookies, only those with one are cut. Everything else belongs to the function."""
    head = parse(
        *(b"Authorization: Bearer ours", b"X-Any: a=ours;b", b"Cookie: a=1; b=ours; fngate=x; c=2"),
        *(b"X-Other: Bearer theirs", b"x_a: ours", b"X-Forwarded-Port: ours"),
    )
    given = GIVEN._replace(keys=frozenset({b"ours"}), fields=frozenset({b"x_a"}), is_trusted=True)

    kept = ((b"Cookie", b"a=1; c=2"), (b"X-Other", b"Bearer theirs"))
    assert forwarded(head, given) == (HOST, *kept, *ORIGIN)
    assert forwarded(parse(b"Cookie: b=ours"), given) == (HOST, *ORIGIN)
    assert (b"Authorization", b"Bearer ours") in forwarded(head)


def spellings(name: bytes) -> set[bytes]:
    """Return names that some server of the CGI family takes for this one."""
    return {name.replace(b"-", other) for other in (b"-", b"_", b".", b"~")} | {name.title()}


DROPPED = (HOP_BY_HOP, WRITTEN, OWN, PATHS, FILES)


@pytest.mark.parametrize("one", [*DROPPED, CLAIMS], ids=lambda one: one.title)
def test_a_class_is_dropped_in_every_spelling(one: FieldClass) -> None:
    """A client cannot send a field of these classes; a trusted proxy can make claims."""
    names = one.names | {prefix + b"any" for prefix in one.prefixes}
    for low in sorted(names - {b"content-length", b"transfer-encoding", b"expect"}):
        for name in spellings(low):
            head = parse(name + b": /x")
            own = {line for line in forwarded(head) if line not in (HOST, *ORIGIN)}
            assert not own, name
            got = values(head, GIVEN._replace(is_trusted=True)).get(name.lower(), b"")
            is_believed = one is CLAIMS and b"_" not in name
            assert (got == b"/x") is is_believed or low in WRITTEN.names, name


@pytest.mark.parametrize("one", [CREDENTIALS, METHODS, MESSAGE], ids=lambda one: one.title)
def test_a_class_that_passes(one: FieldClass) -> None:
    """Credentials of the function, methods and what describes the message arrive as they are."""
    for name in one.names - {b"host"} - HOP_BY_HOP.names:
        if name.startswith(CLAIMS.prefixes):
            continue
        assert values(parse(name + b": a=b"))[name] == b"a=b"


def test_settings_let_names_with_an_underscore_pass() -> None:
    """Exactly those; others, also of a trusted proxy, are dropped."""
    given = GIVEN._replace(fields=frozenset({b"x_y"}), is_trusted=True)
    head = parse(b"X_Y: 1", b"x_yz: 2", b"X_Real_IP: 3", b"_: 4")

    assert forwarded(head, given) == (HOST, (b"X_Y", b"1"), *ORIGIN)
    assert forwarded(head) == (HOST, *ORIGIN)


def test_a_trace_is_replaced_only_by_another_one() -> None:
    """Without a trace of the gateway the client's goes on."""
    head = parse(b"traceparent: theirs", b"tracestate: a=b", b"Traceparent_: x")

    assert values(head)[b"traceparent"] == b"theirs"
    got = values(head, GIVEN._replace(traceparent=b"ours"))
    assert (got[b"traceparent"], got[b"tracestate"]) == (b"ours", b"a=b")
    assert values(parse(), GIVEN._replace(traceparent=b"ours"))[b"traceparent"] == b"ours"


@pytest.mark.parametrize(
    ("line", "asks", "expected"),
    [
        (b"Content-Length: 1", True, b"100-continue"),
        (b"Content-Length: 1", False, None),
        (b"Content-Length: 0", True, None),
    ],
)
def test_expect_is_forwarded_if_the_server_is_to_answer_it(
    line: bytes, asks: bool, expected: bytes | None
) -> None:
    """Only if the client waits for it, and the gateway has not answered it."""
    head = parse(line, b"Expect: 100-continue")

    assert values(head, GIVEN._replace(expects_continue=asks)).get(b"expect") == expected
    assert b"expect" not in values(parse(line), GIVEN._replace(expects_continue=asks))


def test_nothing_is_assumed_about_a_request() -> None:
    """Without other facts the peer is not trusted, the key is the function's, and the gateway
    answers Expect."""
    head = parse(b"Content-Length: 1", b"Expect: 100-continue", b"Authorization: x")
    got = values(head, Forwarding(b"/x", b"/fn/web", b"192.0.2.1", b"id-1"))

    assert (got[b"authorization"], got[b"x-forwarded-proto"]) == (b"x", b"http")
    assert {b"expect", b"upgrade", b"traceparent"} & got.keys() == set()


def test_te_trailers() -> None:
    """The server may send trailers; no other coding is forwarded (RFC 9110 section 10.1.4)."""
    got = values(parse(b"TE: deflate, Trailers"))

    assert (got[b"te"], got[b"connection"]) == (b"trailers", b"TE")


def test_a_handshake_is_forwarded_as_one() -> None:
    """Only the protocol websocket is asked for."""
    line = b"GET /fn/web HTTP/1.1"
    head = parse(
        *(b"Upgrade: websocket, h2c", b"Connection: keep-alive, Upgrade, HTTP2-Settings"),
        *(b"HTTP2-Settings: x", b"Sec-WebSocket-Key: k", b"TE: trailers"),
        line=line,
    )
    got = values(head, GIVEN._replace(is_websocket=True))

    assert (got[b"upgrade"], got[b"connection"]) == (b"websocket", b"Upgrade")
    assert got[b"sec-websocket-key"] == b"k"
    assert {b"http2-settings", b"te"} & got.keys() == set()
    assert b"upgrade" not in values(head)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((b"Content-Length: 5",), {b"content-length": b"5"}),
        ((b"Content-Length: 0",), {b"content-length": b"0"}),
        ((b"Transfer-Encoding: Chunked",), {b"transfer-encoding": b"chunked"}),
        ((), {}),
    ],
)
def test_the_body_is_framed_once(lines: tuple[bytes, ...], expected: dict[bytes, bytes]) -> None:
    """The framing is written from what was parsed."""
    got = values(parse(*lines))

    framed = {b"content-length", b"transfer-encoding"} & got.keys()
    assert {name: got[name] for name in framed} == expected


@pytest.mark.parametrize(
    ("framing", "line"),
    [
        (CHUNKED, b"Transfer-Encoding: chunked\r\n"),
        (Framing(BodyKind.LENGTH, 12), b"Content-Length: 12\r\n"),
        (NO_BODY, b""),
        (UNTIL_CLOSE, b""),
    ],
)
def test_another_framing_replaces_the_clients(framing: Framing, line: bytes) -> None:
    """A body that was read by others is framed anew."""
    raw = forward_request(parse(b"Content-Length: 5"), GIVEN._replace(framing=framing))

    assert framing_line(framing) == line
    assert raw.endswith(b"X-Request-Id: id-1\r\n" + line + b"\r\n")
    assert b"Length: 5" not in raw


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"a=1; b=2", b"a=1; b=2"),
        (b"fngate=x", b""),
        (b"a=1; fngate=x; b=2", b"a=1; b=2"),
        (b"fngate=x;a=1", b"a=1"),
        (b"a=1;fngate = x;", b"a=1"),
        (b"fngate", b""),
        (b'a="; fngate=x; "', b'a="; "'),
        (b"fngate2=x; my=fngate=x; FNGATE=x", b"fngate2=x; my=fngate=x; FNGATE=x"),
        (b"fngate=x; fngate=y", b""),
    ],
)
def test_the_gateways_cookie_is_cut(value: bytes, expected: bytes) -> None:
    """Whatever is around it; cookies with similar names stay."""
    assert kept_cookies(value) == expected
    assert values(parse(b"Cookie: " + value)).get(b"cookie", b"") == expected


def test_the_cookie_of_https_is_cut() -> None:
    """It has another name, which only this host can set."""
    got = values(parse(b"Cookie: __Host-fngate=1; own=2; fngate=3"), GIVEN)

    assert got[b"cookie"] == b"own=2"


def test_other_fields_are_as_sent() -> None:
    """Repeated fields, case and unusual names are kept."""
    lines = (b"X-a: 1", b"x-A: 2", b"X.b: 3", b"X-Forward: 4", b"Cf: 5", b"Cookie2: 6", b"Via: 7")
    expected = tuple(tuple(line.split(b": ")) for line in lines)

    assert forwarded(parse(*lines)) == (HOST, *expected, *ORIGIN)


def test_on_the_own_host_there_is_no_prefix() -> None:
    """A server that gets one would write links that lead nowhere."""
    got = values(parse(b"X-Forwarded-Prefix: /mine"), GIVEN._replace(prefix=b""))

    assert b"x-forwarded-prefix" not in got
    assert got[b"x-forwarded-host"]


def test_another_host_than_the_clients() -> None:
    """It takes the place of the client's, which the server still learns."""
    given = GIVEN._replace(host=b"app.example:81")

    assert forwarded(parse(), given) == ((b"Host", b"app.example:81"), *ORIGIN)


@pytest.mark.parametrize(("port", "host"), [(8000, b"127.0.0.1:8000"), (0, b"localhost")])
def test_the_servers_address_as_host(port: int, host: bytes) -> None:
    """It is known once there is a connection."""
    raw = addressed(forward_request(parse(), GIVEN._replace(host=SERVER_ADDRESS)), port)

    assert parse_fields(raw, raw.index(b"\r\n") + 2, 200).lines == ((b"Host", host), *ORIGIN)
