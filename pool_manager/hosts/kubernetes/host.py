"""A node of a cluster as a host, whose replicas are Pods."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from secrets import token_hex
from typing import Final

from hosts.kubernetes.objects import Node
from hosts.tls.door import LinkDoor
from pool_manager.core import events
from pool_manager.core.hosts import HostMemory
from pool_manager.core.state import Device
from pool_manager.driver import Driver, EngineLosses, Exits, Processes
from pool_manager.drivers.environment import MODEL_TARGET
from pool_manager.gpus.absent import NoGpus
from pool_manager.host import HostFacts, HostFiles, HostTransport, HostView
from pool_manager.hosts.kubernetes.driver import NodeShare, PodDriver
from pool_manager.hosts.kubernetes.ends import SERVER
from pool_manager.hosts.kubernetes.inventory import NodeFacts
from pool_manager.hosts.kubernetes.node_gpus import Mode
from pool_manager.hosts.kubernetes.node_life import NodeContact, Offer
from pool_manager.hosts.kubernetes.pod_specs import DIAL_IN
from pool_manager.hosts.kubernetes.pods import Pods
from pool_manager.hosts.services import HostServices
from pool_manager.hosts.tls_parts import FetchedFiles, TlsTransport
from pool_manager.ports import Binding, Gpus, GpuView
from registry.errors import EngineDown, HostDown
from registry.model.hosts import KubernetesHost
from runtime_image.contract.control import ReplicaRecord

KIND: Final = "kubernetes"
STARTS_AT_ONCE: Final = 8
"""Concurrent starts on one node: the API server, the scheduler and the node's kubelet share the
work."""
NOT_FOUND: Final = "its engine has not found it yet"
ADDRESS_TYPES: Final = ("InternalIP", "ExternalIP", "Hostname")
"""Addresses of a node that are shown, the best first."""


class NodeGpus(NoGpus):
    """`Gpus` of a node. Nothing outside a Pod reads them: replicas do so themselves, and GPUs are
    free when their Pods are proven gone."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Mapping[str, Device] = {}
        """The GPUs of the node by id."""

    def devices(self) -> list[Device]:
        """Return the GPUs of the node."""
        return list(self.found.values())

    def view(self, device: str) -> GpuView | None:
        """Return what the API server says of a GPU."""
        found = self.found.get(device)
        if found is None:
            return None
        name = found.id.rpartition("/")[2]
        return GpuView(found.model or None, name, None, None, found.memory_mib or None, None, 0.0)


class PodFiles(FetchedFiles):
    """`HostFiles` of Pods, which fetch their files; mounts are volumes of the cluster."""

    def __init__(
        self, driver: PodDriver, name: str, door: LinkDoor, services: HostServices
    ) -> None:
        super().__init__(name, door, services, has_volumes=True)
        self._driver = driver

    async def place(self, id: str, binding: Binding | None, *, is_read_soon: bool = False) -> None:
        """Place nothing; the driver learns what the replica is for, whose Pod is made or resized
        next."""
        await super().place(id, binding, is_read_soon=is_read_soon)
        self._driver.expect(id, binding)


