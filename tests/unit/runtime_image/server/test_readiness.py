"""When a server is probed, and which answer makes it ready."""

from __future__ import annotations

import pytest

from runtime_image.server.readiness import Answer, Readiness, failure, read_status, request


def test_probes_get_rarer() -> None:
    """Every 25 ms for a second, then 100 ms, after ten seconds 500 ms; never past the limit."""
    probes = Readiness("/health", 60.0, 100.0)

    pauses = [probes.pause_s(100.0 + passed_s) for passed_s in (0.0, 0.99, 1.0, 9.9, 10.0, 59.9)]

    assert pauses == pytest.approx([0.025, 0.025, 0.1, 0.1, 0.5, 0.1])
    assert not probes.is_over(159.9)
    assert probes.is_over(160.0)
    assert probes.pause_s(161.0) == 0.0


@pytest.mark.parametrize(
    ("path", "status", "is_ready"),
    [
        ("/health", 200, True),
        ("/health", 399, True),
        ("/health", 404, False),
        ("/health", 101, False),
        ("", 404, True),
        ("", 499, True),
        ("", 500, False),
        ("", 0, False),
    ],
)
def test_a_status_decides(path: str, status: int, is_ready: bool) -> None:
    """A path of its own must succeed; without one, any answer below 500 will do."""
    probes = Readiness(path, 60.0, 0.0)

    probes.answered(Answer(status, "said"), 1.0)

    assert probes.is_ready is is_ready


def test_a_line_is_logged_per_change() -> None:
    """Not per probe, and not without end."""
    probes = Readiness("/health", 60.0, 0.0)
    answers = [Answer(0, text) for text in ("refused", "refused", "closed")]
    lines = [probes.answered(answer, 1.0) for answer in answers]

    assert lines == ["GET /health: refused", "", "GET /health: closed"]
    many = [probes.answered(Answer(0, str(number)), 1.0) for number in range(100)]
    assert 0 < len(list(filter(None, many))) < 50


def test_an_answer_has_its_beginning() -> None:
    """That of the first probe in a row that met the same."""
    probes = Readiness("/health", 60.0, 5.0)
    assert probes.last_since_s == 5.0

    begun = []
    for now, text in ((6.0, "refused"), (7.0, "404 Not Found"), (9.0, "404 Not Found")):
        probes.answered(Answer(0, text), now)
        begun.append(probes.last_since_s)

    assert begun == [6.0, 7.0, 7.0]


@pytest.mark.parametrize("path", ["health", "/a b", "/a\r\nX: y", "/\u00e9"])
def test_a_path_that_is_none_is_refused(path: str) -> None:
    """It would end up in the request's head."""
    with pytest.raises(ValueError, match="expected a path that begins with /"):
        Readiness(path, 60.0, 0.0)


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"HTTP/1.1 200 OK\r\n", Answer(200, "200 OK")),
        (b"HTTP/1.0 503\r\n", Answer(503, "503")),
        (b"HTTP/1.1 404 Not Found\n", Answer(404, "404 Not Found")),
        (b"HTTP/1.1 101 Switching\r\n", Answer(101, "101 Switching")),
        (b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n", Answer(200, "200 OK")),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n", Answer(200, "200 OK")),
        (b"HTTP/1.1 102 Processing\r\n\r\n", None),
        (b"HTTP/1.1 100 Continue\r\nX: y\r\n", None),
        (b"HTTP/1.1 20", None),
        (b"H", None),
        (b"", None),
        (b"SSH-2.0-x\r\n", Answer(0, "expected HTTP/1.1, got 'SSH-2.0-x'")),
        (b"HTTP/2 200\r\n", Answer(0, "expected HTTP/1.1, got 'HTTP/2 200'")),
        (b"HTTP/1.1 abc\r\n", Answer(0, "expected HTTP/1.1, got 'HTTP/1.1 abc'")),
        (b"HTTP/1.1 \xb2\xb2\xb2\r\n", Answer(0, "expected HTTP/1.1, got 'HTTP/1.1 \xb2\xb2\xb2'")),
        (b"HTTP/1.1 " + b"2" * 500, Answer(0, "a status line that is too long")),
    ],
)
def test_the_final_status_is_read(data: bytes, answer: Answer | None) -> None:
    """Interim answers are skipped; anything but HTTP/1.x is named."""
    assert read_status(data) == answer


def test_the_request_is_plain() -> None:
    """One head, and the connection is closed after it."""
    lines = request("/health", "127.0.0.1:8000").split(b"\r\n")

    assert lines[:2] == [b"GET /health HTTP/1.1", b"Host: 127.0.0.1:8000"]
    assert b"Connection: close" in lines
    assert lines[-2:] == [b"", b""]


def test_a_failure_says_expected_and_got() -> None:
    """With the address where the server listens instead."""
    probes = Readiness("", 60.0, 0.0)
    probes.answered(Answer(0, "connection refused"), 1.0)
    plain = "late; expected a status from 200 to 499 for /, got: connection refused"

    assert failure(probes, "late", 8000, "") == plain
    elsewhere = f"{plain}; the server listens on 0.0.0.0:9000, expected "
    assert failure(probes, "late", 8000, "0.0.0.0:9000") == f"{elsewhere}port 8000 (${{PORT}})"
    assert failure(probes, "late", 0, "0.0.0.0:9000") == f"{elsewhere}the socket ${{SOCKET}}"
