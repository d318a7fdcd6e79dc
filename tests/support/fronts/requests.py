"""One HTTP request as a client may write it: plain, odd or malicious."""

from __future__ import annotations

import gzip
import io
import re
from random import Random

import numpy as np

from tests.support.fronts.lines import (
    ENDS,
    LENGTHS,
    METHODS,
    ODD_HEADERS,
    PLAIN_HEADERS,
    TARGETS,
    VERSIONS,
    WRONG_CHUNKS,
)

KEYS = {
    "fn_admin-of-the-test": ("admin",),
    "fn_any-function": ("invoke",),
    "fn_only-digits": ("invoke:digits",),
    "fn_reads": ("read",),
}
"""Secrets known to the servers under test, and their scopes."""
REFS = ("digits", "digits@1", "digits@2", "small", "small@1", "cold")
"""Deployed functions: small takes bodies up to 1 MiB, cold has no replica."""
NO_REFS = ("nobody", "digits@9", "digits@", "@1", "Digits", "digits@1@1", "d" * 90, "-", "x@y")
LARGE = (65_535, 65_536, 65_537, 100_000, 262_145)


def plain(random: Random) -> bytes:
    """Return a request that the fast front must answer by itself."""
    lines = [("Host", random.choice(("localhost", "127.0.0.1:8080", "[::1]")))]
    lines += [
        ("Authorization", f"Bearer {random.choice(('fn_admin-of-the-test', 'fn_any-function'))}")
    ]
    for name, values in PLAIN_HEADERS.items():
        if random.random() < 0.25:
            lines.append((name, random.choice(values)))
    body = content(random)
    lines.append((cased(random, "Content-Length"), str(len(body))))
    random.shuffle(lines)
    # Large bodies for cold functions are validated in a thread, which these tests do not wait for.
    ref = "cold" if random.random() < 0.04 and len(body) < 60_000 else random.choice(REFS[:4])
    colon = random.choice((":", ": "))
    head = "".join(f"{cased(random, name)}{colon}{value}\r\n" for name, value in lines)
    return f"POST {path_of(random, ref)} HTTP/1.1\r\n{head}\r\n".encode() + body


def path_of(random: Random, ref: str) -> str:
    """Return a path that calls a function, in one of the two protocols."""
    if random.random() < 0.8:
        return f"/fn/{ref}"
    name, _, number = ref.partition("@")
    return f"/v2/models/{name}{f'/versions/{number}' if number else ''}/infer"


