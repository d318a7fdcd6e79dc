"""Odd HTTP/1.1 requests and answers: ambiguous framing, odd heads, surplus and missing bytes.

The same generator state always gives the same bytes. One rate of oddities is drawn per message:
some are valid, some have one oddity, some have many.

Every message carries a token of its own. What a proxy must never take for a request or an answer,
because it lies in a body or behind one, carries the token with SMUGGLED at its end.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from random import Random

SMUGGLED = b"-smuggled"
RATES = (0.0, 0.03, 0.03, 0.1, 0.3)
"""Chances that a part of a message is odd, of which one is drawn per message."""

METHODS = (b"GET", b"GET", b"GET", b"POST", b"POST", b"PUT", b"HEAD", b"DELETE", b"OPTIONS")
ODD_METHODS = (
    *(b"get", b"TRACE", b"CONNECT", b"PATCH", b"PROPFIND", b"G-T", b"G T", b"", b"G\0", b"M" * 40),
)
PATHS = (
    *(b"/show",) * 4,
    *(b"", b"/", b"/echo", b"/sized?n=3000", b"/chunked?n=3", b"/status?code=200", b"/a;b=1/c"),
    *(b"/static/x.css?v=1", b"/v1/items?q=%20"),
)
ODD_PATHS = (
    *(b"//show", b"/./show", b"/../web/show", b"/../../etc", b"/..%2fshow", b"/%2e%2e/x"),
    *(b"/%73how", b"/show\\", b"/show%00", b"/show#x", b"/a b", b"/a\tb", b"/\x01", b"/\xc3\xa9"),
    b"/" + b"x" * 9000,
)
TARGETS = (
    *(b"*", b"", b"/", b"/fn", b"/fn//x", b"/fn/%77eb/show", b"/fn/web;x/show", b"/fn/none/show"),
    *(b"//fn/web/show", b"fn/web/show", b"http://127.0.0.1/fn/web/show", b"http://other/fn/web/"),
    b"other:443",
)
VERSIONS = (*(b"HTTP/1.1",) * 7, b"HTTP/1.0")
ODD_VERSIONS = (
    *(b"HTTP/1.2", b"HTTP/2.0", b"HTTP/2", b"HTTP/0.9", b"http/1.1", b"HTTP/1.1 ", b"HTTP/1.1\t"),
    *(b"HTTP/11", b"ICY", b""),
)
HOSTS = (b"127.0.0.1:8080", b"[::1]:80", b"localhost")
ODD_HOSTS = (b"a b", b"", b"a/b", b"a@b", b"a,b", b"[::1", b"a:b", b"127.0.0.1:123456", b"other")
LINES = (
    *(b"User-Agent: odd/1.0", b"Accept: */*", b"accept-encoding: gzip, deflate", b"X-Empty:"),
    *(b"Content-Type: application/json", b"X-Latin: caf\xe9", b"X-Tab: a\tb", b"X-Utf: \xc3\xbc"),
    *(b"Cookie: a=1; fngate=secret; b=2", b"Cookie: fngate=secret", b"X-Long: " + b"x" * 3000),
    *(b"X-Forwarded-For: 203.0.113.9", b"X_Forwarded_For: 203.0.113.9", b"Content_Length: 7"),
    *(b"Forwarded: for=203.0.113.9", b"Transfer_Encoding: chunked", b"X-Request-Id: from-client"),
    *(b"Keep-Alive: timeout=5", b"TE: trailers, deflate", b"Trailer: Content-Length"),
    *(b"Upgrade: h2c", b"Upgrade: websocket", b"HTTP2-Settings: AAMAAAABkAARAAAAAAIAAAAA"),
    *(b"Proxy-Authorization: Basic secret", b"Expect: 100-continue"),
    *(b"SCRIPT_NAME: /x", b"Script.Name: /x", b"X-Original-URL: /x", b"X-Accel-Mapping: /=/"),
    b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
)
KEYS = (b"Authorization: Bearer fn_secret", b"Fn-Key: fn_secret")
"""Keys of nobody: the gateway may refuse a request that has one."""
CONNECTIONS = (
    *(b"close", b"keep-alive", b"Keep-Alive, X-Tab", b"x-empty,,close", b"Upgrade", b"TE"),
    *(b"upgrade, http2-settings", b"token"),
)
ODD_LINES = (
    *(b" Leading: a", b"X-Folded: a\r\n b", b"X-Space : a", b"X Space: a", b"Host : other"),
    *(b"X-No-Colon", b": no name", b"X-Nul: a\0b", b"X-Bell: \x07", b"X-Del\x7f: a", b"X(Odd): a"),
    *(b"X-\xc3\xa9: a", b"X-Cr: a\rb", b"X-Lf: a\nb: c", b"Expect: 200-ok", b"Host: other"),
    *(b"Connection: content-length", b"Connection: transfer-encoding", b"Connection: host"),
    b"X-Long: " + b"x" * 9000,
)
ENDS = (b"\n", b"\r", b"\r\r\n", b"\n\r")
LENGTHS = (
    *(b"+N", b"-N", b"N ", b"0xN", b"N N", b"N,N", b"N, N", b"N,6", b"0N", b"000N", b"Ne0", b"N;"),
    *(b"\x0bN", b"\xd9\xa5", b"", b"9" * 20, b"9" * 30),
)
"""Values of Content-Length; N stands for the length."""
CODINGS = (
    *(b"Chunked", b" chunked", b"chunked ", b"\tchunked", b"\x0bchunked", b"chun\x0bked"),
    *(b"chunked, chunked", b"gzip, chunked", b"chunked, identity", b"identity", b"xchunked"),
    *(b"chunked;q=1", b'"chunked"', b""),
)
SIZES = (
    *(b"0xN", b"-N", b"N ", b" N", b'N;a="b"', b"N;;a", b"N;a=", b"N\n", b"fffffffffffffffN"),
    *(b"g", b"", b"0" * 20, b"N;" + b"x" * 300, b"N;" + b"x" * 5000),
)
"""Lines of a chunk's size; N stands for the size."""
TRAILERS = (b"X-Sum: 1\r\n", b"Content-Length: 5\r\n", b"X Bad: 1\r\n", b"X: \0\r\n")
STATUSES = (
    *(b"200 OK",) * 6,
    *(b"201 ", b"204 None", b"304 Same", b"404 No", b"500 Oh", b"599 X"),
)
ODD_STATUSES = (
    *(b"100 Go", b"101 Other", b"103 Hints", b"99 X", b"099 Low", b"1000 High", b"2x0 OK"),
    *(b"200", b"200  Two", b"299 \0", b"-1 Minus", b"abc", b""),
)
INTERIMS = (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
ANSWERED = (
    *(b"Server: odd", b"Content-Type: text/html", b"Set-Cookie: fngate=mine", b"X-Latin: caf\xe9"),
    *(b"Set-Cookie: a=1; Domain=example.com; Path=/; HttpOnly", b"Server-Timing: db;dur=1"),
    *(b"Location: /login?next=/", b"Location: http://127.0.0.1:8080/x", b"Fn-Revision: other@1"),
    *(b'Clear-Site-Data: "*"', b"Strict-Transport-Security: max-age=1", b"Keep-Alive: timeout=5"),
    *(b"Service-Worker-Allowed: /", b"Trailer: Content-Length", b"Upgrade: h2c"),
    *(b"X-Accel-Redirect: /x", b"X-Sendfile: /x"),
)
_TOKEN = re.compile(rb"(k(\d+)q\d+)z([0-9a-f]{8})(-smuggled)?")


def token(number: int, place: int) -> str:
    """Return a token of a connection, with a checksum: a changed one is none."""
    plain = f"k{number}q{place}"
    return f"{plain}z{zlib.crc32(plain.encode()):08x}"


def tokens(data: bytes) -> Iterator[tuple[int, bool]]:
    """Yield the tokens in `data`: the connection's number, and whether it was smuggled."""
    for match in _TOKEN.finditer(data):
        if int(match[3], 16) == zlib.crc32(match[1]):
            yield int(match[2]), match[4] is not None


def smuggled(token: str) -> bytes:
    """Return a request that may only ever be seen as a part of a body."""
    own = token.encode() + SMUGGLED
    return b"GET /show?smuggled HTTP/1.1\r\nHost: x\r\nToken: %b\r\n\r\n" % own


def stolen(token: str) -> bytes:
    """Return an answer that may only ever be seen as a part of a body, or dropped."""
    body = b"stolen " + token.encode() + SMUGGLED
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def odd_request(random: Random, token: str) -> bytes:
    """Return one request to a function "web", possibly with a body, perhaps not valid."""
    chance = Chance(random)
    method = chance.pick(METHODS, ODD_METHODS)
    target = b"/fn/web" + chance.pick(PATHS, ODD_PATHS)
    if chance.is_odd():
        target = random.choice(TARGETS)
    version = chance.pick(VERSIONS, ODD_VERSIONS)
    host = b"Host: " + chance.pick(HOSTS, ODD_HOSTS)
    lines = [host] * (random.choice((0, 2)) if chance.is_odd(0.5) else 1)
    lines += [b"Token: " + token.encode(), *random.choices(LINES, k=random.choice((0, 0, 1, 2, 5)))]
    if random.random() < 0.03:
        lines.append(random.choice(KEYS))
    content = _content(random, smuggled(token))
    framing, body = _framed(chance, content if random.random() < 0.6 else b"")
    return _message(chance, b"%b %b %b" % (method, target, version), lines + framing, body)


def odd_answer(random: Random, token: str) -> tuple[bytes, bytes | None]:
    """Return one answer, perhaps not valid, perhaps with a surplus one behind it.

    Also return the body that a client must get of it, if the answer is valid and plain.
    """
    chance = Chance(random)
    content = _content(random, b"answer %b " % token.encode())
    lines = random.choices(ANSWERED, k=random.choice((0, 0, 1, 2, 5)))
    framing, body = _framed(chance, content)
    if not chance.rate:
        lines += framing or [b"Content-Length: 0"]
        return _message(chance, b"HTTP/1.1 200 OK", lines, body), content
    status = chance.pick(STATUSES, ODD_STATUSES)
    if status[:3] in (b"204", b"304") and not chance.is_odd():
        body = b""
    elif random.random() < 0.1:  # a body until the end of the connection
        framing = []
    head = b"%b %b" % (chance.pick(VERSIONS, ODD_VERSIONS), status)
    data = _message(chance, head, lines + framing, body)
    if random.random() < 0.2:
        data = random.choice(INTERIMS) * random.choice((1, 1, 3, 200)) + data
    if random.random() < 0.3:
        data += stolen(token) * random.choice((1, 1, 3))
    return data, None


def chunked(random: Random, content: bytes) -> bytes:
    """Return `content` in chunks of random sizes, which are valid, perhaps with trailers."""
    parts = []
    while content:
        size = random.randrange(1, len(content) + 1)
        extension = random.choice((b"", b"", b"", b";a", b";a=b;c"))
        number = random.choice((b"%x", b"%X", b"00%x")) % size
        parts.append(b"%b%b\r\n%b\r\n" % (number, extension, content[:size]))
        content = content[size:]
    parts.append(random.choice((b"0", b"000", b"0;last")) + b"\r\n")
    parts += [TRAILERS[0]] * random.choice((0, 0, 1, 2))
    return b"".join(parts) + b"\r\n"


def pieces(random: Random, data: bytes) -> list[bytes]:
    """Split bytes at random places, often not at all."""
    count = random.choice((0, 0, 0, 1, 2, 5))
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(count))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]


