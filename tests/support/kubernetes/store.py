"""The objects of the double with their versions, and the changes that watches are told of."""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

Json = dict[str, Any]
"""An object of the API. One that is in the store is never changed in place."""

HISTORY_MAX: Final = 10_000
"""Changes that a watch may ask for; earlier ones are expired."""


@dataclass(frozen=True)
class Resource:
    """A kind of objects."""

    api_version: str
    """Such as `v1`, `apps/v1`."""
    plural: str
    kind: str
    is_namespaced: bool = True

    @property
    def group(self) -> str:
        """Return the API group, "" for the first one."""
        return self.api_version.rpartition("/")[0]

    @property
    def qualified(self) -> str:
        """Return the name as in texts of the API server: with the group behind the plural."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


PODS: Final = Resource("v1", "pods", "Pod")
NODES: Final = Resource("v1", "nodes", "Node", is_namespaced=False)
NAMESPACES: Final = Resource("v1", "namespaces", "Namespace", is_namespaced=False)
SECRETS: Final = Resource("v1", "secrets", "Secret")
ACCOUNTS: Final = Resource("v1", "serviceaccounts", "ServiceAccount")
QUOTAS: Final = Resource("v1", "resourcequotas", "ResourceQuota")
PRIORITIES: Final = Resource(
    "scheduling.k8s.io/v1", "priorityclasses", "PriorityClass", is_namespaced=False
)
CLAIMS: Final = Resource("resource.k8s.io/v1", "resourceclaims", "ResourceClaim")
SLICES: Final = Resource(
    "resource.k8s.io/v1", "resourceslices", "ResourceSlice", is_namespaced=False
)
CLASSES: Final = Resource("resource.k8s.io/v1", "deviceclasses", "DeviceClass", is_namespaced=False)
RESOURCES: Final = (
    *(PODS, NODES, NAMESPACES, SECRETS, ACCOUNTS, QUOTAS, PRIORITIES, CLAIMS, SLICES, CLASSES),
    Resource("v1", "services", "Service"),
    Resource("v1", "configmaps", "ConfigMap"),
    Resource("v1", "persistentvolumeclaims", "PersistentVolumeClaim"),
    Resource("apps/v1", "statefulsets", "StatefulSet"),
    Resource("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy"),
    Resource("node.k8s.io/v1", "runtimeclasses", "RuntimeClass", is_namespaced=False),
    Resource("coordination.k8s.io/v1", "leases", "Lease"),
)


@dataclass(frozen=True)
class Change:
    """One change of an object."""

    version: int
    type: str
    """ADDED, MODIFIED or DELETED."""
    resource: Resource
    object: Json
    before: Json | None
    """The object before it, None for ADDED."""


class Store:
    """Objects by kind, namespace and name."""

    def __init__(self) -> None:
        self.skew_s = 0.0
        """Seconds by which the clock of the API server is ahead of this machine's."""
        self.version = self.oldest = 100
        """A watch from before this version is expired."""
        self._history: deque[Change] = deque(maxlen=HISTORY_MAX)
        self._objects: dict[Resource, dict[tuple[str, str], Json]] = {one: {} for one in RESOURCES}
        self._watches: dict[int, Callable[[Change], None]] = {}
        self._numbers = itertools.count()

    def now(self, ahead_s: float = 0.0) -> str:
        """Return the API server's time, as objects have it."""
        at = datetime.now(UTC) + timedelta(seconds=self.skew_s + ahead_s)
        return at.strftime("%Y-%m-%dT%H:%M:%SZ")

    def get(self, resource: Resource, name: str, namespace: str = "") -> Json | None:
        """Return an object, None if there is none."""
        return self._objects[resource].get((namespace, name))

    def every(self, resource: Resource, namespace: str = "") -> Iterator[Json]:
        """Yield the objects of a kind in the order of their names; "" for all namespaces."""
        for (one, _), object in sorted(self._objects[resource].items()):
            if namespace in ("", one):
                yield object

    def add(self, resource: Resource, object: Json) -> Json:
        """Add an object, which has a name that is not taken; return it with what the API server
        sets."""
        made = copy.deepcopy(object)
        metadata = made["metadata"]
        metadata["uid"] = str(uuid4())
        metadata["creationTimestamp"] = self.now()
        made |= {"kind": resource.kind, "apiVersion": resource.api_version}
        return self._put("ADDED", resource, made, None)

    def change(
        self,
        resource: Resource,
        object: Json,
        change: Callable[[Json], None],
        *,
        is_spec: bool = False,
    ) -> Json:
        """Change the stored object with the name of `object`, unless it is another one by now or
        gone; return what is stored. Nothing changes no version. `is_spec`: it has a new
        generation."""
        metadata = object["metadata"]
        before = self.get(resource, metadata["name"], metadata.get("namespace", ""))
        if before is None or before["metadata"]["uid"] != metadata["uid"]:
            return object
        made = copy.deepcopy(before)
        change(made)
        if made == before:
            return before
        if is_spec:
            made["metadata"]["generation"] = made["metadata"].get("generation", 0) + 1
        return self._put("MODIFIED", resource, made, before)

    def remove(self, resource: Resource, object: Json) -> None:
        """Remove the stored object with the name of `object`, unless it is another one by now."""
        metadata = object["metadata"]
        key = metadata.get("namespace", ""), metadata["name"]
        before = self._objects[resource].get(key)
        if before is None or before["metadata"]["uid"] != metadata["uid"]:
            return
        self._put("DELETED", resource, copy.deepcopy(before), before)
        del self._objects[resource][key]

    def _put(self, type: str, resource: Resource, made: Json, before: Json | None) -> Json:
        self.version += 1
        metadata = made["metadata"]
        metadata["resourceVersion"] = str(self.version)
        self._objects[resource][metadata.get("namespace", ""), metadata["name"]] = made
        change = Change(self.version, type, resource, made, before)
        self._history.append(change)
        for tell in list(self._watches.values()):
            tell(change)
        return made

    def since(self, resource: Resource, version: int) -> list[Change] | None:
        """Return the changes after a version, None if they are expired."""
        first = self._history[0].version if self._history else 0
        expired = version < self.oldest or (
            len(self._history) == HISTORY_MAX and version < first - 1
        )
        if expired:
            return None
        return [one for one in self._history if one.version > version and one.resource == resource]

    def watch(self, tell: Callable[[Change], None]) -> Callable[[], None]:
        """Call `tell` for each change; return what ends that."""
        number = next(self._numbers)
        self._watches[number] = tell
        return lambda: self._watches.pop(number, None) and None

    def expire(self) -> None:
        """Forget all changes: watches from before have to list again."""
        self.version += 1
        self.oldest = self.version
        self._history.clear()
