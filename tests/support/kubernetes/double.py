"""A Kubernetes cluster of one process: API server, scheduler, controllers and kubelets.

Pods are real processes in network and mount namespaces of their own. What it does was recorded with
a real cluster: `tests/contract/test_kubernetes_double.py` compares both. Needs root.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from tests.support.kubernetes import admission, claims
from tests.support.kubernetes.admission import ENFORCE
from tests.support.kubernetes.api import Api
from tests.support.kubernetes.certificate import context_of
from tests.support.kubernetes.controllers import Controllers, disrupt
from tests.support.kubernetes.kubelet import Kubelet
from tests.support.kubernetes.memory import MemoryGroup
from tests.support.kubernetes.network import Network
from tests.support.kubernetes.pace import Pace, elapse
from tests.support.kubernetes.runtime import Container, Image, Runtime
from tests.support.kubernetes.scheduler import Scheduler
from tests.support.kubernetes.store import (
    ACCOUNTS,
    CLASSES,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITIES,
    SLICES,
    Json,
    Store,
)
from tests.support.kubernetes.tokens import Tokens
from tests.support.kubernetes.volumes import Volumes

NAMESPACE: Final = "fngate"
SERVER_ACCOUNT: Final = "fngate"
REPLICA_ACCOUNT: Final = "fngate-replica"
DRIVER: Final = "gpu.nvidia.com"
"""Name of the driver of devices by claims, and of its class."""
IMAGE: Final = "registry.example/fngate-runtime:1"
CUDA_IMAGE: Final = "registry.example/fngate-runtime-cuda:1"
"""Images of the runtime, which the double has."""
RUNTIME: Final = Image(("python3", "-I", "-u", "-m", "runtime_image"), user="10001")


@dataclass(frozen=True)
class NodePlan:
    """A node as a cluster begins with it."""

    name: str
    cpu: str = "4"
    memory: str = "8Gi"
    plugin_gpus: int = 0
    """GPUs of a device plugin, `GPU-NODE-0` and so on."""
    claimed_gpus: int = 0
    """GPUs that a driver has published, with the same UUIDs."""
    gpu_memory: str = "24Gi"
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Json] = ()


class Double:
    """The cluster. `folder` has the files of the server's service account, `address` is this
    machine's in the network of Pods, where servers have to listen for replicas."""

    def __init__(
        self,
        nodes: Sequence[NodePlan] = (NodePlan("n1"), NodePlan("n2")),
        *,
        pace: Pace = Pace(),  # noqa: B008 - frozen
        images: Mapping[str, Image] | None = None,
        root: Path | None = None,
    ) -> None:
        """`images` are found by their references, beside IMAGE. `root` is a folder that is not
        there yet; other users have to be able to enter it."""
        self.store, self.pace = Store(), pace
        self.tokens = Tokens(self.store)
        self.images: dict[str, Image] = {IMAGE: RUNTIME, CUDA_IMAGE: RUNTIME, **(images or {})}
        self.api = Api(self.store, self.tokens, pace, self)
        self.faults = self.api.faults
        self.kubelets: dict[str, Kubelet] = {}
        self._root = root or Path(tempfile.mkdtemp(prefix=f"fnk-{os.getpid()}-"))
        self._root.mkdir(exist_ok=True)
        self._root.chmod(0o755)
        self.folder = self._root / "account"
        self._plans = nodes
        self._scheduler = Scheduler(self.store, self.api.delete_pod)
        self._woken = asyncio.Event()
        self._tasks: list[asyncio.Task[Any]] = []
        self._controllers = Controllers(self.store, self.api, pace, self.kubelets)
        self._numbers = 0

    async def __aenter__(self) -> Double:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Make everything; remove what doubles of killed processes have left."""
        await asyncio.to_thread(_sweep)
        self.network = await asyncio.to_thread(Network)
        self.address = self.network.address
        context, authority = context_of(self._root, ("127.0.0.1", self.address))
        await self.api.open(context)
        labels = {ENFORCE: "restricted", "kubernetes.io/metadata.name": NAMESPACE}
        self.store.add(NAMESPACES, {"metadata": {"name": NAMESPACE, "labels": labels}})
        self.store.add(NAMESPACES, {"metadata": {"name": "tenant", "labels": {}}})
        for namespace, name in (
            (NAMESPACE, SERVER_ACCOUNT),
            (NAMESPACE, REPLICA_ACCOUNT),
            (NAMESPACE, "default"),
            ("tenant", "default"),
        ):
            self.store.add(ACCOUNTS, {"metadata": {"name": name, "namespace": namespace}})
        for name, value, policy in (
            ("fngate-serving", 0, "Never"),
            ("fngate-idle", -1000, "Never"),
            ("tenant-high", 1000, "PreemptLowerPriority"),
        ):
            made = {"metadata": {"name": name}, "value": value, "preemptionPolicy": policy}
            self.store.add(PRIORITIES, made)
        self.store.add(CLASSES, {"metadata": {"name": DRIVER}, "spec": {"selectors": []}})
        self.folder.mkdir(mode=0o700)
        (self.folder / "ca.crt").write_text(authority)
        (self.folder / "namespace").write_text(NAMESPACE)
        self.rotate()
        for plan in self._plans:
            self.add_node(plan)
        self.store.watch(lambda _: self._woken.set())
        self._tasks = [
            asyncio.create_task(self._schedule(), name="scheduler"),
            asyncio.create_task(self._controllers.run(), name="controllers"),
        ]

    async def close(self) -> None:
        """End everything."""
        for task in self._tasks:
            task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.api.close()
        for kubelet in self.kubelets.values():
            await kubelet.close()
        await asyncio.to_thread(self.network.close)
        shutil.rmtree(self._root, ignore_errors=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables of a server in this cluster."""
        return {
            "FN_KUBERNETES_ACCOUNT": str(self.folder),
            "KUBERNETES_SERVICE_HOST": self.address,
            "KUBERNETES_SERVICE_PORT": str(self.api.port),
        }

    def rotate(self, life_s: float = 3607.0) -> None:
        """Renew the token in the server's folder, as the kubelet does."""
        token = self.tokens.issue(NAMESPACE, SERVER_ACCOUNT, life_s=life_s)
        new = self.folder / ".token"
        new.write_text(token)
        new.replace(self.folder / "token")

    # Nodes

    def add_node(self, plan: NodePlan) -> Kubelet:
        """Add a node with its kubelet."""
        self._numbers += 1
        address = f"10.99.8.{self._numbers}"
        runtime = Runtime(self._root / "nodes" / plan.name, self.network)
        volumes = Volumes(self.store, self.tokens, self._root / "disks")
        kubelet = Kubelet(
            *(plan.name, address, runtime, self.store, volumes, self.pace),
            *(self._image, self._finalize),
        )
        uuids = [f"GPU-{plan.name}-{number}" for number in range(plan.plugin_gpus)]
        kubelet.gpus = uuids
        self.kubelets[plan.name] = kubelet
        self._add_node_object(plan, address)
        if plan.claimed_gpus:
            self._add_slice(plan)
        kubelet.beat()
        return kubelet

    def _add_node_object(self, plan: NodePlan, address: str) -> None:
        allocatable = {"cpu": plan.cpu, "memory": plan.memory, "pods": "110"}
        if plan.plugin_gpus:
            allocatable["nvidia.com/gpu"] = str(plan.plugin_gpus)
        labels = {"kubernetes.io/hostname": plan.name, "kubernetes.io/os": "linux", **plan.labels}
        info = {"kubeletVersion": "v1.36.2", "containerRuntimeVersion": "containerd://2.1.0"}
        status: Json = {"allocatable": allocatable, "capacity": allocatable, "conditions": []}
        status["addresses"] = [{"type": "InternalIP", "address": address}]
        status["nodeInfo"] = info
        node: Json = {"metadata": {"name": plan.name, "labels": labels}, "spec": {}}
        if plan.taints:
            node["spec"]["taints"] = list(plan.taints)
        self.store.add(NODES, {**node, "status": status})

    def _add_slice(self, plan: NodePlan) -> None:
        devices = [
            {
                "name": f"gpu-{number}",
                "attributes": {
                    "uuid": {"string": f"GPU-{plan.name}-{number}"},
                    "productName": {"string": "NVIDIA L4"},
                    "type": {"string": "gpu"},
                },
                "capacity": {"memory": {"value": plan.gpu_memory}},
            }
            for number in range(plan.claimed_gpus)
        ]
        pool = {"name": plan.name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": plan.name, "pool": pool, "devices": devices}
        self.store.add(SLICES, {"metadata": {"name": f"{plan.name}-{DRIVER}-0"}, "spec": spec})

    def node(self, name: str) -> Json:
        """Return the object of a node."""
        found = self.store.get(NODES, name)
        assert found is not None, f"no node {name}"
        return found

    def cordon(self, name: str, *, is_cordoned: bool = True) -> None:
        """Let the scheduler leave a node out, or use it again."""

        def change(one: Json) -> None:
            one["spec"].pop("unschedulable", None)
            if is_cordoned:
                one["spec"]["unschedulable"] = True

        self.store.change(NODES, self.node(name), change)

    def taint(self, name: str, key: str, effect: str = "NoSchedule", value: str = "") -> None:
        """Give a node a taint."""

        def change(one: Json) -> None:
            kept = [taint for taint in one["spec"].get("taints", []) if taint["key"] != key]
            one["spec"]["taints"] = [*kept, {"key": key, "effect": effect, "value": value}]

        self.store.change(NODES, self.node(name), change)

    def untaint(self, name: str, key: str) -> None:
        """Remove the taints of a key."""

        def change(one: Json) -> None:
            taints = one["spec"].get("taints", [])
            one["spec"]["taints"] = [taint for taint in taints if taint["key"] != key]

        self.store.change(NODES, self.node(name), change)

    def set_ready(self, name: str, why_not: str = "") -> None:
        """Let a kubelet say that its node is not ready and why, or that it is."""
        self.kubelets[name].why_not_ready = why_not

    async def kill_kubelet(self, name: str) -> None:
        """End a kubelet as KILL does; its Pods run on."""
        await self.kubelets[name].kill()

    async def restart_kubelet(self, name: str) -> None:
        """Start a kubelet again."""
        await self.kubelets[name].restart()

    async def cut(self, name: str) -> None:
        """Cut a node off: neither its kubelet nor its Pods reach anything."""
        await self.kubelets[name].cut()

    async def heal(self, name: str) -> None:
        """End the cut of a node."""
        await self.kubelets[name].heal()

    async def remove_node(self, name: str) -> None:
        """End a node with all its Pods, as an autoscaler does: its object goes, and its Pods are
        collected."""
        kubelet = self.kubelets.pop(name)
        self.store.remove(NODES, self.node(name))
        for slice in [one for one in self.store.every(SLICES) if one["spec"]["nodeName"] == name]:
            self.store.remove(SLICES, slice)
        await kubelet.close()
        self._woken.set()

    # Pods

    def pod(self, name: str, namespace: str = NAMESPACE) -> Json:
        """Return the object of a Pod."""
        found = self.store.get(PODS, name, namespace)
        assert found is not None, f"no Pod {name}"
        return found

    def pods(self, namespace: str = NAMESPACE) -> list[Json]:
        """Return the Pods of a namespace."""
        return list(self.store.every(PODS, namespace))

    def container(self, pod: Json, name: str = "") -> Container:
        """Return the container of a Pod, its first main one if it is not named."""
        for kubelet in self.kubelets.values():
            sandbox = kubelet.runtime.sandboxes.get(pod["metadata"]["uid"])
            if sandbox is not None:
                return sandbox.containers[name or pod["spec"]["containers"][0]["name"]]
        raise AssertionError(f"no container of {pod['metadata']['name']} runs")

    def kill(self, pod: Json, name: str = "", by: signal.Signals = signal.SIGKILL) -> None:
        """Kill the first process of a container."""
        self.container(pod, name).signal(by)

    def delete(self, pod: Json, grace_s: int | None = None) -> None:
        """Delete a Pod as a stranger does; 0 is a force delete."""
        self.api.delete_pod(pod, grace_s)

    def evict(self, pod: Json) -> None:
        """End a Pod by the eviction API, as a drain does."""
        said = "Eviction API: evicting"
        self.api.delete_pod(disrupt(self.store, pod, "EvictionByEvictionAPI", said))

    def run_short(self, pod: Json) -> None:
        """Let a Pod's kubelet evict it for want of memory of the node."""
        why = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 20Mi. "
        self.kubelets[pod["spec"]["nodeName"]].evict(pod, why)

    def tenant(self, name: str, node: str, requests: Mapping[str, str], priority: str = "") -> Json:
        """Start a Pod of another tenant on a node."""
        field = {"key": "metadata.name", "operator": "In", "values": [node]}
        term = {"nodeSelectorTerms": [{"matchFields": [field]}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}
        limits = {key: one for key, one in requests.items() if "/" in key}
        container: Json = {"name": "work", "image": IMAGE, "command": ["sleep", "3600"]}
        container["resources"] = {"requests": dict(requests), "limits": limits}
        spec: Json = {"containers": [container], "affinity": affinity, "restartPolicy": "Never"}
        spec["terminationGracePeriodSeconds"] = 0
        if priority:
            spec["priorityClassName"] = priority
        given = {"metadata": {"name": name, "namespace": "tenant"}, "spec": spec}
        return self.store.add(PODS, admission.admit(self.store, given))

    # The API server

    async def refuse_for(self, wait_s: float) -> None:
        """Refuse connections for some seconds."""
        await self.api.close()
        await elapse(wait_s)
        await self.api.reopen()

    # What the API server asks

    def log(self, pod: Json, container: str) -> bytes:
        """Return the output of a container. Raises Refused."""
        kubelet = self.kubelets.get(pod["spec"].get("nodeName", ""))
        return b"" if kubelet is None else kubelet.log(pod, container)

    def woken(self) -> None:
        """Let the scheduler look."""
        self._woken.set()

    def _image(self, reference: str) -> Image | None:
        """Return an image by its reference, or by its repository and digest."""
        for name, one in self.images.items():
            if reference in (name, f"{name.rpartition(':')[0]}@{one.id}"):
                return one
        return None

    def _finalize(self, pod: Json) -> None:
        """Remove a Pod that has ended, in two steps as a kubelet does."""

        def end(one: Json) -> None:
            one["metadata"]["deletionGracePeriodSeconds"] = 0
            one["metadata"]["deletionTimestamp"] = self.store.now()

        self.store.remove(PODS, self.store.change(PODS, pod, end))

    # Scheduler and controllers

    async def _schedule(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            await elapse(self.pace.schedule_s)
            claims.give_back(self.store)
            for name in self.kubelets:
                self._controllers.follow_cordon(name)
            self._scheduler.run()


def _sweep() -> None:
    MemoryGroup.sweep()
    for folder in Path(tempfile.gettempdir()).glob("fnk-*-*"):
        if not Path("/proc", folder.name.split("-")[1]).exists():
            shutil.rmtree(folder, ignore_errors=True)