class Chance:
    """Random choices of one message. `rate`: the chance that a part of the message is odd."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.rate = random.choice(RATES)

    def is_odd(self, weight: float = 1.0) -> bool:
        """Return whether a part of this weight is odd."""
        return self.random.random() < weight * self.rate

    def pick(self, plain: Sequence[bytes], odd: Sequence[bytes]) -> bytes:
        """Return one of the odd values with the message's rate, else one of the plain ones."""
        return self.random.choice(odd if self.is_odd() else plain)


def _content(random: Random, inner: bytes) -> bytes:
    """Return the content of a body, most often `inner`."""
    if random.random() < 0.2:
        return random.randbytes(random.choice((0, 1, 5, 5000)))
    return inner * random.choice((1, 1, 1, 3, 100))


def _framed(chance: Chance, content: bytes) -> tuple[list[bytes], bytes]:
    """Return the lines that frame a body, and the body. Odd lines contradict each other or it.

    An empty body may have none: in an answer it lasts until the end of the connection.
    """
    random = chance.random
    length = b"Content-Length: %d" % len(content)
    coding = random.choice((b"Transfer-Encoding", b"transfer-encoding")) + b": chunked"
    if chance.is_odd(3.0):
        return _oddly_framed(random, content, length, coding)
    if not content:
        return random.choice(([], [length])), b""
    return random.choice((([length], content), ([coding], chunked(random, content))))


