"""Readers of heads, and of messages on one connection: the ways to smuggle a request."""

from __future__ import annotations

import contextlib
import re
from typing import Any, Final

from aiohttp import http_exceptions
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_parser import HttpRequestParser

from gateway.admission.callers import Callers
from gateway.admission.calls import Head, make_head
from gateway.http.head_memory import HeadMemory
from gateway.http.known_heads import cut_head
from gateway.http.plain_heads import HEAD_MAX, PlainHead, parse_plain_head
from gateway.proxy.answer_reader import AnswerReader
from gateway.proxy.answering import Answering, forward_answer, forward_interim
from gateway.proxy.fields import Malformed, find_head_end
from gateway.proxy.framing import make_framer
from gateway.proxy.known_answers import VARYING, make_template
from gateway.proxy.request_head import RequestHead, parse_request_head
from gateway.proxy.response_head import ResponseHead, parse_response_head
from registry.catalog import Catalog
from registry.errors import BadRequest, FnError
from registry.store.keys import KeyRing
from tests.fuzz.subject import KIB, Subject, chance_of, pieces
from tests.support.alike_heads import treated_alike
from tests.support.head_readings import compare_answer, compare_forwarded, compare_request

_END: Final = b"\r\n\r\n"
REFUSALS: Final = (FnError, Malformed)

REQUESTS: Final = (
    b"POST /fn/web/a%20b?q=1 HTTP/1.1\r\nHost: a:80\r\nContent-Length: 5\r\n"
    b"Cookie: fngate=x; a=b\r\nX-Forwarded-For: 1.2.3.4\r\nConnection: close, x-b\r\n"
    b"X-B: c\r\n\r\nhello",
    b"PUT /fn/web@2/ HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\n"
    b"Expect: 100-continue\r\nSCRIPT_NAME: /x\r\nDestination: /fn/web/c\r\n\r\n"
    b"5;a=b\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n",
    b"GET /fn/web HTTP/1.0\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
    b"X-Forwarded-Prefix: /p\r\nForwarded: for=1.2.3.4\r\nX-Http-Method-Override: PUT\r\n\r\n",
)
ANSWERS: Final = (
    b"HTTP/1.1 103 Early\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n"
    b"Set-Cookie: a=b; Path=/x; Domain=c\r\nLocation: http://127.0.0.1:81/x\r\n\r\nhello",
    b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\nX-Accel-Redirect: /a\r\n"
    b"Connection: close, x-b\r\nX-B: 1\r\nVary: a\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n",
    b"HTTP/1.0 200\r\nContent-Type: text/html\r\n"
    b"Content-Security-Policy: frame-ancestors a\r\n\r\nhi",
    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\nContent-Location: /fn/web/x\r\n\r\n",
)
PLAIN: Final = (
    b"POST /fn/digits HTTP/1.1\r\nHost: a:80\r\nContent-Type: application/json\r\n"
    b"Content-Length: 5\r\nX-Request-Id: one\r\nPrefer: wait=5\r\nPriority: u=1\r\n\r\n",
    b"POST /v2/models/digits/versions/3/infer HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer k\r\n"
    b"Accept-Encoding: gzip, deflate\r\nInference-Header-Content-Length: 5\r\n"
    b"Content-Length: 15\r\n"
    b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n"
    b"\r\n",
)
ALIKE: Final = (
    b"GET /fn/web/?a=1 HTTP/1.1\r\nHost: a\r\nX-Request-Id: one\r\n\r\n\0"
    b"GET /fn/web/?bc HTTP/1.1\r\nHost: a\r\nX-Request-Id: two\r\n\r\n",
    b"POST /fn/web HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n\0"
    b"POST /fn/web HTTP/1.1\r\nHost: a\r\nContent-Length: 17\r\n\r\n",
)


def _request(data: bytes) -> tuple[RequestHead, int] | None:
    """Return the head of a request and the length of its body, None if it is not complete."""
    end = find_head_end(data)
    if end < 0:
        return None
    head = parse_request_head(data[:end])
    return head, make_framer(head.framing).feed(data[end:])


def _check_request(data: bytes, found: Any) -> None:
    """Another parser reads the same request, and the server gets exactly one."""
    if isinstance(found, Exception) or found is None or b"upgrade" in found[0].options:
        return
    compare_request(data)
    with contextlib.suppress(BadRequest):
        compare_forwarded(data)


def _answer(data: bytes, cuts: tuple[bytes, ...] = ()) -> list[Any]:
    """Return what a reader makes of an answer: its heads, and the client's part of its body."""
    reader = AnswerReader(b"GET")
    heads: list[ResponseHead] = []
    body = bytearray()
    for piece in cuts or (data,):
        rest = piece
        if not heads or heads[-1].is_interim:
            reader.feed(piece)
            while (not heads or heads[-1].is_interim) and (head := reader.next_head()) is not None:
                heads.append(head)
            rest = reader.take_rest() if heads and not heads[-1].is_interim else b""
        taken, is_all = reader.take(rest)
        body += taken
        if not is_all:
            break
    return [heads, bytes(body), reader.body.is_complete, reader.ends_with_connection]


