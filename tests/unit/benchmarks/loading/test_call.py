"""Calls as bytes, and load figures as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from benchmarks.loading.call import Call, Loaded

LOADED = Loaded(100, 2.0, 1.5, 3.0, 0, 2001.5, ((0.5, 1.25), (1.5, 1.75)))


def test_a_call_is_one_request() -> None:
    """Host and length are correct; the content type is JSON unless the headers say otherwise."""
    request = Call(8080, "/fn/tiny", b"{}", {"Authorization": "Bearer k"}).request()
    head, _, body = request.partition(b"\r\n\r\n")

    assert body == b"{}"
    assert head.split(b"\r\n") == [
        b"POST /fn/tiny HTTP/1.1",
        b"Host: 127.0.0.1:8080",
        b"Content-Type: application/json",
        b"Authorization: Bearer k",
        b"Content-Length: 2",
    ]
    assert b"octet" in Call(1, "/", b"", {"Content-Type": "application/octet-stream"}).request()


def test_figures_survive_serialisation() -> None:
    """All figures survive serialisation, including the times of single answers."""
    assert Loaded.from_json(json.dumps(asdict(LOADED))) == LOADED
    assert LOADED.per_s == 50.0


@pytest.mark.parametrize("line", ["", "1", "{}", '{"requests": 1}', '{"what": 1}'])
def test_other_output_is_refused(line: str) -> None:
    """A loader's malformed output is an error: a failed loader must not count as a fast one."""
    with pytest.raises(ValueError, match=r"expected|Expecting"):
        Loaded.from_json(line)


def test_a_load_takes_time() -> None:
    """A duration of zero is refused, because it would give infinite rates."""
    with pytest.raises(ValueError, match=r"expected answers and seconds above 0, got 5 in 0"):
        Loaded(5, 0.0, 1.0, 1.0, 0)
