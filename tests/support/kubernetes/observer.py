"""What a test sees of the Pods of a cluster: every event of one watch, and waits for some state."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import msgspec

from hosts.kubernetes.client import KubernetesClient
from hosts.kubernetes.objects import PODS, Kind, Pod
from tests.support.kubernetes.store import Json

PATIENCE_S: Final = 60.0


class Observer:
    """The events of a watch in their order. Only one that does not end is of use."""

    def __init__(self, client: KubernetesClient, kind: Kind[Any], version: str) -> None:
        self.events: list[tuple[str, Json]] = []
        """Type and object of each event, bookmarks apart."""
        self.bookmarks: list[Json] = []
        self._client, self._kind, self._version = client, kind, version
        self._moved = asyncio.Event()
        self._error: BaseException | None = None

    async def run(self) -> None:
        """Read the watch until it ends."""
        try:
            async with self._client.watch(self._kind, self._version) as events:
                async for event in events:
                    object = json.loads(bytes(event.object))
                    if event.type == "BOOKMARK":
                        self.bookmarks.append(object)
                    else:
                        self.events.append((event.type, object))
                    self._moved.set()
        except Exception as error:  # noqa: BLE001 - raised where the test waits
            self._error = error
            self._moved.set()

    async def until(self, is_met: Callable[[Observer], object]) -> Any:
        """Wait until `is_met` returns something true, and return that."""
        async with asyncio.timeout(PATIENCE_S):
            while not (found := is_met(self)):
                if self._error is not None:
                    raise self._error
                self._moved.clear()
                await self._moved.wait()
        return found

    def of(self, name: str) -> list[tuple[str, Json]]:
        """Return the events of one object."""
        return [one for one in self.events if one[1]["metadata"]["name"] == name]

    async def pod(self, name: str, is_met: Callable[[Pod], object]) -> Pod:
        """Wait until a Pod is as wanted, and return it."""

        def look(_: Observer) -> Pod | None:
            found = self.of(name)
            if not found or found[-1][0] == "DELETED":
                return None
            pod = msgspec.convert(found[-1][1], Pod)
            return pod if is_met(pod) else None

        made: Pod = await self.until(look)
        return made

    async def running(self, name: str) -> Pod:
        """Wait until a Pod runs."""
        return await self.pod(name, lambda pod: pod.status.phase == "Running")

    async def ended(self, name: str) -> Pod:
        """Wait until the first container of a Pod has ended."""
        return await self.pod(name, lambda pod: _ended(pod))

    async def gone(self, name: str) -> Pod:
        """Wait until a Pod is deleted, and return its last object."""

        def look(_: Observer) -> Json | None:
            found = self.of(name)
            return found[-1][1] if found and found[-1][0] == "DELETED" else None

        return msgspec.convert(await self.until(look), Pod)


def _ended(pod: Pod) -> bool:
    statuses = pod.status.container_statuses
    return bool(statuses) and statuses[0].state.terminated is not None


@asynccontextmanager
async def observing(
    client: KubernetesClient, kind: Kind[Any] = PODS
) -> AsyncGenerator[Observer, None]:
    """Watch the objects of a kind from now on."""
    _, version = await client.list(kind)
    observer = Observer(client, kind, version)
    task = asyncio.create_task(observer.run())
    try:
        yield observer
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
