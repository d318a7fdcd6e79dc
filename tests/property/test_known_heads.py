"""Known heads: what was decided about one head holds for every head that is cut to the same key."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.http.known_heads import HEAD_MAX
from gateway.proxy import request_head
from registry.model.functions import ExchangeLimits, Limits
from registry.model.servers import PathRules
from tests.support.alike_heads import treated_alike
from tests.support.doses import amount
from tests.support.proxied import server_function

DEPLOYED = server_function(ExchangeLimits(), PathRules(), Limits(), "")
ID = b"an-id"
LENGTHS = (
    *(b"5", b"17", b"999999999") * 5,
    b"9999999999",
    b"0",
    b"05",
    b"5 ",
    b"",
    b"+5",
    b"5, 5",
    b"5;",
)
NAMES = (b"Content-Length: ", b"content-length:", b"CONTENT-LENGTH: ", b"Content-Length:  ")
QUERIES = (
    *(b"", b"?", b"?q=1") * 4,
    b"?a=?&b=/fn/x%20",
    b"?a b",
    b"?\\",
    b"?#",
    b"?q HTTP/1.1",
    b"?\x80",
)
lengths = st.builds(lambda name, value: name + value, *map(st.sampled_from, (NAMES, LENGTHS)))
TRACE = b"00-" + b"a1" * 16 + b"-" + b"b2" * 8 + b"-01"
CORRELATING = (
    *(b"X-Request-Id: one", b"x-request-id:two", b"X-Request-Id: no id", b"X-Request-Id: "),
    b"X-Request-Id: fn_" + b"k" * 43,
    *(b"traceparent: " + TRACE, b"Traceparent: " + TRACE.replace(b"a1", b"c3")),
    *(b"traceparent: " + TRACE.upper(), b"traceparent: " + TRACE.replace(b"a1", b"00")),
    *(b"X-Forwarded-For: 1.2.3.4, ::2", b"X-Forwarded-Prefix: /a", b"X-Forwarded-Host: b"),
    *(b"traceparent: 01-x", b"traceparent:  " + TRACE, b"X_Request_Id: a", b"tracestate: a=b"),
)
good_ids = st.tuples(st.sampled_from(CORRELATING[:2]), st.sampled_from(CORRELATING[4:6])).flatmap(
    lambda pair: st.sampled_from(((), pair[:1], pair[1:], pair))
)
lines = st.one_of(
    lengths,
    st.sampled_from(CORRELATING),
    st.sampled_from(
        (
            *(b"Transfer-Encoding: chunked", b"Expect: 100-continue", b"X: a?b", b"X-Up: /fn/a?b"),
            *(b"Connection: close", b"Connection: content-length", b"X:\r\nContent-Length: 3"),
        )
    ),
)


@st.composite
def alike(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Return two heads that differ in their queries and in the lines of one place."""
    method = draw(st.sampled_from((b"GET", b"POST", b"M-SEARCH")))
    path = draw(st.sampled_from((b"/fn/web", b"/fn/web/", b"/fn/web@1/a%2fb", b"/fn/web/a?b")))
    minor = draw(st.sampled_from((b"0", b"1")))
    before, after = (draw(st.one_of(st.just([]), st.lists(lines, max_size=2))) for _ in range(2))
    name = draw(st.sampled_from(NAMES))

    def head() -> bytes:
        target = path + draw(st.sampled_from(QUERIES))
        own = [name + draw(st.sampled_from(LENGTHS))] if draw(st.integers(0, 3)) else []
        ids = draw(st.one_of(good_ids, st.lists(st.sampled_from(CORRELATING), max_size=2)))
        fields = [b"Host: a", *before, *own, *after, *ids, b"", b""]
        return b"\r\n".join((b"%b %b HTTP/1.%b" % (method, target, minor), *fields))

    return head(), head()


@given(heads=alike(), is_trusted=st.booleans())
@settings(max_examples=amount(500, 20_000), deadline=None)
def test_heads_with_one_key_are_treated_alike(heads: tuple[bytes, bytes], is_trusted: bool) -> None:
    """Both are valid or none is. What is known from one gives for the other exactly the head that
    the server gets otherwise, and the same framing of the body."""
    treated_alike(*heads, is_trusted=is_trusted)


def test_a_cut_head_is_much_shorter_than_a_request_may_be() -> None:
    """The limits of a request's head need not be checked again."""
    assert request_head.HEAD_MAX > HEAD_MAX
