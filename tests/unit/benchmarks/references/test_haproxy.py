"""Tests of HAProxy's configuration."""

from __future__ import annotations

from benchmarks.references.haproxy import configuration


def test_it_listens_on_loopback_and_holds_no_chunks_back() -> None:
    """HAProxy takes connections of this machine only, sends to the upstream, and passes small
    chunks on at once."""
    lines = [line.strip() for line in configuration(8001, 8002).splitlines()]

    assert "bind 127.0.0.1:8001" in lines
    assert "server one 127.0.0.1:8002" in lines
    assert "option http-no-delay" in lines


def test_its_limit_is_the_one_that_is_asked_for() -> None:
    """HAProxy gives up on silent clients and servers after the seconds that are given."""
    lines = [line.strip() for line in configuration(8001, 8002, 2.5).splitlines()]

    assert {"timeout client 2500ms", "timeout server 2500ms"} <= set(lines)
