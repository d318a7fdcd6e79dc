"""The double's controllers: nodes that are silent or cordoned, and Pods whose node is gone or has a
taint that they do not tolerate for long."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Final

from tests.support.kubernetes.admission import FINAL
from tests.support.kubernetes.api import Api
from tests.support.kubernetes.conditions import condition, set_condition
from tests.support.kubernetes.kubelet import READY, Kubelet
from tests.support.kubernetes.pace import Pace, elapse
from tests.support.kubernetes.scheduler import tolerates
from tests.support.kubernetes.store import NODES, PODS, Json, Store

UNREACHABLE: Final = "node.kubernetes.io/unreachable"
NOT_READY: Final = "node.kubernetes.io/not-ready"
CORDONED: Final = "node.kubernetes.io/unschedulable"
SILENT: Final = "Kubelet stopped posting node status."


class Controllers:
    """Look at everything from time to time."""

    def __init__(self, store: Store, api: Api, pace: Pace, kubelets: Mapping[str, Kubelet]) -> None:
        self._store, self._api, self._pace, self._kubelets = store, api, pace, kubelets
        self._beats: dict[str, float] = {}
        """Time at which a kubelet was last heard, by node."""
        self._tainted: dict[tuple[str, str], float] = {}
        """Time at which a node's NoExecute taint was first seen, by its key."""

    async def run(self) -> None:
        """Work for ever."""
        while True:
            await elapse(self._pace.collect_s)
            now = asyncio.get_running_loop().time()
            for name, kubelet in list(self._kubelets.items()):
                if kubelet.beat():
                    self._beats[name] = now
                    self._set_taints(name, UNREACHABLE)
                    effects = ["NoSchedule", "NoExecute"] if kubelet.why_not_ready else []
                    self._set_taints(name, NOT_READY, *effects)
                elif now - self._beats.setdefault(name, now) > self._pace.node_grace_s:
                    self._set_taints(name, NOT_READY)
                    self._lose(name)
                self.follow_cordon(name)
            for pod in list(self._store.every(PODS)):
                self._collect(pod, now)

    def _set_taints(self, name: str, key: str, *effects: str) -> None:
        """Give a node the taints of a key, none if no effect is named."""
        node = self._store.get(NODES, name)
        if node is None:
            return
        there = node["spec"].get("taints", [])
        if {one["effect"] for one in there if one["key"] == key} == set(effects):
            return

        def change(one: Json) -> None:
            kept = [taint for taint in one["spec"].get("taints", []) if taint["key"] != key]
            now = self._store.now()
            made = [{"key": key, "effect": effect, "timeAdded": now} for effect in effects]
            one["spec"]["taints"] = [*kept, *made]
            if not one["spec"]["taints"]:
                del one["spec"]["taints"]

        self._store.change(NODES, node, change)

    def follow_cordon(self, name: str) -> None:
        """Give a cordoned node its taint, or take it: a moment after `unschedulable`, both ways."""
        node = self._store.get(NODES, name)
        if node is not None:
            is_cordoned = bool(node["spec"].get("unschedulable"))
            self._set_taints(name, CORDONED, *["NoSchedule"] * is_cordoned)

    def _lose(self, name: str) -> None:
        """Say that a node is silent."""
        node = self._store.get(NODES, name)
        if node is None:
            return

        def change(one: Json) -> None:
            for type in READY:
                made = condition(type, "Unknown", self._store.now(), "NodeStatusUnknown", SILENT)
                set_condition(one, made)

        self._store.change(NODES, node, change)
        self._set_taints(name, UNREACHABLE, "NoSchedule", "NoExecute")
        for pod in list(self._store.every(PODS)):
            if pod["spec"].get("nodeName") == name and pod["status"]["phase"] not in FINAL:
                made = condition("Ready", "False", self._store.now())
                self._store.change(PODS, pod, partial(set_condition, made=made))

    def _collect(self, pod: Json, now: float) -> None:
        """End a Pod whose node is gone, or that does not tolerate a taint any longer."""
        name = pod["spec"].get("nodeName")
        if not name:
            return
        node = self._store.get(NODES, name)
        if node is None:
            gone = "DeletionByPodGC", "PodGC: node no longer exists"
            made = condition("DisruptionTarget", "True", self._store.now(), *gone)

            def fail(one: Json) -> None:
                set_condition(one, made)
                one["status"]["phase"] = "Failed"

            self._api.delete_pod(self._store.change(PODS, pod, fail), 0)
        elif not pod["metadata"].get("deletionTimestamp") and self._is_over(pod, node, now):
            said = "Taint manager: deleting due to NoExecute taint"
            self._api.delete_pod(disrupt(self._store, pod, "DeletionByTaintManager", said))

    def _is_over(self, pod: Json, node: Json, now: float) -> bool:
        """Whether the time is over for which a Pod tolerates the NoExecute taints of its node."""
        name = node["metadata"]["name"]
        keys = set()
        is_over = False
        for taint in node["spec"].get("taints", []):
            if taint["effect"] != "NoExecute":
                continue
            keys.add((name, taint["key"]))
            since_s = now - self._tainted.setdefault((name, taint["key"]), now)
            found = [one for one in pod["spec"]["tolerations"] if tolerates(one, taint)]
            times = [one["tolerationSeconds"] for one in found if "tolerationSeconds" in one]
            is_over |= not found or (bool(times) and since_s >= min(times))
        for key in [one for one in self._tainted if one[0] == name and one not in keys]:
            del self._tainted[key]
        return is_over


def disrupt(store: Store, pod: Json, reason: str, message: str) -> Json:
    """Say that a Pod is about to be ended by the cluster; return it."""
    made = condition("DisruptionTarget", "True", store.now(), reason, message)
    return store.change(PODS, pod, lambda one: set_condition(one, made))
