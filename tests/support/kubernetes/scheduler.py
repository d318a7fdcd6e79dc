"""The double's scheduler: filters of kube-scheduler 1.36 in its words, preemption, and devices by
claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.support.kubernetes import claims
from tests.support.kubernetes.admission import FINAL
from tests.support.kubernetes.conditions import condition, set_condition
from tests.support.kubernetes.quantities import requested, thousandths
from tests.support.kubernetes.store import NODES, PODS, Json, Resource, Store

PVCS = Resource("v1", "persistentvolumeclaims", "PersistentVolumeClaim")
HELPLESS = "Preemption is not helpful for scheduling"
PREEMPTING = "default-scheduler: preempting to accommodate a higher priority pod"
OTHER_NODE = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
TAINTED = "node(s) had untolerated taint(s)"


@dataclass(frozen=True)
class Refusal:
    """Why a node does not take a Pod."""

    words: str
    may_preempt: bool = False
    """Whether it would, were there fewer Pods."""


class Scheduler:
    """Binds the Pods that wait, those of the highest priority first."""

    def __init__(self, store: Store, delete: Callable[[Json], object]) -> None:
        """`delete` deletes a Pod with its own grace period."""
        self._store, self._delete = store, delete

    def run(self) -> None:
        """Look at each Pod that has no node once."""
        waiting = [
            pod
            for pod in self._store.every(PODS)
            if not pod["spec"].get("nodeName")
            and not pod["metadata"].get("deletionTimestamp")
            and pod["status"]["phase"] == "Pending"
        ]
        for pod in sorted(waiting, key=lambda one: -int(one["spec"]["priority"])):
            self._schedule(pod)

    def _schedule(self, pod: Json) -> None:
        nodes = list(self._store.every(NODES))
        if why := self._missing(pod):
            helpless = _counted([HELPLESS] * len(nodes))
            head = f"0/{len(nodes)} nodes are available: "
            self._refuse(pod, f"{head}{why}. preemption: {head}{helpless}")
            return
        refusals = {node["metadata"]["name"]: self._refusal(pod, node) for node in nodes}
        for name, refusal in refusals.items():
            if refusal is None:
                self._bind(pod, name)
                return
        taken: dict[str, Refusal] = {key: one for key, one in refusals.items() if one is not None}
        head = f"0/{len(nodes)} nodes are available: "
        why = head + _counted([one.words for one in taken.values()])
        if not nodes:
            why = "no nodes available to schedule pods"
        self._refuse(pod, f"{why} {self._preempt(pod, taken, head)}".rstrip())

    def _missing(self, pod: Json) -> str:
        namespace = pod["metadata"]["namespace"]
        for volume in pod["spec"].get("volumes", []):
            name = (volume.get("persistentVolumeClaim") or {}).get("claimName", "")
            if name and self._store.get(PVCS, name, namespace) is None:
                return f'persistentvolumeclaim "{name}" not found'
        return claims.missing(self._store, pod)

    def _refusal(self, pod: Json, node: Json) -> Refusal | None:
        name, spec = node["metadata"]["name"], node.get("spec") or {}
        if not _wants_name(pod, name):
            return Refusal(OTHER_NODE)
        if spec.get("unschedulable") and not any(
            tolerates(one, {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
            for one in pod["spec"]["tolerations"]
        ):
            return Refusal("node(s) were unschedulable")
        if not _matches_labels(pod, node):
            return Refusal("node(s) didn't match Pod's node affinity/selector")
        if untolerated(pod, node, ("NoSchedule", "NoExecute")):
            return Refusal(TAINTED)
        if short := self._short(pod, node, self._used(name)):
            return Refusal(short, may_preempt=True)
        if why := claims.refusal(self._store, pod, name):
            return Refusal(why)
        return None

    def _used(self, node: str, without: frozenset[str] = frozenset()) -> Counter[str]:
        total: Counter[str] = Counter()
        for pod in self._store.every(PODS):
            is_here = pod["spec"].get("nodeName") == node
            is_counted = pod["metadata"]["uid"] not in without
            if is_here and is_counted and pod["status"]["phase"] not in FINAL:
                total += requested(pod) + Counter({"pods": 1})
        return total

    def _short(self, pod: Json, node: Json, used: Counter[str]) -> str:
        """Return what a node has too little of, "" if it has room."""
        there = node["status"]["allocatable"]
        if used["pods"] + 1 > int(there.get("pods", 110)):
            return "Too many pods"
        for name, wanted in sorted(requested(pod).items()):
            if wanted and used[name] + wanted > thousandths(name, there.get(name, 0)):
                return f"Insufficient {name}"
        return ""

    def _preempt(self, pod: Json, refusals: dict[str, Refusal], head: str) -> str:
        """Make room by the Pods of a lower priority, if that is possible; return what is said."""
        begin = "no new claims to deallocate, preemption: "
        if pod["spec"]["preemptionPolicy"] == "Never":
            return f"{begin}not eligible due to preemptionPolicy=Never."
        said = []
        for name, refusal in refusals.items():
            if not refusal.may_preempt:
                said.append(HELPLESS)
                continue
            victims = self._victims(pod, name)
            if victims:
                for victim in victims:
                    self._end(victim)
                return ""
            said.append("No preemption victims found for incoming pod")
        return begin + head + _counted(said) if said else ""

    def _victims(self, pod: Json, name: str) -> list[Json]:
        """Return the fewest Pods of lower priority whose end gives room; [] if none does or they
        are about to end."""
        node = self._store.get(NODES, name)
        assert node is not None
        lower = [
            one
            for one in self._store.every(PODS)
            if one["spec"].get("nodeName") == name
            and one["status"]["phase"] not in FINAL
            and int(one["spec"]["priority"]) < int(pod["spec"]["priority"])
        ]
        gone: list[Json] = []
        for victim in sorted(lower, key=lambda one: int(one["spec"]["priority"])):
            gone.append(victim)
            used = self._used(name, frozenset(one["metadata"]["uid"] for one in gone))
            if not self._short(pod, node, used):
                return [one for one in gone if not one["metadata"].get("deletionTimestamp")]
        return []

    def _end(self, victim: Json) -> None:
        now = self._store.now()
        made = condition("DisruptionTarget", "True", now, "PreemptionByScheduler", PREEMPTING)
        self._store.change(PODS, victim, lambda one: set_condition(one, made))
        stored = self._store.get(PODS, victim["metadata"]["name"], victim["metadata"]["namespace"])
        assert stored is not None
        self._delete(stored)

    def _refuse(self, pod: Json, why: str) -> None:
        made = condition("PodScheduled", "False", self._store.now(), "Unschedulable", why)
        made["observedGeneration"] = pod["metadata"]["generation"]
        self._store.change(PODS, pod, lambda one: set_condition(one, made))

    def _bind(self, pod: Json, node: str) -> None:
        claims.allocate(self._store, pod, node)
        made = condition("PodScheduled", "True", self._store.now())

        def bind(one: Json) -> None:
            one["spec"]["nodeName"] = node
            set_condition(one, made)

        self._store.change(PODS, pod, bind)


def _counted(words: list[str]) -> str:
    return ", ".join(sorted(f"{count} {word}" for word, count in Counter(words).items())) + "."


def _terms(pod: Json) -> list[Json]:
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    found: list[Json] = required.get("nodeSelectorTerms") or []
    return found


def _wants_name(pod: Json, name: str) -> bool:
    """Whether the fields of a term of the Pod's affinity name the node."""
    terms = _terms(pod)
    return not terms or any(
        all(name in one["values"] for one in term.get("matchFields", [])) for term in terms
    )


