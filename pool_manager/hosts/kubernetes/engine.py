"""A Kubernetes cluster as an engine of hosts: each of its nodes that replicas may run on is one.

Reflectors follow the nodes, the GPUs that drivers publish of them (ResourceSlices) and the Pods of
this server. What follows from them is decided by `inventory`, `node_life` and `ends`; this module
carries it out.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import structlog

from hosts.kubernetes.access import Access
from hosts.kubernetes.client import KubernetesClient
from hosts.kubernetes.errors import ApiAway, ApiRefused
from hosts.kubernetes.objects import PODS
from hosts.tls.door import LinkDoor
from pool_manager.drivers.uids import UidAllocator, slice_of
from pool_manager.hosts.kubernetes.claims import Claims
from pool_manager.hosts.kubernetes.driver import NodeShare, PodDriver, PodSettings
from pool_manager.hosts.kubernetes.host import NodeHost
from pool_manager.hosts.kubernetes.identity import PodIdentities, PodIdentity
from pool_manager.hosts.kubernetes.inventory import NodeFacts, node_facts
from pool_manager.hosts.kubernetes.node_gpus import Mode
from pool_manager.hosts.kubernetes.node_life import (
    Announce,
    Command,
    NodeContact,
    ReportAway,
    ReportSilent,
    ReportUp,
    Surroundings,
    Told,
    Withdraw,
    next_step,
)
from pool_manager.hosts.kubernetes.nodes import Nodes, may_claim
from pool_manager.hosts.kubernetes.pod_specs import PodOwner
from pool_manager.hosts.kubernetes.pods import Pods
from pool_manager.hosts.services import HostServices
from pool_manager.hosts.settings import HostSettings
from pool_manager.settings import PoolSettings
from registry.errors import BadRequest, DriverError
from registry.model.hosts import Host, KubernetesHost, id_on
from registry.tasks import Tasks, every

log = structlog.get_logger()

LOOK_S: Final = 1.0
"""Seconds between two looks at what depends on time alone."""
SWEEP_LOOKS: Final = 30
"""Looks after which Pods without a record are looked for, and nodes are announced again that the
manager has not taken."""
BEGIN_AGAIN_S: Final = 5.0
"""Seconds after which what an earlier manager has left is looked for again, if that failed."""
END_S: Final = 20.0
"""Time limit of the deletion of what this server has left in a cluster that is removed."""
NODES_SHOWN: Final = 3
"""Nodes that are named in the reason why a cluster has no host."""
STANDBY_KINDS: Final = frozenset({"cpu"})
"""Kinds of devices with standbys, where Pods can be resized: a Pod that runs gets no GPU."""


class KubernetesEngine:
    """`HostEngine` of the cluster that this server runs in."""

    why_kept = ""

    def __init__(
        self,
        definition: KubernetesHost,
        settings: HostSettings,
        pool: PoolSettings,
        services: HostServices,
        identities: PodIdentities,
    ) -> None:
        """Raises DriverError for a server that can have no such hosts."""
        self.name = definition.name
        self._definition, self._services = definition, services
        self._identities, self._door = identities, _door_of(services, self.name)
        self._access = _access_of(settings, self.name)
        self._client = KubernetesClient(self._access)
        self._tasks = Tasks(f"engine {self.name}")
        owner, clock = PodOwner(settings.owner(self.name)), services.clock
        self._pods = Pods(self._client, owner, self._is_known, self._tasks, clock)
        self._pods.told.subscribe(self._look_at_all)
        self._claims = Claims(self._client, definition, owner.id, clock)
        self._shared = PodSettings(
            self._client,
            self._pods,
            self._claims,
            owner,
            UidAllocator(slice_of(settings.uids, owner.id)),
            self._door.authority_pem,
            pool.memory_mib,
            services.emit,
            clock,
        )
        self._nodes = Nodes(self.name, self._client, self._tasks)
        self._nodes.told.subscribe(self._look_at)
        self._epochs = itertools.count(1)
        self._hosts: dict[str, NodeHost] = {}
        """The announced hosts by node."""
        self._told: dict[str, Told] = {}
        """What the manager was told of each of them."""
        self._left_out: dict[str, str] = {}
        """Why the manager has not taken a host, by node."""
        self._keeping: set[str] = set()
        """Nodes with devices that are there only as long as replicas use them."""
        self._is_ready = False
        """Whether all was listed, and what an earlier manager has left is known."""
        self._why_waiting = ""
        """Why that is not known after a try, "" before it."""
        self._looks = 0

    # The definition

    def define(self, host: Host) -> None:
        """Apply a definition. Hosts that replicas of an earlier manager are on are announced at
        once; all others when the API server has named them. Raises BadRequest for a definition that
        allows no device."""
        assert isinstance(host, KubernetesHost)  # as of `kinds.py`
        if not host.cpu_slots and (not host.cuda_image or host.devices == "none"):
            raise BadRequest(
                f"host {host.name}: expected CPU slots or an image for GPUs, as no node has a"
                " device without; add --cpu-slots 4 or --cuda-image IMAGE"
            )
        self._definition = host
        self._claims.define(host)
        self._nodes.define(host)
        for name in sorted(self._services.seen):
            node = name.removeprefix(id_on(self.name, ""))
            if node != name and node not in self._told and not self._is_ready:
                self._expect(node)
        # Again, as the manager may have begun to remove them.
        self._told = {node: told.forgotten() for node, told in self._told.items()}
        self._look_at_all()

    def _user(self) -> str:
        """Return the API's name of the service account of Pods."""
        account = self._definition.service_account
        return f"system:serviceaccount:{self._access.namespace()}:{account}"

    def _find(self, name: str, uid: str) -> str | None:
        """Return the id of the replica in a Pod that this server has made and not given up."""
        id = name.rpartition("-")[2]
        fate = self._pods.fate(id)
        if fate is None or (fate.pod.metadata.name, fate.id) != (name, uid):
            return None
        return id if self._is_known(id) and not fate.is_over else None

    def _is_known(self, id: str) -> bool:
        """Return whether this server has a record of a replica."""
        return any(id in host.records for host in self._hosts.values())

    def _expect(self, node: str) -> None:
        """Announce a host before its node was found."""
        host = self._hosts[node] = self._made(node)
        self._told[node] = Told(NodeContact.EXPECTED)
        self._services.announce(host, self._definition.labels, self._definition.is_draining)

    @property
    def complaint(self) -> str:
        """What is wrong with all hosts, why there is none, or why the manager has not taken some;
        "" for nothing."""
        if why := self._why_silent:
            return why
        if self._left_out:
            node, reason = next(iter(self._left_out.items()))
            return f"{len(self._left_out)} nodes are not used, {node} among them: {reason}"
        if not self._is_ready:
            return self._why_waiting
        if self._told:
            return ""
        seen = [self._facts(node) for node in sorted(self._nodes.names)[:NODES_SHOWN]]
        whys = [f"{one.node}: {one.why_unusable}" for one in seen if one is not None]
        return f"none of {len(self._nodes.names)} nodes can be used; {'; '.join(whys)}"

    # Life

    def open(self) -> None:
        """Follow the cluster in the background."""
        identity = PodIdentity(self._client, self._user, self._find)
        self._identities.add(self.name, identity, self._door)
        self._claims.open(self._tasks)
        self._nodes.open()
        self._tasks.spawn("follow pods", self._pods.run())
        self._tasks.spawn("begin", self._begin())
        self._tasks.spawn("look", every(LOOK_S, self._look_by_time))

    async def close(self, *, is_removed: bool = False) -> None:
        """End all connections; with `is_removed` also delete what this server has left there."""
        self._identities.remove(self.name, self._door)
        await self._tasks.close()
        if is_removed:
            await self._delete_all()
        for host in self._hosts.values():
            host.close()
        await self._client.close()

    async def _delete_all(self) -> None:
        """Delete what this server has in a cluster that has none of its replicas any more: Pods of
        those that were given up, and claims."""
        try:
            async with asyncio.timeout(END_S):
                await self._pods.delete_all()
                if may_claim(self._definition):
                    await self._claims.sweep(is_whole=True)
        except (ApiAway, ApiRefused, TimeoutError) as error:
            reason = str(error) or f"not done within {END_S:g} s"
            log.warning("something is left in a cluster", host=self.name, reason=reason)

    async def _begin(self) -> None:
        """Adopt what replicas of an earlier manager use, delete what none uses, then report the
        hosts."""
        await self._nodes.is_listed.wait()
        await self._pods.is_listed.wait()
        self._adopt_claims()
        while not self._is_ready:
            try:
                await self._find_reference()
                if may_claim(self._definition):
                    await self._claims.sweep()
            except ApiAway as error:
                self._why_waiting = f"what an earlier server has left is not known yet: {error}"
                log.warning("nodes wait", host=self.name, reason=self._why_waiting)
                await asyncio.sleep(BEGIN_AGAIN_S)
                continue
            except ApiRefused as error:
                log.error("claims cannot be swept", host=self.name, reason=str(error))
            self._is_ready = True
        self._look_at_all()

    async def _find_reference(self) -> None:
        """Have what this server makes deleted with its StatefulSet, if it runs in one. Never with
        its Pod: replicas outlive that. Raises ApiAway."""
        try:
            own = await self._client.get(PODS, socket.gethostname())
        except ApiRefused:
            return  # it does not run in a Pod of this namespace, or under another host name
        for one in own.metadata.owner_references:
            if one.kind == "StatefulSet":
                self._shared.owner = replace(self._shared.owner, reference=one)
                self._claims.references = (one,)

    @property
    def _why_silent(self) -> str:
        """Why the API server gives no answers, "" while it does."""
        why = self._nodes.why_away or self._pods.why_away
        return f"the API server of {self.name} does not answer: {why}" if why else ""

    # What the manager is told

    def _look_at(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self._look(node)
        if self._why_silent and not self._is_ready:
            for host in self._hosts.values():
                host.await_answer(self._why_silent)

    def _look_at_all(self) -> None:
        self._look_at(sorted(self._nodes.names | self._told.keys()))

    def _look_by_time(self) -> None:
        """Look at what no watch shows: how long replicas of a silent node have not answered, and
        whether devices are still used that are there for that alone; and now and then at Pods
        without a record and at nodes that the manager has not taken."""
        for node, told in list(self._told.items()):
            if told.contact is NodeContact.SILENT or node in self._keeping:
                self._look(node)
        self._looks += 1
        if self._looks % SWEEP_LOOKS == 0 and self._is_ready:
            for node in list(self._left_out):
                self._look(node)
            self._pods.sweep()

    def _look(self, node: str) -> None:
        """Tell the manager what is new about a node."""
        if not self._is_ready:
            return
        told, seen = self._told.get(node, Told()), self._facts(node)
        if seen is None:
            self._left_out.pop(node, None)
        if seen is not None and seen.kept:
            self._keeping.add(node)
        else:
            self._keeping.discard(node)
        after, commands = next_step(told, seen, self._around(node))
        if after.contact is NodeContact.NONE:
            self._told.pop(node, None)
        else:
            self._told[node] = after
        try:
            for command in commands:
                self._tell(node, command)
        except BadRequest as error:  # the manager has enough hosts
            self._leave_out(node, error.message)
            return
        host, found = self._hosts.get(node), self._nodes.find(node)
        if host is not None and found is not None and seen is not None:
            host.see(found, seen, after.contact, self._definition)

    def _leave_out(self, node: str, why: str) -> None:
        """Do without a node that the manager does not take."""
        if node not in self._left_out:
            log.warning("a node is not used", host=self.name, node=node, reason=why)
        self._left_out[node] = why
        self._told.pop(node, None)
        if (host := self._hosts.pop(node, None)) is not None:
            host.close()

    def _tell(self, node: str, command: Command) -> None:
        """Carry out a command of `node_life`. Raises BadRequest for a host that the manager does
        not take."""
        match command:
            case Announce():
                host = self._hosts.get(node) or self._made(node)
                self._hosts[node] = host
                self._services.announce(host, command.labels, command.is_draining)
                self._left_out.pop(node, None)
            case Withdraw():
                self._services.withdraw(id_on(self.name, node), command.is_gone)
                if command.is_gone:
                    self._hosts.pop(node).close()
            case ReportUp():
                self._hosts[node].report_up(
                    next(self._epochs), command.offer, is_found=command.is_found
                )
            case ReportSilent():
                self._hosts[node].report_silent(command.reason)
            case ReportAway():
                self._hosts[node].report_away(command.reason)

    def _facts(self, node: str) -> NodeFacts | None:
        """Return a node as it is now, None for one that the API server does not have."""
        found = self._nodes.find(node)
        if found is None:
            return None
        told = self._told.get(node)
        host = self._hosts.get(node)
        records = host.records.values() if host is not None else ()
        return node_facts(
            found,
            self._nodes.slices(node),
            self._definition,
            before=told.offer.devices if told is not None and told.offer is not None else (),
            used=[device for record in records for device in record.devices],
        )

    def _around(self, node: str) -> Surroundings:
        host = self._hosts.get(node)
        return Surroundings(
            self._services.clock(),
            api_down=self._why_silent,
            is_answering=host is not None and self._services.answers(host.name),
            has_pods=host is not None and host.has_pods,
            standby_kinds=STANDBY_KINDS if self._pods.can_resize else frozenset(),
        )

    def _made(self, node: str) -> NodeHost:
        name = id_on(self.name, node)
        records = self._services.records(name)
        driver = PodDriver(node, self._definition, NodeShare(0), self._shared, records, self._tasks)
        return NodeHost(self.name, name, driver, self._pods, self._door, self._services)

    # What was left

    def _adopt_claims(self) -> None:
        """Record the claims of GPUs that replicas of an earlier manager are on."""
        for node, host in self._hosts.items():
            facts = self._facts(node)
            if facts is not None and facts.mode is Mode.CLAIMS:
                gpus = {one.id: one for one in facts.devices if one.kind != "cpu"}
                for record in host.records.values():
                    used = [gpus[device] for device in record.devices if device in gpus]
                    self._claims.adopt(used, record.id)


def _door_of(services: HostServices, name: str) -> LinkDoor:
    if services.door is None:
        raise DriverError(
            f"host {name}: this server has no door for replicas in Pods; set"
            " FN_LINK_LISTEN=0.0.0.0:7444 and FN_LINK_ADDRESS, and start it again"
        )
    return services.door


def _access_of(settings: HostSettings, name: str) -> Access:
    """Return the way to the API server. Raises DriverError for a server outside a cluster."""
    own = settings.kubernetes
    why = own.why_outside if own is not None else "it has no settings of a cluster"
    if own is None or why:
        raise DriverError(
            f"host {name}: this server runs outside a cluster: {why}; fnctl kubernetes manifests"
            " prints how to run it inside"
        )
    return Access(own.account, own.api_host, own.api_port)
