"""The nodes of a cluster and the GPUs that drivers publish of them, as the API server has them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import structlog

from hosts.kubernetes.client import KubernetesClient
from hosts.kubernetes.objects import NODES, SLICES, Node, ResourceSlice
from hosts.kubernetes.reflector import Reflector
from pool_manager.subscribers import Subscribers
from registry.model.hosts import KubernetesHost
from registry.tasks import Tasks

log = structlog.get_logger()


class Nodes:
    """Follows the nodes, and their ResourceSlices where the definition allows claims."""

    def __init__(self, name: str, client: KubernetesClient, tasks: Tasks) -> None:
        """`name` is that of the cluster."""
        self.told = Subscribers[[Iterable[str]]]()
        """Notified with the names of nodes that may have changed. All are named when they were
        listed, and when `why_away` has changed."""
        self.why_away = ""
        """Why the API server does not answer about nodes, "" while it does, or was not asked."""
        self.is_listed = asyncio.Event()
        """Set once the nodes were listed, and their slices were as well or are none."""
        self._name, self._client, self._tasks = name, client, tasks
        self._nodes: dict[str, Node] = {}
        self._slices: dict[str, dict[str, ResourceSlice]] = {}
        """By node, then by name."""
        self._has_nodes = self._has_slices = False
        """Whether they were listed."""
        self._are_slices_known = False
        """Whether they were listed, or are none."""
        self._definition: KubernetesHost | None = None
        self._following: asyncio.Task[None] | None = None
        """What follows the slices."""

    def define(self, definition: KubernetesHost) -> None:
        """Apply a definition."""
        self._definition = definition
        if self._has_nodes:
            self._follow_slices()

    def open(self) -> None:
        """Follow the nodes in the background."""
        self._follow_slices()
        reflector = Reflector(
            self._client,
            NODES,
            "",
            self._synced,
            self._changed,
            self._removed,
            self._away,
            self._back,
        )
        self._tasks.spawn("follow nodes", reflector.run())

    @property
    def names(self) -> frozenset[str]:
        """The names of all nodes."""
        return frozenset(self._nodes)

    def find(self, name: str) -> Node | None:
        """Return a node, None for one that there is not."""
        return self._nodes.get(name)

    def slices(self, name: str) -> Iterable[ResourceSlice]:
        """Return what drivers have published of a node."""
        return self._slices.get(name, {}).values()

    # What the reflectors report

    def _synced(self, nodes: Mapping[str, Node]) -> None:
        gone = self._nodes.keys() - nodes.keys()
        self._nodes, self._has_nodes = dict(nodes), True
        self._tell({*nodes, *gone})

    def _changed(self, node: Node) -> None:
        self._nodes[node.metadata.name] = node
        self._tell([node.metadata.name])

    def _removed(self, node: Node) -> None:
        self._nodes.pop(node.metadata.name, None)
        self._tell([node.metadata.name])

    def _away(self, reason: str) -> None:
        log.warning("the API server does not answer", host=self._name, reason=reason)
        self.why_away = reason
        self._tell(self._nodes)

    def _back(self) -> None:
        if self.why_away:
            log.info("the API server answers", host=self._name)
        self.why_away = ""
        self._follow_slices()  # it may be a later one, which has them
        self._tell(self._nodes)

    def _tell(self, names: Iterable[str]) -> None:
        if self._has_nodes and self._are_slices_known:
            self.is_listed.set()
        self.told.notify(sorted(names))

    # Slices

    def _follow_slices(self) -> None:
        if not may_claim(self._definition):
            self._are_slices_known = True
        elif self._following is None:
            reflector = Reflector(
                self._client,
                SLICES,
                "",
                self._slices_synced,
                self._slice_changed,
                self._slice_removed,
                self._slices_away,
                _nothing,
            )
            self._following = self._tasks.spawn("follow slices", reflector.run())

    def _slices_synced(self, slices: Mapping[str, ResourceSlice]) -> None:
        before = set(self._slices)
        self._slices.clear()
        for one in slices.values():
            self._slices.setdefault(one.spec.node_name, {})[one.metadata.name] = one
        self._has_slices = self._are_slices_known = True
        self._tell(before | self._slices.keys())

    def _slice_changed(self, one: ResourceSlice) -> None:
        self._slices.setdefault(one.spec.node_name, {})[one.metadata.name] = one
        self._tell([one.spec.node_name])

    def _slice_removed(self, one: ResourceSlice) -> None:
        of_node = self._slices.get(one.spec.node_name, {})
        of_node.pop(one.metadata.name, None)
        if not of_node:
            self._slices.pop(one.spec.node_name, None)
        self._tell([one.spec.node_name])

    def _slices_away(self, reason: str) -> None:
        """Without slices there are no claims. A cluster without dynamic resource allocation is not
        asked again and again; one that has shown slices has it."""
        if self._has_slices:
            return
        log.info("no GPU is published in ResourceSlices", host=self._name, reason=reason)
        is_optional = self._definition is not None and self._definition.devices == "auto"
        if is_optional and self._following is not None:
            self._following.cancel()
            self._following = None
        self._are_slices_known = True
        self._tell(())


def may_claim(definition: KubernetesHost | None) -> bool:
    """Return whether GPUs may be had by claims."""
    if definition is None or not definition.cuda_image:
        return False
    return definition.devices in ("auto", "claims")


def _nothing() -> None:
    """Wait for the list that follows."""
