"""Tests of the listening socket."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from gateway.http.app import Site

if TYPE_CHECKING:
    from tests.unit.gateway.http.conftest import Front


async def test_a_port_in_use_is_said_at_once(front: Front) -> None:
    """OSError, and nothing is left open."""
    taken = urlsplit(front.url).port or 0
    settings = front.gateway.invoker.settings
    invoker = front.gateway.invoker._replace(
        settings=type(settings)(port=taken, fast_front=settings.fast_front)
    )
    runner = web.AppRunner(web.Application())
    await runner.setup()
    site = Site(invoker, front.gateway.writer, runner)
    with pytest.raises(OSError, match="in use"):
        await site.start()
    await site.close()
    await runner.cleanup()


async def test_a_stopped_site_lets_its_connections_finish(front: Front) -> None:
    """Those that are open are served on, new ones are refused."""
    runner = web.AppRunner(web.Application())
    await runner.setup()
    site = Site(front.gateway.invoker, front.gateway.writer, runner)
    port = await site.start()
    with socket.create_connection(("127.0.0.1", port)):
        await site.stop()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port)).close()
    await site.close()
    await runner.cleanup()