class NodeHost:
    """`ReplicaHost` of one node."""

    def __init__(
        self,
        engine: str,
        name: str,
        driver: PodDriver,
        pods: Pods,
        door: LinkDoor,
        services: HostServices,
    ) -> None:
        """`engine` is the name of the cluster, `name` that of the host, `pods` has the Pods of all
        hosts."""
        self.name = name
        self._driver, self._pods = driver, pods
        self.facts = HostFacts(
            STARTS_AT_ONCE,
            is_contained=True,
            has_own_clock=True,
            abilities=driver.abilities,
            pulls_images=True,
            digest_of=self._digest_of,
        )
        self.records: MutableMapping[str, ReplicaRecord] = services.records(name)
        self._door, self._services = door, services
        self.exits: Exits = driver.exits
        self.engine_losses = EngineLosses()
        """What `node_life` decides; the driver knows only of the API server."""
        self._gpus = NodeGpus()
        self.gpus: Gpus = self._gpus
        self._files = PodFiles(driver, name, door, services)
        self.files: HostFiles = self._files
        self._transport = TlsTransport(name, engine, door, self._files, services)
        self.transport: HostTransport = self._transport
        self.seen: NodeFacts | None = None
        """The node as it was seen last."""
        self._node = Node()
        self._epoch = 0
        self._why_silent = ""
        """Why its engine is silent, "" while it is not."""
        self._faults: dict[str, str] = {}
        """Why no Pod gets a device, by its id."""

    # Life

    def see(
        self, node: Node, seen: NodeFacts, contact: NodeContact, definition: KubernetesHost
    ) -> None:
        """Take over what the API server has of the node, what the manager was told of it, and the
        definition of the cluster."""
        before, self._node, self.seen = self.seen, node, seen
        self._driver.definition, self._driver.share = definition, _share(seen, definition)
        self._gpus.found = {one.id: one for one in seen.devices if one.kind != "cpu"}
        match contact:
            case NodeContact.EXPECTED:
                self._transport.set_down(seen.why_not_ready or NOT_FOUND)
            case NodeContact.UP:
                self._why_silent = ""
                self._report_faults(seen.faults)
        if before is None or _shown(before) != _shown(seen):
            self._services.changed(self.name)

    def _report_faults(self, faults: Mapping[str, str]) -> None:
        """Report the devices that no Pod gets, and those that Pods get again."""
        for device in faults.keys() - self._faults.keys():
            self._services.emit(events.DeviceLost(device, faults[device], is_gone=False))
        for device in self._faults.keys() - faults.keys():
            self._services.emit(events.DeviceBack(device))
        self._faults = dict(faults)

    def _running(self) -> set[str]:
        """Return the ids of the replicas in Pods of the node that have not ended."""
        there = self._pods.on_node(self._driver.node)
        return {id for id, fate in there if not fate.is_over and fate.pod.spec.node_name}

    @property
    def has_pods(self) -> bool:
        """Whether replicas with a record run in Pods of the node."""
        return not self._running().isdisjoint(self.records)

    def _digest_of(self, id: str) -> str:
        """Return the repository and digest by which the kubelet has pulled the image of a server.
        One that was imported on the node has an id there, by which nobody can pull it."""
        fate = self._pods.fate(id)
        statuses = fate.pod.status.container_statuses if fate is not None else ()
        found = next((one.image_id for one in statuses if one.name == SERVER), "")
        return found if "@" in found else ""

    def await_answer(self, why: str) -> None:
        """Record why the API server has not named the node yet, if it has not."""
        if self.seen is None:
            self._transport.set_down(why)
            self._services.changed(self.name)

    def report_up(self, epoch: int, offer: Offer, *, is_found: bool) -> None:
        """Report the host with its devices. `is_found`: replicas without a running Pod have ended;
        otherwise none has."""
        self._epoch, self._why_silent = epoch, ""
        running = frozenset(self._running() & self.records.keys() if is_found else self.records)
        up = events.HostUp(
            *(self.name, epoch, offer.devices, running),
            abilities=self.facts.abilities,
            memory_mib=offer.memory_mib,
            standby_kinds=offer.standby_kinds,
        )
        self._transport.set_down("")
        self._services.emit(up)
        self._services.changed(self.name)

    def report_silent(self, why: str) -> None:
        """Report that its engine is silent: nothing can be started or stopped there."""
        self._why_silent = why
        self.engine_losses.notify(why)

    def report_away(self, why: str) -> None:
        """Report that the host cannot be reached."""
        self._why_silent = ""
        self._transport.set_down(why)
        self._services.emit(events.HostUnreachable(self.name, why, self._epoch))
        self._services.changed(self.name)

    def close(self) -> None:
        """Close the connections that nobody has accepted, and hear of its Pods no more."""
        self._driver.close_listeners()
        self._transport.close()

    # What replicas need

    @property
    def driver(self) -> Driver:
        """The driver of its Pods. Raises HostDown, and EngineDown while its engine is silent."""
        if why := self._transport.why_down:
            raise HostDown(f"host {self.name} is not up: {why}")
        if self._why_silent:
            raise EngineDown(self._why_silent)
        return self._driver

    @property
    def processes(self) -> Processes:
        """Those of its Pods, which are not known. Raises HostDown, EngineDown."""
        return self.driver.processes

    def memory(self) -> HostMemory | None:
        """Return None: nothing on the node reports it."""
        return None

    def complete(self, record: ReplicaRecord) -> ReplicaRecord:
        """Return the record with the addresses, the folder and the greeting of the replica, and its
        share of the node's cores."""
        seen = self.seen
        threads = seen.threads(record.device_kind) if seen is not None else record.threads
        return replace(
            record,
            host=self.name,
            threads=threads,
            model_dir=MODEL_TARGET,
            control=str(self._door.address),
            data=DIAL_IN,
            greeting=token_hex(32),
        )

    async def left(self) -> set[str] | None:
        """Return None: the list of Pods says it, with HostUp."""
        return None

    def fill(self, view: HostView) -> HostView:
        """Return the view of this host with the facts known here; the machine adds the others."""
        seen, status = self.seen, self._node.status
        by_type = {one.type: one.address for one in status.addresses}
        paused = seen.why_paused if seen is not None else ""
        return replace(
            view,
            address=next((by_type[one] for one in ADDRESS_TYPES if one in by_type), ""),
            # The view's own words are of a container engine.
            reason=self._why_silent or view.reason or self._transport.why_down or paused,
            driver=KIND,
            engine_version=status.node_info.kubelet_version,
            epoch=self._epoch,
            transfer=self._files.transfers.text,
            transferred_bytes=self._files.transfers.total_bytes,
        )


def _share(seen: NodeFacts, definition: KubernetesHost) -> NodeShare:
    """Return what replicas get of a node."""
    return NodeShare(
        seen.share_millis,
        definition.resource if seen.mode is Mode.PLUGIN else "",
        {one.id: one for one in seen.devices if one.kind != "cpu"}
        if seen.mode is Mode.CLAIMS
        else {},
    )


def _shown(seen: NodeFacts) -> tuple[object, ...]:
    """Return what views show of a node."""
    return seen.why_unusable, seen.is_draining, seen.why_not_ready, seen.why_paused, seen.notes
