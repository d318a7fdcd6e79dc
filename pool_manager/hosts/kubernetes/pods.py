"""The Pods of this server in a cluster, on all of its nodes, as the API server has them.

One `Reflector` feeds the table; drivers of single nodes wait for what happens to a Pod, and are
told of its end. A Pod whose replica this server does not know is one that it has asked for without
seeing the answer, or of a record that is gone: it is deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import structlog

from hosts.kubernetes.client import KubernetesClient
from hosts.kubernetes.errors import NOT_FOUND, ApiAway, ApiRefused
from hosts.kubernetes.objects import PODS, REPLICA_LABEL, Pod
from hosts.kubernetes.reflector import Reflector
from pool_manager.driver import EngineLosses, Exits
from pool_manager.hosts.kubernetes.ends import PodFate, first_seen, node_of
from pool_manager.hosts.kubernetes.pod_specs import PodOwner, selector
from pool_manager.subscribers import Subscribers
from registry.errors import EngineDown
from registry.tasks import Tasks

log = structlog.get_logger()

NOT_LISTED: Final = "the API server has not listed the Pods yet"


class Pods:
    """The table of Pods by the ids of their replicas.

    Call `run` once. The methods that begin with `on_` are for the reflector.
    """

    def __init__(
        self,
        client: KubernetesClient,
        owner: PodOwner,
        is_known: Callable[[str], bool],
        tasks: Tasks,
        clock: Callable[[], float],
    ) -> None:
        """`is_known(id)`: whether this server has a record of a replica. `clock` returns monotonic
        seconds."""
        self.exits = Exits()
        """Those of all Pods; once for each."""
        self.engine_losses = EngineLosses()
        """The API server gives no answers."""
        self.told = Subscribers[[]]()
        """Notified when the Pods were listed, and when the API server answers no more, or again."""
        self.why_away = NOT_LISTED
        """Why it gives none, "" while it does."""
        self.can_resize = True
        """Whether it knows `pods/resize`, as far as that was tried."""
        self.is_listed = asyncio.Event()
        """Set once it has listed the Pods."""
        self.synced_s: float | None = None
        """When it has listed the Pods first, None while it has not."""
        self._client, self._is_known = client, is_known
        self._tasks, self._clock = tasks, clock
        self._fates: dict[str, PodFate] = {}
        self._waiters: dict[str, set[asyncio.Event]] = {}
        self._unseen: dict[str, bool] = {}
        """Pods of which only the answer to their creation is known: whether a list lacked them. It
        may have been made before them."""
        self._swept: set[str] = set()
        """The uids of Pods of unknown replicas whose deletion is under way."""
        self._reflector = Reflector(
            client,
            PODS,
            selector(owner),
            self.on_synced,
            self.on_changed,
            self.on_removed,
            self.on_away,
            self.on_back,
        )

    async def run(self) -> None:
        """List and follow the Pods until cancelled."""
        await self._reflector.run()

    # What is known

    def fate(self, id: str) -> PodFate | None:
        """Return what is known of a replica's Pod, None for nothing."""
        return self._fates.get(id)

    def on_node(self, node: str) -> Iterator[tuple[str, PodFate]]:
        """Yield the Pods that are on a node, or are to be, by the ids of their replicas."""
        yield from [(id, one) for id, one in self._fates.items() if node_of(one.pod) == node]

    def check(self) -> None:
        """Raise EngineDown while the API server gives no answers."""
        if self.why_away:
            raise EngineDown(f"the API server of the cluster does not answer: {self.why_away}")

    async def wait(
        self, id: str, is_met: Callable[[PodFate | None], bool], limit_s: float
    ) -> PodFate | None:
        """Return what is known of a Pod once `is_met` says so, or `limit_s` have passed."""
        news = asyncio.Event()
        waiters = self._waiters.setdefault(id, set())
        waiters.add(news)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    while not is_met(self._fates.get(id)):
                        news.clear()
                        await news.wait()
        finally:
            waiters.discard(news)
            if not waiters:
                self._waiters.pop(id, None)
        return self._fates.get(id)

    # What this server does

    def made(self, id: str, pod: Pod) -> None:
        """Record a Pod as the API server has answered its creation; a watch may have been faster,
        and knows more."""
        if id not in self._fates:
            self._unseen[id] = False
            self._set(id, first_seen(pod))

    def asked(self, id: str) -> PodFate | None:
        """Record that this server asks for the deletion of a Pod; return what is known of it."""
        if fate := self._fates.get(id):
            self._fates[id] = fate.asked()
        return self._fates.get(id)

    def refused(self, id: str, why: str) -> None:
        """Record that the start of a replica is given up for want of a place. Its end is not
        reported: whoever starts it knows."""
        if fate := self._fates.get(id):
            self._fates[id] = fate.refused(why)

    def forget(self, id: str) -> None:
        """Drop a Pod whose replica is released."""
        if fate := self._fates.pop(id, None):
            self._swept.discard(fate.id)
        self._unseen.pop(id, None)

    def look_again(self) -> None:
        """List the Pods again soon: one is not there that no event has removed."""
        self._reflector.resync()

    def sweep(self) -> None:
        """Delete the Pods whose replicas this server has no record of any more."""
        for id, fate in list(self._fates.items()):
            if fate.gone_s is None:
                self._sweep(id, fate.pod)

    async def delete_all(self) -> None:
        """Delete every Pod that is known. Raises ApiAway, ApiRefused."""
        for fate in [one for one in self._fates.values() if one.gone_s is None]:
            try:
                await self._client.delete(PODS, fate.pod.metadata.name, uid=fate.id)
            except ApiRefused as error:
                if error.code != NOT_FOUND:
                    raise

    # What the reflector reports

    def on_synced(self, pods: Mapping[str, Pod]) -> None:
        """Take over all Pods, by their names. One that is missing is gone, and its last object was
        not seen."""
        now = self._clock()
        if self.synced_s is None:
            self.synced_s = now
            self.is_listed.set()
        # Never reported to be away by the reflector, which begins with its first list.
        self.why_away = ""
        there = {_replica_of(pod): pod for pod in pods.values()}
        for id in self._fates.keys() - there.keys():
            fate = self._fates[id]
            if self._unseen.get(id) is False:
                self._unseen[id] = True
            elif fate.gone_s is None:
                self._set(id, fate.removed(None, now))
            if fate.gone_s is not None and not self._is_known(id):
                self.forget(id)
        for pod in pods.values():
            self.on_changed(pod)
        self._wake()
        self.told.notify()

    def on_changed(self, pod: Pod) -> None:
        """Take over an object of a Pod."""
        id = _replica_of(pod)
        if not id:
            return
        self._unseen.pop(id, None)
        fate = self._fates.get(id)
        if fate is not None and fate.id == pod.metadata.uid:
            self._set(id, fate.seen(pod))
        elif fate is None:
            self._set(id, first_seen(pod))
        # Any other Pod of the replica is somebody's copy, as a name is used once: it says nothing
        # of what the first one has left running.
        self._sweep(id, pod)

    def on_removed(self, last: Pod) -> None:
        """Take over the last object of a Pod, which is gone."""
        id = _replica_of(last)
        fate = self._fates.get(id)
        if fate is not None and fate.id == last.metadata.uid:
            self._set(id, fate.removed(last, self._clock()))
            if not self._is_known(id):
                self.forget(id)

    def on_away(self, reason: str) -> None:
        """Record that the API server gives no answers."""
        self.why_away = reason
        self._wake()
        self.engine_losses.notify(reason)
        self.told.notify()

    def on_back(self) -> None:
        """Record that it answers again."""
        self.why_away = "" if self.synced_s is not None else NOT_LISTED
        self._wake()
        self.told.notify()

    def _set(self, id: str, fate: PodFate) -> None:
        before = self._fates.get(id)
        self._fates[id] = fate
        for news in self._waiters.get(id, ()):
            news.set()
        told = before is not None and before.id == fate.id and before.end is not None
        if fate.end is not None and not told:
            self.exits.notify(id, fate.end)

    def _wake(self) -> None:
        for waiters in self._waiters.values():
            for news in waiters:
                news.set()

    def _sweep(self, id: str, pod: Pod) -> None:
        """Delete a Pod of a replica that this server has no record of."""
        uid = pod.metadata.uid
        if uid in self._swept or self._is_known(id):
            return
        self._swept.add(uid)
        self._tasks.spawn(f"sweep {pod.metadata.name}", self._delete_stray(id, pod))

    async def _delete_stray(self, id: str, pod: Pod) -> None:
        name = pod.metadata.name
        log.warning("a Pod of an unknown replica is deleted", pod=name, replica=id)
        self.asked(id)
        try:
            await self._client.delete(PODS, name, uid=pod.metadata.uid)
        except ApiRefused as error:
            log.info("a Pod could not be deleted", pod=name, reason=str(error))
        except ApiAway:
            self._swept.discard(pod.metadata.uid)  # the next list finds it again


def _replica_of(pod: Pod) -> str:
    return pod.metadata.labels.get(REPLICA_LABEL, "")