def content(random: Random) -> bytes:
    """Return a body: JSON, npy, binary, empty, of a size near a copy threshold, or another
    request."""
    kind = random.randrange(14)
    if kind < 5:
        return b'{"inputs": {"x": [[1, 2, 3, %d]]}}' % random.randrange(1000)
    if kind < 7:
        return b""
    if kind == 7:
        file = io.BytesIO()
        np.save(file, np.full((1, 4), random.random(), np.float32))
        return file.getvalue()
    if kind == 8:
        head = b'{"inputs":[{"name":"x"}]}'
        return head + random.randbytes(16)
    if kind == 9 and random.random() < 0.3:
        return random.randbytes(1000) * (random.choice(LARGE) // 1000) + b"end"
    if kind == 10:
        return plain(random) if random.random() < 0.7 else b"GET /healthz HTTP/1.1\r\n\r\n"
    if kind == 11:
        return b"please fail"
    return random.randbytes(random.randrange(1, 400)) + random.choice((b"", b"\r\n\r\n", b"\r\n"))


def odd(random: Random) -> bytes:
    """Return a request with up to four oddities."""
    raw = plain(random)
    for change in random.choices(CHANGES, k=random.choice((1, 1, 1, 2, 2, 4))):
        raw = change(random, raw)
    return raw


def cased(random: Random, name: str) -> str:
    """Return a header name in random case."""
    return random.choice((name, name, name, name.lower(), name.upper(), name.swapcase()))


def chunked(random: Random, body: bytes) -> bytes:
    """Return a body in chunks, sometimes not conforming to RFC 9112."""
    out = bytearray()
    at = 0
    while at < len(body):
        size = random.choice((1, 7, 64, 5000, len(body) - at))
        piece = body[at : at + size]
        at += size
        out += random.choice((b"%x", b"%X", b"%x", b"0%x", b"%x;a=b")) % len(piece)
        out += b"\r\n" + piece + b"\r\n"
    out += b"0\r\n" + random.choice((b"", b"", b"", b"X-Sum: 1\r\n", b"Content-Length: 5\r\n"))
    out += b"\r\n"
    if random.random() < 0.3:
        wrong = random.choice(WRONG_CHUNKS)
        where = random.randrange(len(out))
        out[where:where] = wrong
    return bytes(out)


def _method(random: Random, raw: bytes) -> bytes:
    return random.choice(METHODS) + raw[raw.find(b" ") :]


def _target(random: Random, raw: bytes) -> bytes:
    head = raw.partition(b" ")[0] + b" "
    rest = raw[len(head) :].partition(b" ")[2]
    target = random.choice(TARGETS)
    if random.random() < 0.4:
        refs = REFS if len(raw) < 60_000 else REFS[:-1]
        target = path_of(random, random.choice(refs + NO_REFS)).encode()
    return head + target + b" " + rest


def _version(random: Random, raw: bytes) -> bytes:
    return raw.replace(b"HTTP/1.1", random.choice(VERSIONS), 1)


def _header(random: Random, raw: bytes) -> bytes:
    """Add one header line, first or last."""
    line = random.choice(ODD_HEADERS) + b"\r\n"
    mark = random.choice((b"\r\n", b"\r\n\r\n"))
    head, found, rest = raw.partition(mark)
    return head + b"\r\n" + line + (found[2:] + rest) if found else raw


def _without(random: Random, raw: bytes) -> bytes:
    """Remove one header line."""
    head, found, body = raw.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    if len(lines) > 1:
        del lines[random.randrange(1, len(lines))]
    return b"\r\n".join(lines) + found + body


def _twice(random: Random, raw: bytes) -> bytes:
    """Repeat one header line."""
    head, found, body = raw.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    if len(lines) > 1:
        line = random.choice(lines[1:])
        lines.insert(random.randrange(1, len(lines) + 1), line)
    return b"\r\n".join(lines) + found + body


def _length(random: Random, raw: bytes) -> bytes:
    """State the body's length in another way, or wrongly."""
    head, found, body = raw.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    at = next((n for n, line in enumerate(lines) if line.lower().startswith(b"content-length")), 0)
    if not at:
        return raw
    said = (
        random.choice(LENGTHS).replace(b"%d", b"%d" % len(body)).replace(b"%x", b"%x" % len(body))
    )
    if random.random() < 0.4:
        said = b"%d" % max(0, len(body) + random.choice((-30, -5, -1, 1, 2, 50)))
    lines[at] = b"Content-Length: " + said
    return b"\r\n".join(lines) + found + body


def _most(random: Random, raw: bytes) -> bytes:
    """Use a length at the limit or just above it, for a function that takes no more."""
    length = b"\r\nContent-Length: %d\r\n" % random.choice((2**20, 2**20 + 1))
    raw = re.sub(rb"\r\ncontent-length: ?\d+\r\n", length, raw, count=1, flags=re.IGNORECASE)
    return re.sub(rb"/fn/[a-z0-9@]+", b"/fn/small", raw, count=1)


def _chunked(random: Random, raw: bytes) -> bytes:
    """Send chunks, with Content-Length or without."""
    head, found, body = raw.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    if random.random() < 0.7:
        lines = [line for line in lines if not line.lower().startswith(b"content-length")]
    lines.insert(random.randrange(1, len(lines) + 1), random.choice(ODD_HEADERS[:9]))
    return b"\r\n".join(lines) + found + chunked(random, body)


def _gzip(random: Random, raw: bytes) -> bytes:
    head, found, body = raw.partition(b"\r\n\r\n")
    packed = gzip.compress(body) if random.random() < 0.8 else body
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
    lines += [b"Content-Encoding: gzip", b"Content-Length: %d" % len(packed)]
    return b"\r\n".join(lines) + found + packed


def _end(random: Random, raw: bytes) -> bytes:
    """End one line in a forbidden way."""
    places = raw[: raw.find(b"\r\n\r\n") + 4].count(b"\r\n")
    at = -1
    for _ in range(random.randrange(1, max(2, places + 1))):
        at = raw.find(b"\r\n", at + 1)
    return raw if at < 0 else raw[:at] + random.choice(ENDS) + raw[at + 2 :]


def _before(random: Random, raw: bytes) -> bytes:
    return random.choice((b"\r\n", b"\r\n\r\n", b"\n", b" ", b"\0", b"\r")) + raw


def _many(random: Random, raw: bytes) -> bytes:
    """Send very many headers, or very long names."""
    head, found, body = raw.partition(b"\r\n\r\n")
    count = random.choice((38, 41, 100, 127, 128, 129, 200))
    size = random.choice((1, 64, 65, 100))
    more = b"".join(b"\r\n" + b"X" * size + b"%d: 1" % number for number in range(count))
    return head + more + found + body


CHANGES = (
    *(_method, _target, _target, _version, _without, _twice, _length, _length, _length),
    *(_header, _header, _header, _header, _header, _header, _chunked, _chunked, _gzip),
    *(_end, _before, _many, _most),
)
