"""Heads of requests: what is accepted, and what is refused."""

from __future__ import annotations

from gateway.proxy.request_head import parse_request_head


def test_a_plain_head() -> None:
    """Method, target and fields are as sent; without a length there is no body."""
    head = parse_request_head(b"GET /fn/web/x?q HTTP/1.1\r\nHost: a\r\nX-A:  b c \r\n\r\n")

    assert (head.method, head.target, head.minor) == (b"GET", b"/fn/web/x?q", 1)
    assert head.fields.lines == ((b"Host", b"a"), (b"X-A", b"b c"))
