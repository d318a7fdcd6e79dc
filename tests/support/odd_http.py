"""Seeded requests and answers that are unusual, ambiguous or malformed HTTP/1.1.

About half are valid. The same generator state always gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

Line = tuple[bytes, bytes]

METHODS = (b"GET", b"GET", b"GET", b"POST", b"POST", b"PUT", b"HEAD", b"DELETE", b"OPTIONS")
ODD_METHODS = (b"get", b"TRACE", b"CONNECT", b"PATCH", b"PROPFIND", b"G T", b"", b"M" * 40, b"G\0")
PATHS = (b"", b"/", b"/a/b", b"/static/x.css?v=1", b"/v1/items?q=%20", b"/%2e%2e/x", b"/a;b=1/c")
ODD_PATHS = (b"//a//b", b"/../../etc", b"/a b", b"/a\\b", b"/\xc3\xa9", b"/a#b", b"/\x01", b"/a\tb")
TARGETS = (b"*", b"http://other/fn/web/", b"other:443", b"", b"/", b"/fn", b"/fn//x", b"/fn/%77eb/")
VERSIONS = (b"HTTP/1.2", b"HTTP/2.0", b"HTTP/0.9", b"http/1.1", b"HTTP/1.1 ", b"HTTP/11", b"")
ENDS = (b"\n", b"\r", b"\r\r\n", b"\n\r")
PLAIN: Sequence[Line] = (
    (b"User-Agent", b"odd/1.0"),
    (b"Accept", b"*/*"),
    (b"accept-encoding", b"gzip, deflate"),
    (b"Content-Type", b"application/json"),
    (b"Authorization", b"Bearer fn_secret"),
    (b"Cookie", b"a=1; fngate=secret; b=2"),
    (b"Cookie", b"fngate=secret"),
    (b"Fn-Key", b"fn_secret"),
    (b"X-Empty", b""),
    (b"X-Latin", b"caf\xe9"),
    (b"X-Tab", b"a\tb"),
    (b"X-Long", b"x" * 3000),
    (b"X-Forwarded-For", b"203.0.113.9"),
    (b"X_Forwarded_For", b"203.0.113.9"),
    (b"Forwarded", b"for=203.0.113.9"),
    (b"Content_Length", b"7"),
    (b"Proxy-Authorization", b"Basic secret"),
    (b"Keep-Alive", b"timeout=5"),
    (b"TE", b"trailers, deflate"),
    (b"Upgrade", b"h2c"),
    (b"HTTP2-Settings", b"AAMAAABkAARAAAAAAAIAAAAA"),
    (b"X-Request-Id", b"from-client"),
    (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
)
CONNECTIONS = (b"close", b"keep-alive", b"Keep-Alive, X-Tab", b"x-empty,,close", b"Upgrade", b"TE")
ODD_LINES = (
    b"X-Folded: a\r\n b\r\n",
    b" Leading: a\r\n",
    b"X-Space : a\r\n",
    b"X-No-Colon\r\n",
    b": no name\r\n",
    b"X-Nul: a\0b\r\n",
    b"X-Bell: \x07\r\n",
    b"X-Cr: a\rb\r\n",
    b"X-Lf: a\nb: c\r\n",
    b"X(Odd): a\r\n",
    b"X-\xc3\xa9: a\r\n",
    b"Expect: 200-ok\r\n",
    b"Connection: close, content-length\r\n",
    b"Connection: transfer-encoding\r\n",
)
LENGTHS = (b"+5", b"-1", b"0x5", b"5 5", b"5, 5", b"5,6", b"05", b"", b"9" * 30, b"\x0b5", b"5;")
CODINGS = (
    b"Chunked",
    b"chunked, chunked",
    b"gzip, chunked",
    b"chunked, identity",
    b"identity",
    b"xchunked",
    b"chunked;a=1",
    b'"chunked"',
    b"\x0bchunked",
    b"",
)
HOSTS = (b"a b", b"", b"a/b", b"a@b", b"a,b", b"[::1", b"a:b", b"127.0.0.1:123456")
SIZES = (
    b"0x5",
    b"5 ",
    b" 5",
    b"-5",
    b'5;a="b"',
    b"5;;a",
    b"5;a=",
    b"5;" + b"x" * 300,
    b"g",
    b"",
    b"0" * 20,
    b"5\n",
)
TRAILERS = (b"X-Sum: 1\r\n", b"Content-Length: 5\r\n", b"X Bad: 1\r\n", b"X: \0\r\n")
STATUSES = (b"200 OK", b"200 OK", b"201 ", b"204 No Content", b"304 Not Modified", b"404 Not Found")
ODD_STATUSES = (
    b"200",
    b"099 Low",
    b"1000 High",
    b"2x0 OK",
    b"200  Two",
    b"500 \0",
    b"-1 Minus",
    b"",
)
INTERIM = (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
ANSWERED: Sequence[Line] = (
    (b"Server", b"odd"),
    (b"Content-Type", b"text/html"),
    (b"Set-Cookie", b"a=1; Domain=example.com; Path=/; HttpOnly"),
    (b"Set-Cookie", b"fngate=mine"),
    (b"Location", b"/login?next=/"),
    (b"Location", b"http://127.0.0.1:8080/x"),
    (b"Clear-Site-Data", b'"*"'),
    (b"Strict-Transport-Security", b"max-age=1"),
    (b"Service-Worker-Allowed", b"/"),
    (b"Fn-Revision", b"other@1"),
    (b"Server-Timing", b"db;dur=1"),
    (b"Keep-Alive", b"timeout=5"),
    (b"X-Latin", b"caf\xe9"),
)


def odd_request(random: Random) -> bytes:
    """Return one request to a function "web", possibly with a body, perhaps not valid."""
    method = _pick(random, METHODS, ODD_METHODS)
    rest = _pick(random, PATHS, ODD_PATHS)
    target = random.choice(TARGETS) if random.random() < 0.05 else b"/fn/web" + rest
    version = _pick(random, (b"HTTP/1.1",) * 5 + (b"HTTP/1.0",), VERSIONS)
    lines = [
        _line(b"Host", _pick(random, (b"127.0.0.1:8080", b"[::1]:80", b"web.localhost"), HOSTS))
    ]
    if random.random() < 0.04:
        lines = random.choice(([], lines * 2))
    if random.random() < 0.15:
        lines.append(_line(b"Expect", b"100-continue"))
    lines += [_line(*line) for line in random.choices(PLAIN, k=random.randrange(6))]
    framing, body = _framed(random, random.random() < 0.5 and method != b"GET")
    head = b"%b %b %b\r\n" % (method, target, version)
    return _damaged(random, _message(random, head, lines + framing, body))


def odd_response(random: Random, method: bytes) -> bytes:
    """Return one answer to a `method` request, possibly after interim ones, perhaps not valid."""
    interim = b"".join(random.choices(INTERIM, k=random.choice((0, 0, 0, 0, 1, 3))))
    status = _pick(random, STATUSES, ODD_STATUSES)
    version = _pick(random, (b"HTTP/1.1",) * 5 + (b"HTTP/1.0",), VERSIONS)
    lines = [_line(*line) for line in random.choices(ANSWERED, k=random.randrange(6))]
    framing, body = _framed(random, random.random() < 0.8)
    if (method == b"HEAD" or status[:3] in (b"204", b"304")) and random.random() < 0.9:
        body = b""
    elif random.random() < 0.15:
        framing, body = [], random.randbytes(random.randrange(2000))
    head = b"%b %b\r\n" % (version, status)
    return interim + _damaged(random, _message(random, head, lines + framing, body))


def chunked(random: Random, content: bytes) -> bytes:
    """Return `content` in chunks of random sizes, which are valid, perhaps with trailers."""
    pieces = []
    while content:
        size = random.randrange(1, len(content) + 1)
        extension = random.choice((b"", b"", b"", b";a", b";a=b;c"))
        number = random.choice((b"%x", b"%X", b"00%x")) % size
        pieces.append(b"%b%b\r\n%b\r\n" % (number, extension, content[:size]))
        content = content[size:]
    pieces.append(random.choice((b"0", b"000", b"0;last")) + b"\r\n")
    pieces += [TRAILERS[0]] * random.choice((0, 0, 1, 2))
    return b"".join(pieces) + b"\r\n"


def _framed(random: Random, has_body: bool) -> tuple[list[bytes], bytes]:
    """Return the lines that frame a body, and the body."""
    content = random.randbytes(random.choice((0, 1, 5, 100, 5000))) if has_body else b""
    length = _line(b"Content-Length", b"%d" % len(content))
    coding = _line(random.choice((b"Transfer-Encoding", b"transfer-encoding")), b"chunked")
    draw = random.random()
    if draw < 0.06:
        other = _line(b"Content-Length", random.choice(LENGTHS))
        return random.choice(([other], [length, other], [length, length])), content
    if draw < 0.12:
        other = _line(b"Transfer-Encoding", random.choice(CODINGS))
        return random.choice(([other], [coding, other], [other, length])), chunked(random, content)
    if draw < 0.16:
        lines = [length, coding]
        random.shuffle(lines)
        return lines, random.choice((content, chunked(random, content)))
    if not has_body:
        return [], b""
    if draw < 0.6:
        return [length], content
    return [coding], _oddly_chunked(random, content) if draw < 0.7 else chunked(random, content)


def _oddly_chunked(random: Random, content: bytes) -> bytes:
    """Return chunks with one mistake."""
    whole = chunked(random, content or b"hello")
    odd = random.choice(SIZES) + b"\r\nhello\r\n"
    return random.choice(
        (
            odd + whole,
            whole[:-2] + random.choice(TRAILERS[1:]) + b"\r\n",
            b"5\r\nhello" + whole,
            b"5\r\nhelloworld\r\n" + whole,
            b"5\nhello\n0\n\n",
            whole[:-1],
            whole[: len(whole) // 2],
        )
    )


def _message(random: Random, head: bytes, lines: list[bytes], body: bytes) -> bytes:
    """Join a message; sometimes with Connection, an odd line, or odd ends of lines."""
    if random.random() < 0.3:
        lines.append(_line(b"Connection", random.choice(CONNECTIONS)))
    if random.random() < 0.08:
        lines.append(random.choice(ODD_LINES))
    if random.random() < 0.01:
        lines += [b"X-Many: 1\r\n"] * random.choice((90, 110, 250))
    random.shuffle(lines)
    section = head + b"".join(lines) + b"\r\n"
    if random.random() < 0.03:
        section = section.replace(b"\r\n", random.choice(ENDS), random.choice((1, -1)))
    return section + body


def _damaged(random: Random, message: bytes) -> bytes:
    """Return the message, sometimes with bytes that were cut, added or changed."""
    draw = random.random()
    at = random.randrange(len(message) + 1)
    if draw < 0.03:
        return message[:at]
    if draw < 0.06:
        return message[:at] + random.randbytes(random.choice((1, 1, 4))) + message[at:]
    if draw < 0.09:
        return (
            message[:at] + random.choice((b"\0", b"\r", b"\n", b" ", b"\x80")) + message[at + 1 :]
        )
    return message


def _pick(random: Random, plain: Sequence[bytes], odd: Sequence[bytes]) -> bytes:
    return random.choice(odd if random.random() < 0.04 else plain)


def _line(name: bytes, value: bytes) -> bytes:
    return b"%b: %b\r\n" % (name, value)
