"""A cold start that takes longer than the proxies in front of the gateway wait for a byte."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from benchmarks.references import haproxy as haproxies
from benchmarks.references import nginx as nginxes
from benchmarks.references import servers
from tests.support import waiting
from tests.support.foreign_servers import missing
from tests.support.process_server import server_process
from tests.support.waiting import TOKENS, Scene

IDLE_S, START_S, COMMENT_AFTER_S, PAUSE_S = 3.0, 8.0, 1.0, 4.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The answers of one cold start through HAProxy and nginx."""
    for name, path in (("haproxy", haproxies.program()), ("nginx", nginxes.program())):
        if path is None:
            missing(name)
    folder = tmp_path_factory.mktemp("waiting")
    with (
        server_process(folder / "data", environment={"FN_STANDBYS": "0"}) as server,
        servers.haproxy(_port(server.url), idle_s=IDLE_S) as first,
        servers.nginx(_port(server.url), idle_s=IDLE_S) as second,
    ):
        waiting.deploy(server, folder, START_S, COMMENT_AFTER_S)
        ports = (f"http://127.0.0.1:{one.port}" for one in (first, second))
        yield asyncio.run(waiting.cold_start(*ports, server.headers, PAUSE_S))
        assert list(server.complaints) == []


def test_a_stream_is_whole_behind_haproxy(scene: Scene) -> None:
    """A streaming client waits for longer than HAProxy does for a byte, and gets its whole answer
    after waiting comments."""
    heard = scene.stream

    assert (heard.status, heard.is_whole, heard.tokens) == (200, True, TOKENS)
    assert heard.events[-1] == b"[DONE]"
    assert heard.arrived_s[-1] >= START_S > IDLE_S > heard.silence_s
    assert heard.comments >= (START_S - COMMENT_AFTER_S) // IDLE_S


def test_comments_pass_nginx_that_buffers(scene: Scene) -> None:
    """nginx with its default buffering passes each comment on at once."""
    heard = scene.buffered

    assert (heard.status, heard.is_whole, heard.tokens) == (200, True, TOKENS)
    assert heard.silence_s < IDLE_S
    assert heard.comments >= (START_S - COMMENT_AFTER_S) // IDLE_S


def test_messages_get_pings(scene: Scene) -> None:
    """A stream of /v1/messages is kept by events `ping`, as its clients expect them."""
    heard = scene.messages

    assert (heard.status, heard.is_whole) == (200, True)
    assert heard.comments == 0
    assert heard.body.startswith(b'event: ping\ndata: {"type":"ping"}\n\n')


def test_a_request_without_stream_gets_the_proxys_answer(scene: Scene) -> None:
    """An answer that is no stream is held without a byte: the proxy gives up and says so."""
    heard = scene.whole

    assert heard.status == 504
    assert heard.arrived_s[-1] < START_S


def test_a_pause_within_a_stream_is_bridged(scene: Scene) -> None:
    """A server that thinks between two tokens for longer than HAProxy waits loses no client."""
    heard = scene.paused

    assert (heard.status, heard.is_whole, heard.tokens) == (200, True, TOKENS)
    assert heard.arrived_s[-1] >= TOKENS * PAUSE_S
    assert heard.comments >= TOKENS


def test_a_pause_within_a_stream_is_bridged_through_nginx(scene: Scene) -> None:
    """Tokens and comments of a warm stream pass nginx with its default buffering at once."""
    heard = scene.paused_buffered

    assert (heard.status, heard.is_whole, heard.tokens) == (200, True, TOKENS)
    assert heard.arrived_s[0] < PAUSE_S
    assert heard.silence_s < IDLE_S
    assert heard.comments >= TOKENS


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])