def _check_answer(data: bytes, found: Any) -> None:
    """Pieces make no difference, another parser reads the same answer as the client, and a template
    gives the same head."""
    chance = chance_of(data)
    try:
        in_pieces: Any = _answer(data, tuple(pieces(data, chance)))
    except REFUSALS as error:
        in_pieces = error
    if isinstance(found, Exception):
        # What stands before the end of a head that is refused may be read in pieces first.
        assert isinstance(in_pieces, Exception), "only the whole is refused"
        return
    assert in_pieces == found, "pieces make a difference"
    given = Answering(
        chance.choice((b"/fn/web", b"/fn/web@3", b"")),
        b"127.0.0.1:8080",
        chance.randrange(2),
        chance.random() < 0.7,
        added=((b"Fn-Revision", b"web@3"),),
        port=chance.choice((0, 80, 81)),
        outer=chance.choice((b"", b"/outer")),
    )
    for head in found[0]:
        if head.is_interim:
            _check_written(forward_interim(head))
    compare_answer(data, given)
    last = found[0][-1] if found[0] else None
    if last is not None and not last.is_interim:
        _check_template(last, given)


def _check_written(raw: bytes) -> None:
    """A head that the gateway writes has one end, and no cookie of the gateway's."""
    assert raw.index(_END) == len(raw) - len(_END)
    parse_response_head(raw, b"GET")
    assert not re.search(rb"(?im)^set-cookie:[ =\t]*(?:__Host-)?fngate[ \t]*(?:[=;\r]|$)", raw)


def _check_template(head: ResponseHead, given: Answering) -> None:
    _check_written(forward_answer(head, given).head)
    varying = ((b"Server-Timing", VARYING), (b"X-Request-Id", VARYING))
    template = make_template(given._replace(added=(*given.added, *varying)), head, head.framing)
    filled = ((b"Server-Timing", b"t"), (b"X-Request-Id", b"i"))
    alone = forward_answer(head, given._replace(added=(*given.added, *filled)))
    assert template.fill(b"t", b"i") == alone.head, "the template differs"


class _Loop:
    """Stands in for the loop of a parser that is fed whole heads only."""

    def get_debug(self) -> bool:
        """Implement the loop's."""
        return False


def _by_aiohttp(raw: bytes) -> Any:
    """Return what aiohttp reads in a head, None if it refuses it."""
    loop: Any = _Loop()
    parser: Any = HttpRequestParser(BaseProtocol(loop), loop, 2**16)
    try:
        messages, is_upgraded, tail = parser.feed_data(raw)
    except http_exceptions.HttpProcessingError:
        return None
    return None if len(messages) != 1 or is_upgraded or tail else messages[0][0]


def _plain(data: bytes) -> PlainHead | None:
    memory = HeadMemory(Catalog(), Callers(KeyRing()))
    found = memory.find(b"", data)
    assert memory.find(b"", data) == found
    assert found is None or isinstance(found, PlainHead)
    return found


def _check_plain(data: bytes, found: Any) -> None:
    """aiohttp, behind the fast path, reads the same call in each head that is plain."""
    if isinstance(found, Exception) or found is None:
        return
    assert len(data) <= HEAD_MAX
    message = _by_aiohttp(data)
    assert message is not None, "aiohttp refuses a plain head"
    path: str = message.path
    assert (message.method, message.version) == ("POST", (1, 1)), "another request"
    unusual = (message.should_close, message.compression, message.upgrade, message.chunked)
    assert not any(unusual)
    assert message.headers.get("Content-Length") == str(found.length)
    ref, version = found.head.ref, found.head.version
    if version is None:
        assert path == f"/fn/{ref}"
    else:
        assert path == f"/v2/models/{ref}{f'/versions/{version}' if version else ''}/infer"
    headers = message.headers
    expected = make_head(ref, headers["Host"], headers.get, headers, version)
    assert Head(*found.head) == expected, "another head"
    alone = parse_plain_head(data)
    assert alone is None or alone.head == found.head


def _check_alike(data: bytes, _found: Any) -> None:
    """Heads that are known by the same key are treated alike."""
    first, _, second = data.partition(b"\0")
    if first.endswith(_END) and second.endswith(_END):
        treated_alike(first, second, is_trusted=bool(chance_of(data).randrange(2)))


def _cut(data: bytes) -> object:
    return [cut_head(one) for one in data.split(b"\0", 1)]


HEADS = (
    Subject("request", _request, REQUESTS, 40 * KIB, REFUSALS, check=_check_request),
    Subject("server-answer", _answer, ANSWERS, 80 * KIB, REFUSALS, check=_check_answer),
    Subject("plain-head", _plain, PLAIN, 8 * KIB, REFUSALS, check=_check_plain),
    Subject("known-head", _cut, ALIKE, 8 * KIB, REFUSALS, check=_check_alike),
)
