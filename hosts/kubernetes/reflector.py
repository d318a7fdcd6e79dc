"""A reflector of the objects of one kind: it lists them, then follows their changes by a watch."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Generic

import structlog

from hosts.kubernetes.client import KubernetesClient, decoded, object_of
from hosts.kubernetes.errors import EXPIRED, ApiAway, ApiRefused, WatchLost
from hosts.kubernetes.list_watch import ListWatch, Notice
from hosts.kubernetes.objects import Kind, Object, ObjectT, Status, WatchEvent

log = structlog.get_logger()


class Reflector(Generic[ObjectT]):
    """Keeps its owner informed of the objects of a kind. Event loop thread only."""

    def __init__(  # noqa: PLR0913 - what is asked, and all that the owner is told
        self,
        client: KubernetesClient,
        kind: Kind[ObjectT],
        selector: str,
        on_synced: Callable[[Mapping[str, ObjectT]], None],
        on_changed: Callable[[ObjectT], None],
        on_removed: Callable[[ObjectT], None],
        on_away: Callable[[str], None],
        on_back: Callable[[], None],
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`selector`: of labels, "" for all objects. `chance` returns a number between 0 and 1, by
        which waits differ. The others are called in the loop of `run` in the order of events, and
        must not raise:

        - `on_synced` with all objects by name, after each list: the first one, and whenever events
          may have been missed. What is not among them is gone, and its last object is not known.
        - `on_changed` with an object that was added or changed.
        - `on_removed` with an object that was deleted, as it was last.
        - `on_away` with the reason when the API server gives no usable answer, or refuses; once
          until `on_back`, which is called before the answer itself is told.
        """
        self._client, self._kind, self._selector = client, kind, selector
        self._on_synced, self._on_changed, self._on_removed = on_synced, on_changed, on_removed
        self._on_away, self._on_back = on_away, on_back
        self._state = ListWatch(chance)
        self._watching: asyncio.Timeout | None = None

    async def run(self) -> None:
        """List and watch until cancelled."""
        clock, state = asyncio.get_running_loop().time, self._state
        while True:
            step = state.next()
            await asyncio.sleep(step.wait_s)
            state.begun(clock())
            try:
                if step.version:
                    await self._watch(step.version)
                else:
                    await self._list()
            except (ApiAway, ApiRefused) as error:
                if isinstance(error, WatchLost) or _is_expired(error):
                    state.outdated()
                self._tell(state.failed(clock()), str(error))

    def resync(self) -> None:
        """List again, for a caller that misses an event: RESYNC_S after the begin of the last list
        or later. Does nothing between two watches: what comes next shows the event."""
        if self._watching is not None:
            now_s = asyncio.get_running_loop().time()
            self._watching.reschedule(self._state.resync_s(now_s))

    async def _list(self) -> None:
        objects, version = await self._client.list(self._kind, self._selector)
        self._tell(self._state.listed(version))
        self._on_synced(objects)

    async def _watch(self, version: str) -> None:
        state = self._state
        try:
            async with (
                asyncio.timeout(None) as self._watching,
                self._client.watch(self._kind, version, self._selector) as events,
            ):
                self._tell(state.opened())
                async for event in events:
                    self._apply(event)
            state.ended(asyncio.get_running_loop().time())
        except TimeoutError:
            state.interrupted()
        finally:
            self._watching = None

    def _apply(self, event: WatchEvent) -> None:
        """Tell a change. Raises ApiRefused for an ERROR, and ApiAway for an object that is none:
        the version is forgotten then."""
        try:
            if event.type == "ERROR":
                status = decoded(Status, event.object)
                raise ApiRefused(status.code, status.reason, status.message)
            if event.type == "BOOKMARK":
                # All but the resource version may be missing.
                self._state.advanced(decoded(Object, event.object).metadata.resource_version)
                return
            found = object_of(self._kind, event.object)
        except (ApiAway, ApiRefused):
            self._state.outdated()
            raise
        self._state.advanced(found.metadata.resource_version)
        if event.type == "DELETED":
            self._on_removed(found)
        else:
            self._on_changed(found)

    def _tell(self, notice: Notice | None, reason: str = "") -> None:
        if notice is Notice.AWAY:
            log.warning("API server away", kind=self._kind.name, reason=reason)
            self._on_away(reason)
        elif notice is Notice.BACK:
            log.info("API server back", kind=self._kind.name)
            self._on_back()


def _is_expired(error: Exception) -> bool:
    return isinstance(error, ApiRefused) and error.code == EXPIRED
