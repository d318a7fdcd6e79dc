"""Stand-in hosts in the list of a server: adding them, and waiting for what the server shows."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from tests.support.caller import Caller
from tests.support.fleet.host import Host

Shown = dict[str, Any]
UNTIL_S = 90.0
LOOK_S = 0.1
HTTP_OK = 200


def settings(host: Host, **changes: Any) -> Shown:
    """Return the body of the request that adds a host."""
    return {
        "name": host.name,
        "address": host.address,
        "identity": str(host.identity),
        "host_key": host.host_key,
        **changes,
    }


async def join(caller: Caller, *hosts: Host, **changes: Any) -> None:
    """Add hosts to a server; wait until they are up with their agents."""
    for host in hosts:
        answer = await caller.admin("POST", "/hosts", settings(host, **changes))
        assert answer.status < 300, answer.body
    for host in hosts:
        await until_host(caller, host.name, is_host_ready)


def is_host_ready(shown: Shown) -> bool:
    """Return whether a host is up, and its agent reports."""
    return bool(shown.get("state") == "up" and not shown["agent"])


async def hosts(caller: Caller) -> dict[str, Shown]:
    """Return the hosts that a server shows, by name."""
    return {one["name"]: one for one in await items(caller, "/hosts")}


async def until_host(caller: Caller, name: str, holds: Callable[[Shown], bool]) -> Shown:
    """Wait until a host is shown as expected; {} is one that is not in the list."""
    shown: Shown = {}

    async def is_so() -> bool:
        nonlocal shown
        shown = (await hosts(caller)).get(name, {})
        return holds(shown)

    try:
        await _until(is_so)
    except TimeoutError:
        raise AssertionError(f"{name} after {UNTIL_S:g} s: {shown}") from None
    return shown


async def items(caller: Caller, path: str) -> list[Shown]:
    """Return a list of the admin API; wait while the server starts or stops."""
    found: list[Shown] = []

    async def is_answered() -> bool:
        with contextlib.suppress(OSError, aiohttp.ClientError):
            answer = await caller.admin("GET", path)
            found[:] = answer.json()["items"] if answer.status == HTTP_OK else []
            return answer.status == HTTP_OK
        return False

    await _until(is_answered)
    return found


async def _until(asks: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(UNTIL_S):
        while not await asks():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), LOOK_S)


async def leave(caller: Caller, *hosts: Host) -> None:
    """Remove hosts from a server; wait until they are gone."""
    for host in hosts:
        answer = await caller.admin("DELETE", f"/hosts/{host.name}")
        assert answer.status < 300, answer.body
    for host in hosts:
        await until_host(caller, host.name, lambda shown: not shown)
