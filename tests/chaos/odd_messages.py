"""Odd HTTP/1.1 requests and answers, from seeds: ambiguous framing, odd heads, surplus bytes.

Every message carries a token of its own. What a proxy must never take for a request or an answer of
its own, because it lies in a body or behind one, carries the token with SMUGGLED at its end.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from random import Random

LENGTHS = (
    *("+4", "-4", "4 ", "0x4", "4,4", "4, 5", "", "4e0", "\u0664", "4;", "0004"),
    "99999999999999999999",
)
CODINGS = (
    *("chunked", "Chunked", " chunked", "chunked ", "xchunked", "chunked, identity", "identity"),
    *("gzip, chunked", "chunked, chunked", "\tchunked", "chunked;q=1", '"chunked"', "chun\x0bked"),
)
METHODS = (
    *("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"),
    *("get", "G-T", "TRACE", "CONNECT"),
)
VERSIONS = (
    *("HTTP/1.1",) * 8,
    *("HTTP/1.0", "HTTP/1.2", "HTTP/2.0", "http/1.1", "HTTP/1.1 ", "HTTP/11"),
)
LINES = (
    *("Connection: close", "Connection: keep-alive", "Connection: content-length", "TE: trailers"),
    *("Connection: token, host", "Connection: upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAA"),
    *("Upgrade: websocket\r\nConnection: Upgrade", "Expect: 100-continue", "Expect: something"),
    *("Host: other", "Host : other", " folded: x", "X-Folded: a\r\n b", "X-Nul: a\0b"),
    *(": no name", "no colon", "X-Bad\x7f: x", "X Space: y", "X-Long: " + "x" * 9000),
    *("X-Cr: a\rb", "X-Lf: a\nEvil: b", "X-Utf: \u00fc", "Trailer: Content-Length"),
    *("Content_Length: 3", "Transfer_Encoding: chunked", "Authorization: Bearer nobody"),
    *("Fn-Key: nobody", "X-Forwarded-For: 1.2.3.4", "Cookie: fngate=x"),
)
PATHS = (
    *("show", "show", "show", "echo", "status?code=200"),
    *("sized?n=3000", "chunked?n=3", "./show", "../web/show"),
)
TARGETS = (
    *("/fn/web/%73how", "/fn/web//show", "/fn/web/..%2fshow", "/fn/web/show\\", "/fn/web/\x01"),
    *("http://127.0.0.1/fn/web/show", "*", "/fn/web/show#x", "/fn/web/" + "x" * 9000),
    *("/fn/none/show", "/fn/web;x/show", "/fn/web/show%00", "//fn/web/show", "/fn/web"),
    *("/fn/%77eb/show", "fn/web/show"),
)
STATUSES = (
    *("200 OK",) * 6,
    *("204 None", "304 Same", "101 Other", "100 Go", "103 Hints", "99 X"),
    *("1000 X", "200", "abc", "299 \x00", "500 Oh", "599 X"),
)
ANSWERED = ("HTTP/1.1",) * 9 + ("HTTP/1.0", "HTTP/2", "http/1.1", "ICY", "HTTP/1.1\t")
SMUGGLED = "-smuggled"
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
    return f"GET /show?smuggled HTTP/1.1\r\nHost: x\r\nToken: {token}{SMUGGLED}\r\n\r\n".encode()


def stolen(token: str) -> bytes:
    """Return an answer that may only ever be seen as a part of a body, or dropped."""
    body = f"stolen {token}{SMUGGLED}"
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def odd_request(random: Random, token: str) -> bytes:
    """Return a request that is odd with a chance of nine in ten."""
    is_odd = random.random() < 0.9
    method = random.choice(METHODS if is_odd else METHODS[:6])
    target = f"/fn/web/{random.choice(PATHS if is_odd else PATHS[:5])}"
    if is_odd and random.random() < 0.15:
        target = random.choice(TARGETS)
    version = random.choice(VERSIONS) if is_odd else "HTTP/1.1"
    lines = ["Host: 127.0.0.1", f"Token: {token}"]
    if is_odd:
        lines += random.sample(LINES, random.choice((0, 0, 1, 1, 2, 4)))
        random.shuffle(lines)
    fields, body = framed(random, smuggled(token), is_odd=is_odd)
    lines += fields
    end = random.choice(("\r\n",) * 12 + ("\n", "\r")) if is_odd else "\r\n"
    head = end.join([f"{method} {target} {version}", *lines]) + end + end
    data = head.encode("utf-8", "surrogateescape") + body
    return mutated(random, data) if is_odd and random.random() < 0.15 else data


def odd_answer(random: Random, token: str) -> tuple[bytes, bytes | None]:
    """Return an answer, and its body if the answer is valid and plain."""
    inner = f"answer {token} ".encode() * random.choice((1, 1, 3, 200))
    if random.random() < 0.25:
        if random.random() < 0.5:
            return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(inner), inner), inner
        return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + coded([inner]), inner
    statuses = ("200 OK",) * 6 + (
        "204 None",
        "304 Same",
        "101 Other",
        "100 Go",
        "103 Hints",
        "99 X",
    )
    status = random.choice((*statuses, "1000 X", "200", "abc", "299 \x00", "500 Oh", "599 X"))
    version = random.choice(
        ("HTTP/1.1",) * 9 + ("HTTP/1.0", "HTTP/2", "http/1.1", "ICY", "HTTP/1.1\t")
    )
    lines = random.sample(LINES, random.choice((0, 0, 1, 2)))
    fields, body = framed(random, inner, is_odd=True)
    lines += fields
    random.shuffle(lines)
    end = random.choice(("\r\n",) * 12 + ("\n", "\r"))
    text = end.join([f"{version} {status}", *lines]) + end + end
    data = text.encode("utf-8", "surrogateescape") + body
    if random.random() < 0.3:
        data = b"HTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" * random.choice((1, 2, 200)) + data
    if random.random() < 0.4:
        data += stolen(token) * random.choice((1, 1, 3))
    return (mutated(random, data) if random.random() < 0.2 else data), None


def framed(random: Random, inner: bytes, *, is_odd: bool) -> tuple[list[str], bytes]:
    """Return fields and bytes of a body; the fields may contradict each other and the bytes."""
    length, chunked = f"Content-Length: {len(inner)}", "Transfer-Encoding: chunked"
    kind = random.randrange(9) if is_odd else random.randrange(3)
    if kind == 0:
        return [], b""
    if kind == 1:
        return [length], inner
    if kind == 2:
        return [chunked], coded([inner])
    if kind == 3:  # a length that ends before the body
        return [f"Content-Length: {random.randrange(len(inner))}"], inner
    if kind == 4:
        return [f"Content-Length: {random.choice(LENGTHS)}"], inner
    if kind == 5:
        return [f"Transfer-Encoding: {random.choice(CODINGS)}"], coded([inner])
    if kind == 6:  # a length and chunks, whose last chunk comes before the body
        return random.sample([length, chunked], 2), b"0\r\n\r\n" + inner
    if kind == 7:
        return [length, f"Content-Length: {random.choice((0, len(inner), 5))}"], inner
    return [chunked], odd_chunks(random, inner)


def coded(pieces: list[bytes]) -> bytes:
    """Encode chunks with the last one."""
    return b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in pieces if one) + b"0\r\n\r\n"


def odd_chunks(random: Random, inner: bytes) -> bytes:
    """Encode a body as chunks with one oddity."""
    size = len(inner)
    return random.choice(
        (
            b"0x%x\r\n%b\r\n0\r\n\r\n" % (size, inner),
            b"-%x\r\n%b\r\n0\r\n\r\n" % (size, inner),
            b"%x \r\n%b\r\n0\r\n\r\n" % (size, inner),
            b'%x;ext="a"\r\n%b\r\n0\r\n\r\n' % (size, inner),
            b"%x;%b\r\n%b\r\n0\r\n\r\n" % (size, b"e" * 5000, inner),
            b"%x\n%b\n0\n\n" % (size, inner),
            b"%x\r\n%bxx0\r\n\r\n" % (size, inner),
            b"%x\r\n%b\r\n0\r\nContent-Length: 9\r\nToken: other\r\n\r\n" % (size, inner),
            b"%x\r\n%b\r\n0\r\n%b\r\n" % (size, inner, b"T: x\r\n" * 3000),
            b"ffffffffffffffff0\r\n%b\r\n0\r\n\r\n" % inner,
            b"%x\r\n%b\r\n00000000000000\r\n\r\n" % (size, inner),
            b"%x\r\n%b\r\n" % (size, inner),
            b"\r\n%x\r\n%b\r\n0\r\n\r\n" % (size, inner),
        )
    )


def mutated(random: Random, data: bytes) -> bytes:
    """Change, drop, repeat or cut bytes."""
    place = random.randrange(len(data))
    kind = random.randrange(4)
    if kind == 0:
        return data[:place] + random.randbytes(1) + data[place + 1 :]
    if kind == 1:
        return data[:place] + data[place + random.randrange(1, 9) :]
    if kind == 2:
        return data[:place] + data[max(0, place - random.randrange(1, 40)) :]
    return data[:place]


def pieces(random: Random, data: bytes) -> list[bytes]:
    """Split bytes at random places, often not at all."""
    count = random.choice((0, 0, 0, 1, 2, 5))
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(count))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]
