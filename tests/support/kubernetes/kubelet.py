"""A kubelet of the double: it makes Pods of its node real, and says how they fare."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from tests.support.kubernetes import claims
from tests.support.kubernetes.admission import FINAL
from tests.support.kubernetes.conditions import condition, set_condition
from tests.support.kubernetes.errors import Refused
from tests.support.kubernetes.pace import Pace
from tests.support.kubernetes.pod_worker import PodWorker
from tests.support.kubernetes.quantities import requested
from tests.support.kubernetes.runtime import Image, Runtime
from tests.support.kubernetes.statuses import Stage
from tests.support.kubernetes.store import NODES, PODS, Change, Json, Store
from tests.support.kubernetes.volumes import Volumes

GPU = "nvidia.com/gpu"
READY: Final = {
    "MemoryPressure": (
        *("False", "KubeletHasSufficientMemory"),
        "kubelet has sufficient memory available",
    ),
    "DiskPressure": ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    "Ready": ("True", "KubeletReady", "kubelet is posting ready status"),
}
"""Status, reason and message of the conditions of a node that is ready."""


class Kubelet:
    """The kubelet of one node. It dies and comes again (`kill`, `restart`) while containers run
    on; it is cut off and comes back (`cut`, `heal`)."""

    def __init__(
        self,
        name: str,
        address: str,
        runtime: Runtime,
        store: Store,
        volumes: Volumes,
        pace: Pace,
        images: Callable[[str], Image | None],
        finalize: Callable[[Json], object],
    ) -> None:
        """`finalize` removes a Pod that has ended from the API."""
        self.name, self.address, self.runtime = name, address, runtime
        self.store, self.volumes, self.pace = store, volumes, pace
        self.images, self.finalize = images, finalize
        self.is_alive = True
        self.is_cut = False
        self.why_not_ready = ""
        """What it says if it is not ready, such as `container runtime is down`."""
        self.online = asyncio.Event()
        """Set while it runs and reaches the API server."""
        self.online.set()
        self.gpus: list[str] = []
        """UUIDs of the devices of its plugin."""
        self._workers: dict[str, PodWorker] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._end = store.watch(self._on_change)

    def _on_change(self, change: Change) -> None:
        if change.resource == PODS and change.object["spec"].get("nodeName") == self.name:
            self.look()

    def look(self) -> None:
        """Begin to work on Pods that are new here, and wake the workers of the others."""
        if not self.online.is_set():
            return
        for pod in self.store.every(PODS):
            uid = pod["metadata"]["uid"]
            is_here = pod["spec"].get("nodeName") == self.name
            if is_here and uid not in self._workers and pod["status"]["phase"] not in FINAL:
                self._work(pod)
        for worker in self._workers.values():
            worker.wake.set()

    def _work(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        worker = self._workers[uid] = PodWorker(self, pod)
        task = asyncio.create_task(worker.run(), name=f"pod {pod['metadata']['name']}")
        self._tasks.add(task)

        def done(task: asyncio.Task[Any]) -> None:
            self._tasks.discard(task)
            if self._workers.get(uid) is worker:
                del self._workers[uid]
            if not task.cancelled() and (error := task.exception()):
                asyncio.get_running_loop().call_exception_handler(
                    {"message": f"the double's worker of {uid} failed", "exception": error}
                )

        task.add_done_callback(done)

    def why_not_admitted(self, pod: Json) -> str:
        """Return why the node cannot have a Pod that was bound to it, "" if it can."""
        wanted = requested(pod)[GPU]
        if not wanted:
            return ""
        free = len(self.free_gpus())
        if wanted <= free:
            return ""
        said = f"Allocate failed due to requested number of devices unavailable for {GPU}."
        return f"{said} Requested: {wanted}, Available: {free}, which is unexpected"

    def free_gpus(self) -> list[str]:
        """Return the devices of the plugin that no Pod here has; one in a final phase has none."""
        final = {uid for uid, one in self._workers.items() if one.known.stage == Stage.FINAL}
        used = [
            one
            for uid, sandbox in self.runtime.sandboxes.items()
            if uid not in final
            for one in sandbox.devices.get(GPU, [])
        ]
        used += [
            one
            for uid, worker in self._workers.items()
            if uid not in self.runtime.sandboxes and uid not in final
            for one in worker.known.devices.get(GPU, [])
        ]
        return [one for one in self.gpus if one not in used]

    def claimed(self, pod: Json) -> list[str]:
        """Return the UUIDs of devices that a Pod has by claims."""
        return claims.uuids(self.store, pod)

    def evict(self, pod: Json, why: str) -> None:
        """End a Pod for want of a resource of the node."""
        self._workers[pod["metadata"]["uid"]].evict(why)

    def log(self, pod: Json, container: str) -> bytes:
        """Return the output of a container. Raises Refused."""
        name = pod["metadata"]["name"]
        if not self.online.is_set():
            path = f"containerLogs/{pod['metadata']['namespace']}/{name}/{container}"
            get = f'Get "https://{self.address}:10250/{path}"'
            raise Refused(500, "", f"{get}: dial tcp {self.address}:10250: i/o timeout")
        sandbox = self.runtime.sandboxes.get(pod["metadata"]["uid"])
        found = sandbox.containers.get(container) if sandbox else None
        if found is None:
            worker = self._workers.get(pod["metadata"]["uid"])
            reason = (worker.known.waiting.get(container) if worker else None) or (
                "ContainerCreating",
            )
            text = f'container "{container}" in pod "{name}" is waiting to start: {reason[0]}'
            raise Refused(400, "BadRequest", text)
        return found.log.read_bytes() if found.log.exists() else b""

    async def kill(self) -> None:
        """End the kubelet as KILL does: containers run on, and nothing is said of them."""
        self.is_alive = False
        self._follow()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._workers.clear()

    async def restart(self) -> None:
        """Start it again: it finds what runs."""
        self.is_alive = True
        self._follow()
        await self._sweep()
        self.look()

    async def cut(self) -> None:
        """Cut the node off: neither it nor its Pods reach anything."""
        self.is_cut = True
        self._follow()
        await asyncio.to_thread(self.runtime.cut, is_cut=True)

    async def heal(self) -> None:
        """End the cut."""
        await asyncio.to_thread(self.runtime.cut, is_cut=False)
        self.is_cut = False
        self._follow()
        await self._sweep()
        self.look()

    def _follow(self) -> None:
        self.online.set() if self.is_alive and not self.is_cut else self.online.clear()

    async def _sweep(self) -> None:
        """End the Pods of the node that the API does not have any more, or that are other ones."""
        there = {one["metadata"]["uid"] for one in self.store.every(PODS)}
        for uid in list(self.runtime.sandboxes):
            if uid not in there and uid not in self._workers:
                await self.runtime.remove(uid)

    def beat(self) -> bool:
        """Say how the node is, if it can be said; return whether it was."""
        node = self.store.get(NODES, self.name)
        if node is None or not self.online.is_set():
            return False

        said = dict(READY)
        if self.why_not_ready:
            said["Ready"] = "False", "KubeletNotReady", self.why_not_ready

        def change(one: Json) -> None:
            for type, (status, reason, message) in said.items():
                set_condition(one, condition(type, status, self.store.now(), reason, message))

        self.store.change(NODES, node, change)
        return True

    async def close(self) -> None:
        """End it with all that runs."""
        self._end()
        await self.kill()
        await self.runtime.close()
