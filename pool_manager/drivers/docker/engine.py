"""The engine's API: every call with a time limit, off the event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeVar

import docker

from pool_manager.drivers.docker.failures import ENGINE_ERRORS, translate

T = TypeVar("T")

CALL_S = 30.0
START_S = 60.0
"""Time limits of one call; a start waits for others that the engine makes at the same time."""
KNOCK_S = 5.0
CALLS_AT_ONCE = 8


class Engine:
    """The engine at `url` ("unix:///var/run/docker.sock").

    Starts have threads of their own, as many as starts may be made at once, so that nothing
    quick waits behind them. Every method raises `DriverError`, or `EngineDown`.
    """

    def __init__(self, url: str, starts_at_once: int) -> None:
        """Connects. Raises EngineDown."""
        self.url = url
        self._client = connect(url, CALL_S)
        self._starter = connect(url, START_S)
        self._starts: Executor = ThreadPoolExecutor(starts_at_once, "docker start")
        self._calls: Executor = ThreadPoolExecutor(CALLS_AT_ONCE, "docker")

    async def call(self, doing: str, work: Callable[[docker.APIClient], T]) -> T:
        """What `work` gives; `doing` names it in errors, as "remove a container"."""
        return await _run(self._calls, doing, work, self._client)

    async def start(self, doing: str, work: Callable[[docker.APIClient], T]) -> T:
        """As `call`, for what starts containers."""
        return await _run(self._starts, doing, work, self._starter)

    def close(self) -> None:
        """Give the threads back; calls in progress end by themselves."""
        for executor in (self._starts, self._calls):
            executor.shutdown(wait=False, cancel_futures=True)
        for client in (self._client, self._starter):
            client.close()


def connect(url: str, timeout_s: float) -> docker.APIClient:
    """A client that speaks the newest version both know. Blocking. Raises EngineDown."""
    doing = f"reach the engine at {url}"
    try:
        _knock(url)
        return docker.APIClient(
            base_url=url, version="auto", timeout=timeout_s, max_pool_size=CALLS_AT_ONCE
        )
    except (OSError, *ENGINE_ERRORS) as error:
        raise translate(error, doing) from error


def _knock(url: str) -> None:
    """Raises OSError where nobody listens: docker-py would not close the socket it tried with."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(KNOCK_S)
        sock.connect(url.removeprefix("unix://"))


async def _run(
    executor: Executor, doing: str, work: Callable[[Any], T], client: docker.APIClient
) -> T:
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, work, client)
    except ENGINE_ERRORS as error:
        raise translate(error, doing) from error
