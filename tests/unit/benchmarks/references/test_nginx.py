"""Configuration of the reference proxy."""

from __future__ import annotations

from pathlib import Path

from benchmarks.references.nginx import configuration


def test_the_proxy_is_as_fast_as_it_can_be() -> None:
    """One worker, no log, HTTP/1.1 with 64 kept-alive upstream connections."""
    text = configuration(Path("/tmp/fn-nginx"), 8001, 8002)

    for line in (
        "worker_processes 1;",
        "access_log off;",
        "listen 127.0.0.1:8001;",
        "server 127.0.0.1:8002;",
        "keepalive 64;",
        "proxy_http_version 1.1;",
        'proxy_set_header Connection "";',
        "client_max_body_size 64m;",
    ):
        assert line in text


def test_it_writes_into_its_folder_only() -> None:
    """The configuration uses no path of the machine's own nginx."""
    text = configuration(Path("/tmp/fn-nginx"), 8001, 8002)
    paths = [word.rstrip(";") for word in text.split() if word.startswith("/") and word != "/"]

    assert len(paths) == 7
    assert all(path.startswith("/tmp/fn-nginx/") for path in paths)
    assert text.count("{") == text.count("}")


def test_bodies_are_passed_on_as_they_arrive_only_for_streams() -> None:
    """nginx buffers bodies, except where streams are compared."""
    folder = Path("/tmp/fn-nginx")

    assert "buffering off" not in configuration(folder, 8001, 8002)
    text = configuration(folder, 8001, 8002, streams=True)
    assert "proxy_buffering off; proxy_request_buffering off;" in text