def _matches_labels(pod: Json, node: Json) -> bool:
    labels = node["metadata"].get("labels") or {}
    wanted = pod["spec"].get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    terms = _terms(pod)
    return not terms or any(all(_met(term, labels)) for term in terms)


def _met(term: Json, labels: dict[str, str]) -> Iterator[bool]:
    for one in term.get("matchExpressions", []):
        value, values = labels.get(one["key"]), one.get("values", [])
        match one["operator"]:
            case "In":
                yield value in values
            case "NotIn":
                yield value not in values
            case "Exists":
                yield value is not None
            case "DoesNotExist":
                yield value is None
            case other:
                raise ValueError(f"expected a known operator of a node selector, got {other}")


def untolerated(pod: Json, node: Json, effects: tuple[str, ...]) -> list[Json]:
    """Return the taints of a node with one of the effects that a Pod does not tolerate."""
    return [
        taint
        for taint in (node.get("spec") or {}).get("taints", [])
        if taint["effect"] in effects
        and not any(tolerates(one, taint) for one in pod["spec"]["tolerations"])
    ]


def tolerates(toleration: Json, taint: Json) -> bool:
    """Whether a toleration is for a taint."""
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("key") not in (None, "", taint["key"]):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(toleration.get("value", "") == taint.get("value", ""))