def _oddly_framed(
    random: Random, content: bytes, length: bytes, coding: bytes
) -> tuple[list[bytes], bytes]:
    number = b"%d" % random.choice((5, len(content)))
    other = b"Content-Length: " + random.choice(LENGTHS).replace(b"N", number)
    less = b"Content-Length: %d" % random.choice((0, 5, random.randrange(len(content) + 1)))
    unknown = b"Transfer-Encoding: " + random.choice(CODINGS)
    whole = chunked(random, content)
    lines, body = random.choice(
        (
            (random.choice(([other], [length, other], [length, length])), content),
            (random.choice(([less], [length, less])), content),
            (random.choice(([unknown], [coding, unknown], [unknown, length])), whole),
            ([length, coding], random.choice((content, whole, b"0\r\n\r\n" + content))),
            ([coding], _oddly_chunked(random, content or b"hello")),
            ([coding], _oddly_chunked(random, content or b"hello")),
        )
    )
    return random.sample(lines, len(lines)), body


def _oddly_chunked(random: Random, content: bytes) -> bytes:
    """Return chunks with one mistake."""
    whole, size = chunked(random, content), b"%x" % len(content)
    one = b"%b\r\n%b\r\n"
    odd = one % (random.choice(SIZES).replace(b"N", size), content)
    trailers = random.choice((*TRAILERS[1:], b"Content-Length: 9\r\nToken: other\r\n", None))
    return random.choice(
        (
            odd + b"0\r\n\r\n",
            odd + whole,
            whole[:-2] + (b"T: x\r\n" * 3000 if trailers is None else trailers) + b"\r\n",
            size + b"\r\n" + content + whole,
            one % (size, content + b"xx") + b"0\r\n\r\n",
            one % (size, content),
            one % (size, content) + b"0" * 14 + b"\r\n\r\n",
            (one % (size, content) + b"0\r\n\r\n").replace(b"\r\n", b"\n"),
            b"\r\n" + whole,
            whole[:-1],
            whole[: len(whole) // 2],
        )
    )


def _message(chance: Chance, first: bytes, lines: list[bytes], body: bytes) -> bytes:
    """Join a message; perhaps with Connection, an odd line, odd ends of lines, changed bytes."""
    random = chance.random
    if random.random() < 0.2:
        lines.append(b"Connection: " + random.choice(CONNECTIONS))
    if chance.is_odd(2.0):
        lines.append(random.choice(ODD_LINES))
    if chance.is_odd(0.2):
        lines += [b"X-Many: 1"] * random.choice((90, 110, 250))
    random.shuffle(lines)
    section = b"".join(line + b"\r\n" for line in [first, *lines, b""])
    if chance.is_odd():
        section = section.replace(b"\r\n", random.choice(ENDS), random.choice((1, -1)))
    return _damaged(random, section + body) if chance.is_odd(2.0) else section + body


def _damaged(random: Random, data: bytes) -> bytes:
    """Return the message with bytes that were cut, added, changed, dropped or repeated."""
    at = random.randrange(len(data) + 1)
    noise = random.choice(
        (b"\0", b"\r", b"\n", b" ", b"\x80", random.randbytes(random.choice((1, 4))))
    )
    return random.choice(
        (
            data[:at],
            data[:at] + noise + data[at:],
            data[:at] + noise + data[at + len(noise) :],
            data[:at] + data[at + random.randrange(1, 9) :],
            data[:at] + data[max(0, at - random.randrange(1, 40)) :],
        )
    )
