"""What an independent parser, httptools, reads in heads that the gateway accepts or writes."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from typing import Any

import httptools

from gateway.proxy.answering import Answering, forward_answer
from gateway.proxy.fields import Field, Malformed, find_head_end, parse_fields
from gateway.proxy.forwarding import Forwarding, forward_request
from gateway.proxy.framing import BodyKind, Data, make_framer, read_framing
from gateway.proxy.request_head import FIELDS_MAX, RequestHead, parse_request_head
from gateway.proxy.response_head import ResponseHead, parse_response_head
from gateway.proxy.targets import split_target
from registry.errors import BadRequest, ExpectationFailed, HeadTooLarge
from registry.field_classes import fold

KNOWN = frozenset(
    b"GET HEAD POST PUT DELETE OPTIONS PATCH PROPFIND M-SEARCH SEARCH LOCK MKCOL".split()
)
"""Methods that the independent parser knows, too."""
NEXT = b"GET /next HTTP/1.1\r\nHost: next\r\n\r\n"
ONCE = (
    *(b"host", b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"),
    *(b"x-forwarded-prefix", b"forwarded", b"x-request-id"),
)
NEVER = (
    *(b"fn-key", b"authorization", b"proxy-authorization", b"keep-alive", b"upgrade", b"expect"),
    *(b"http2-settings", b"proxy-connection", b"script-name", b"x-original-url"),
    b"x-accel-mapping",
)


class Reading:
    """What httptools reads from a connection."""

    def __init__(self, kind: type[Any] = httptools.HttpRequestParser) -> None:
        self.targets: list[bytes] = []
        self.lines: list[list[Field]] = []
        self.bodies: list[bytes] = []
        self.complete = 0
        self.parser = kind(self)

    def on_message_begin(self) -> None:
        self.targets.append(b"")
        self.lines.append([])
        self.bodies.append(b"")

    def on_url(self, url: bytes) -> None:
        self.targets[-1] += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.lines[-1].append((name, value.rstrip(b" \t")))

    def on_body(self, body: bytes) -> None:
        self.bodies[-1] += body

    def on_message_complete(self) -> None:
        self.complete += 1


def accepted_request(raw: bytes) -> tuple[RequestHead, bytes, bytes] | None:
    """Return head, framed body and content of a request that is accepted whole, else None."""
    try:
        end = find_head_end(raw)
        if end < 0:
            return None
        head = parse_request_head(raw[:end])
        framer, content = make_framer(head.framing), list[Data]()
        taken = framer.feed(raw[end:], content)
    except (BadRequest, HeadTooLarge, ExpectationFailed, Malformed):
        return None
    return (head, raw[end : end + taken], b"".join(content)) if framer.is_complete else None


def compare_request(raw: bytes) -> bool:
    """Compare the meaning of a request that is accepted; return whether it is."""
    found = accepted_request(raw)
    if found is None:
        return False
    head, body, content = found
    if head.method not in KNOWN:
        return True
    end = find_head_end(raw)
    read = Reading()
    with contextlib.suppress(httptools.HttpParserUpgrade):
        read.parser.feed_data(raw[:end] + body)
    assert read.complete == 1
    assert read.targets == [head.target]
    assert read.parser.get_method() == head.method
    assert read.parser.get_http_version() == f"1.{head.minor}"
    assert tuple(read.lines[0][: len(head.fields.lines)]) == head.fields.lines
    # The independent parser takes a body after Upgrade for the other protocol's bytes,
    # even in HTTP/1.0, which has no Upgrade.
    assert b"upgrade" in head.options or read.bodies == [content]
    return True


def compare_forwarded(raw: bytes) -> bool:
    """Check that the function's server reads exactly one request; return whether it gets any."""
    found = accepted_request(raw)
    target = split_target(found[0].target) if found else None
    if found is None or target is None or found[0].method not in KNOWN:
        return False
    head, body, content = found
    keys = frozenset({b"fn_secret"})
    given_ = Forwarding(target.upstream, target.prefix, b"192.0.2.1", b"ours", keys=keys)
    forwarded = forward_request(head, given_)
    fields = parse_fields(forwarded, forwarded.index(b"\r\n") + 2, FIELDS_MAX + 20)
    read = Reading()
    read.parser.feed_data(forwarded + body + NEXT)

    assert read_framing(fields, 1) == read_framing(head.fields, 1)
    assert read.targets == [target.upstream, b"/next"]
    assert read.bodies == [content, b""]
    assert read.complete == 2
    check_fields(read.lines[0])
    return True


def check_fields(lines: list[Field]) -> None:
    """Check that a server of the CGI family gets no field that only the gateway may write."""
    names = Counter(fold(name.lower()) for name, _ in lines)
    assert not [name for name, _ in lines if b"_" in name]
    assert names[b"content-length"] + names[b"transfer-encoding"] <= 1
    assert [names[name] for name in ONCE] == [1] * len(ONCE)
    assert [name for name in NEVER if names[name]] == []
    cookies = [value for name, value in lines if name.lower() == b"cookie"]
    assert not [value for value in cookies if re.search(rb"(^|;)\s*fngate\s*(=|;|$)", value)]


def accepted_response(raw: bytes, method: bytes) -> tuple[ResponseHead, bytes, bytes] | None:
    """Return head, framed body and content of an answer that is accepted whole, else None."""
    try:
        end = find_head_end(raw)
        if end < 0:
            return None
        head = parse_response_head(raw[:end], method)
        framer, content = make_framer(head.framing), list[Data]()
        taken = framer.feed(raw[end:], content)
    except Malformed:
        return None
    if not (framer.is_complete or head.framing.kind is BodyKind.UNTIL_CLOSE):
        return None
    return head, raw[end : end + taken], b"".join(content)


def compare_answer(raw: bytes, given_: Answering) -> bool:
    """Check that the client reads exactly one answer; return whether it gets any."""
    found = accepted_response(raw, b"GET")
    if found is None or found[0].status < 200:
        return False
    head, body, content = found
    answer = forward_answer(head, given_)
    assert parse_response_head(answer.head, b"GET").fields.get(b"fn-revision") == b"web@3"
    assert not re.search(
        rb"(?im)^(clear-site-data|strict-transport-security|keep-alive|x-accel-redirect|x-sendfile):",
        answer.head,
    )
    assert not re.search(rb"(?im)^set-cookie:.*;\s*domain\s*=", answer.head)
    read = Reading(httptools.HttpResponseParser)
    read.parser.feed_data(answer.head + (content if answer.is_dechunked else body))
    assert read.parser.get_status_code() == head.status
    assert read.bodies == [content]
    # A body until the end of the connection has no end that the parser could see.
    until_close = answer.is_dechunked or head.framing.kind is BodyKind.UNTIL_CLOSE
    assert read.complete == (0 if until_close else 1)
    assert answer.keep_alive <= (not until_close)
    connection = dict(read.lines[0])[b"Connection"]
    assert connection == (b"keep-alive" if answer.keep_alive else b"close")
    return True
