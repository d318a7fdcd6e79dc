"""Wrong answers of a hostile server, written to the connection as they are."""

import contextlib

from trying import waited

OK = b"HTTP/1.1 200 OK\r\n"
PIECE = b"x" * 65536
PIECES = 1024
"""Pieces of an answer without end; the connection ends it before."""


def written(data):
    def lie(out):
        out.write(data)

    return lie


def endless(head, piece):
    def lie(out):
        out.write(head)
        with contextlib.suppress(OSError):
            for _ in range(PIECES):
                out.write(piece)

    return lie


def silent(head):
    """Send this much, then nothing for longer than anybody waits."""

    def lie(out):
        out.write(head)
        out.flush()
        waited(30)

    return lie


SECOND = OK + b"Content-Length: 6\r\n\r\nsecond"
COOKIES = (
    b"Set-Cookie: a=1; Domain=example.com; Path=/\r\n"
    b"Set-Cookie: b=2; domain=localhost\r\n"
    b"Set-Cookie: c=3; Path=/; Secure\r\n"
)
LIES = {
    "garbage": written(b"\x16\x03\x01\x02\x00\r\n\r\n"),
    "nothing": written(b""),
    "half-a-head": written(b"HTTP/1.1 200 OK\r\nContent-Le"),
    "no-status": written(b"HTTP/1.1 abc OK\r\n\r\n"),
    "version-9": written(b"HTTP/9.9 200 OK\r\nContent-Length: 0\r\n\r\n"),
    "two-lengths": written(OK + b"Content-Length: 3\r\nContent-Length: 9\r\n\r\nabc"),
    "length-and-chunks": written(
        OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SECOND
    ),
    "minus-length": written(OK + b"Content-Length: -1\r\n\r\n"),
    "odd-coding": written(OK + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n"),
    "space-before-colon": written(OK + b"Content-Length : 5\r\n\r\nhello"),
    "folded": written(OK + b"X-A: 1\r\n 2\r\nContent-Length: 0\r\n\r\n"),
    "nul": written(OK + b"X-A: 1\0\r\nContent-Length: 0\r\n\r\n"),
    "bare-cr": written(OK + b"X-A: 1\rX-B: 2\r\nContent-Length: 0\r\n\r\n"),
    "bad-chunk": written(OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nbad\r\n0\r\n\r\n"),
    "huge-chunk": written(
        OK + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nx\r\n0\r\n\r\n"
    ),
    "switch": written(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nrest"
    ),
    "second-answer": written(OK + b"Content-Length: 5\r\n\r\nfirst" + SECOND),
    "a-terabyte": written(OK + b"Content-Length: 1099511627776\r\n\r\nshort"),
    "cookies": written(OK + COOKIES + b"Content-Length: 2\r\n\r\nok"),
    "redirect": written(
        b"HTTP/1.1 302 Found\r\nLocation: /lie/redirect\r\nContent-Length: 0\r\n\r\n"
    ),
    "fields": written(OK + b"".join(b"X-%d: 1\r\n" % number for number in range(1000)) + b"\r\n"),
    "endless-head": endless(OK, b"X-Filling: " + PIECE + b"\r\n"),
    "endless-line": endless(b"HTTP/1.1 200 ", PIECE),
    "endless-100": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "endless-103": endless(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 1000),
    "endless-trailers": endless(
        OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n", b"X-A: 1\r\n" * 1000
    ),
    "endless-extension": endless(OK + b"Transfer-Encoding: chunked\r\n\r\n1;", PIECE),
    "never": silent(b""),
    "never-a-word": silent(b"HTTP/1.1"),
    "never-the-head": silent(OK + b"X-A: 1\r\n"),
    "never-the-rest": silent(OK + b"Content-Length: 9\r\n\r\nfirst"),
}
