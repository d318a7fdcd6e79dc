"""What the objects of a Pod say about its replica, from its scheduling to its end. Pure.

A watch shows the states of a Pod in order, but may skip some, and after a pause shows the present
one only. So each answer is read from one object, and `PodFate` keeps what must be said once, or can
be known only from a later object: that a replica has ended, and that its Pod is gone.

A Pod that is gone is no proof that its containers are: whoever deletes it with a grace period of 0
makes the API server forget it at once. The proof is an object in which nothing runs any more.
Sources: the Kubernetes documentation, Pod Lifecycle, Disruptions (Pod disruption conditions) and
Sidecar Containers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from hosts.errors import shown
from hosts.kubernetes.objects import ContainerStatus, Pod, Terminated
from pool_manager.driver import Exit
from pool_manager.drivers.container_exits import (
    describe_exit,
    describe_server_exit,
    describe_sidecar_exit,
)

REPLICA: Final = "replica"
"""Name of the container of a replica."""
SIDECAR: Final = "sidecar"
"""Name of the container of a sidecar: an init container that runs as long as its Pod."""
SERVER: Final = "server"
"""Name of the container of a server that is apart from its sidecar."""
FINAL: Final = ("Failed", "Succeeded")
"""Phases of a Pod that has ended."""
SCHEDULED: Final = "PodScheduled"
UNSCHEDULABLE: Final = "Unschedulable"
DISRUPTED: Final = "DisruptionTarget"
"""Condition of a Pod that the cluster ends: by a preemption, an eviction, or with its node."""
COLLECTED: Final = "DeletionByPodGC"
"""Reason of that condition if the control plane, not the kubelet, has called the Pod failed: then
its containers may run on."""
EVICTED: Final = "Evicted"
"""Reason of a Pod that the kubelet has ended. Without DISRUPTED its containers have written more
than they may."""
UNKNOWN: Final = "ContainerStatusUnknown"
"""Reason of a container that the kubelet has not found after its own restart or the node's."""
NEVER_RAN: Final = ("StartError", "ContainerCannotRun")
"""Reasons of a container whose process could not be started."""
OUT_OF_MEMORY: Final = "OOMKilled"
BY_SOMEBODY: Final = "its Pod was deleted, not by this server"


class Trouble(NamedTuple):
    """Why a container does not start."""

    text: str
    """In the kubelet's words."""
    patience_s: float
    """Seconds for which the kubelet may try again before the start is given up."""
    is_lasting: bool
    """Whether the next start would have it, too."""


IMAGE_S: Final = 60.0
CONFIG_S: Final = 5.0
"""A Secret that was just made may not have reached the kubelet yet."""
TROUBLES: Final = {
    "ErrImagePull": (IMAGE_S, False),
    "ImagePullBackOff": (IMAGE_S, False),
    "ImageInspectError": (IMAGE_S, False),
    "RegistryUnavailable": (IMAGE_S, False),
    "ErrImageNeverPull": (0.0, True),
    "InvalidImageName": (0.0, True),
    "CreateContainerConfigError": (CONFIG_S, True),
    "CreateContainerError": (CONFIG_S, True),
    "RunContainerError": (CONFIG_S, True),
}
"""Reasons of the kubelet for a container that waits: patience, and whether the reason lasts."""


@dataclass(frozen=True, slots=True)
class PodFate:
    """What is known of one Pod. Made from its first object by `first_seen`; each method returns the
    next state."""

    pod: Pod
    """Its last object."""
    end: Exit | None = None
    """How its replica has ended, as told first; None while it has not."""
    is_asked: bool = False
    """Whether this server has asked for its deletion."""
    gone_s: float | None = None
    """Monotonic seconds since which the API server has it no more; None while it has it."""
    is_proven: bool = False
    """Whether nothing of it runs, and nothing will."""

    @property
    def id(self) -> str:
        """The Pod's uid."""
        return self.pod.metadata.uid

    @property
    def is_over(self) -> bool:
        """Whether its replica has ended, or its Pod is gone."""
        return self.end is not None or self.gone_s is not None

    def seen(self, pod: Pod) -> PodFate:
        """Return the state after an object of the Pod."""
        end = self.end or end_of(pod, is_asked=self.is_asked)
        # A Pod that is there was not gone: a list may be of an earlier moment than an event.
        return replace(self, pod=pod, end=end, gone_s=None, is_proven=has_ended(pod))

    def asked(self) -> PodFate:
        """Return the state once this server asks for the deletion."""
        return replace(self, is_asked=True)

    def refused(self, why: str) -> PodFate:
        """Return the state once its start is given up for want of a place: its end is known, and
        this server asks for its deletion."""
        return replace(self, end=self.end or Exit(why, is_eviction=True), is_asked=True)

    def removed(self, last: Pod | None, now: float) -> PodFate:
        """Return the state once the API server has the Pod no more. `last` is the last object that
        it had; None if that is not known: then only what an earlier one has proven is."""
        is_proven = self.is_proven if last is None else is_last_proof(last)
        fate = self.seen(last) if last is not None else self
        end = fate.end or Exit("exited" if self.is_asked else BY_SOMEBODY, not self.is_asked)
        return replace(fate, end=end, gone_s=now, is_proven=is_proven)

    def free_s(self, lease_s: float, left_s: float) -> float | None:
        """Return when the devices of the Pod are free, in monotonic seconds; None if that depends
        on the API server. Without a proof, a replica ends by its lease of `lease_s`, which nobody
        has renewed since `left_s`."""
        if self.gone_s is None:
            return None
        return self.gone_s if self.is_proven else max(self.gone_s, left_s) + lease_s


def first_seen(pod: Pod) -> PodFate:
    """Return the state of a Pod at its first object."""
    return PodFate(pod).seen(pod)


# Before its containers run


def node_of(pod: Pod) -> str:
    """Return the node that a Pod is on, or else is to be on; "" if it names none."""
    if pod.spec.node_name or pod.spec.affinity is None:
        return pod.spec.node_name
    affinity = pod.spec.affinity.node_affinity
    required = affinity and affinity.required_during_scheduling_ignored_during_execution
    terms = required.node_selector_terms if required else ()
    fields = [field for term in terms for field in term.match_fields]
    return next((one.values[0] for one in fields if one.values), "")


def refusal_of(pod: Pod) -> str:
    """Return why the scheduler has no place for a Pod, in its words; "" while it has not said so,
    or has one."""
    if pod.spec.node_name:
        return ""
    for one in pod.status.conditions:
        if one.type == SCHEDULED and one.status == "False" and one.reason == UNSCHEDULABLE:
            return shown(one.message) or UNSCHEDULABLE
    return ""


def trouble_of(pod: Pod) -> Trouble | None:
    """Return why a container of a Pod does not start, None while the kubelet reports no error."""
    for one in _statuses(pod):
        waits = one.state.waiting
        if waits is not None and waits.reason in TROUBLES:
            patience_s, is_lasting = TROUBLES[waits.reason]
            text = f"{waits.reason}: {waits.message}" if waits.message else waits.reason
            return Trouble(shown(text), patience_s, is_lasting)
    return None


def progress_of(pod: Pod) -> str:
    """Return what a Pod waits for, "" once all of its containers have started."""
    node = pod.spec.node_name
    if not node:
        return "waits for the scheduler"
    if trouble := trouble_of(pod):
        return f"waits on node {node}: {trouble.text}"
    statuses = list(_statuses(pod))
    waiting = [one.state.waiting for one in statuses if one.state.waiting is not None]
    if not waiting and statuses:
        return ""
    reason = next((one.reason for one in waiting if one.reason), "")
    detail = f" ({reason})" if reason else ""
    return f"waits on node {node} for its image or its container{detail}"


# The end


def end_of(pod: Pod, *, is_asked: bool) -> Exit | None:
    """Return how the replica of a Pod has ended, None while it has not. `is_asked`: this server has
    asked for the deletion of the Pod."""
    how = _first_end(pod)
    if how is None and pod.status.phase not in FINAL:
        return None
    # 1. The cluster has ended it.
    for one in pod.status.conditions:
        if one.type == DISRUPTED and one.status == "True":
            return Exit(_evicted(one.reason, one.message), is_eviction=True)
    # 2. It has written more than its volumes may have.
    said = (pod.status.reason, pod.status.message)
    if pod.status.reason == EVICTED:
        return Exit(f"was ended by the kubelet: {shown(pod.status.message) or EVICTED}")
    # 3. The kubelet has refused it, or its node shuts down.
    if pod.status.reason or how is None:
        is_own = how is None and pod.status.phase == "Succeeded"
        return Exit("exited" if is_own else _evicted(*said), is_eviction=not is_own)
    # 4. Somebody has deleted it.
    if pod.metadata.deletion_timestamp and not is_asked:
        return Exit(BY_SOMEBODY, is_eviction=True)
    return how


def _evicted(reason: str, message: str) -> str:
    words = ": ".join(filter(None, (reason, message)))
    return f"was evicted: {shown(words) or 'no reason was given'}"


def _first_end(pod: Pod) -> Exit | None:
    """Return the end of the first container of a replica that has ended. A server's end ends its
    sidecar, and explains both; a sidecar that the kubelet has started again has ended before."""
    for one in pod.status.container_statuses:
        if one.state.terminated is not None:
            return _described(one, one.state.terminated)
    for one in pod.status.init_container_statuses:
        ended = one.state.terminated or one.last_state.terminated
        if ended is not None:
            return _described(one, ended)
        if one.restart_count:
            return Exit("lost its sidecar, which the kubelet has started again")
    return None


def _described(status: ContainerStatus, ended: Terminated) -> Exit:
    if ended.reason == UNKNOWN:
        return Exit(f"was lost with its node's state: {shown(ended.message)}", is_eviction=True)
    if ended.reason in NEVER_RAN:
        return Exit(f"could not be started: {shown(ended.message) or ended.reason}")
    describe = _DESCRIBE.get(status.name, describe_exit)
    return Exit(describe(ended.exit_code, out_of_memory=ended.reason == OUT_OF_MEMORY))


_DESCRIBE: Final = {SERVER: describe_server_exit, SIDECAR: describe_sidecar_exit}


# The proof


def has_ended(pod: Pod) -> bool:
    """Whether nothing of a Pod runs, and nothing will: as its restart policy is Never, a container
    that has ended stays so, and a sidecar follows the last of them."""
    statuses = list(_statuses(pod))
    if any(one.state.running is not None for one in statuses):
        return False
    if pod.status.phase in FINAL and not _is_collected(pod):
        return True  # a kubelet names such a phase only once its containers are stopped
    main = pod.status.container_statuses
    return bool(main) and all(one.state.terminated is not None for one in statuses)


def is_last_proof(last: Pod) -> bool:
    """Whether the last object of a Pod proves that nothing of it runs. One that no node had was
    never started: the scheduler would have changed it."""
    return not last.spec.node_name or has_ended(last)


def _is_collected(pod: Pod) -> bool:
    return any(one.type == DISRUPTED and one.reason == COLLECTED for one in pod.status.conditions)


def _statuses(pod: Pod) -> Iterator[ContainerStatus]:
    yield from pod.status.init_container_statuses
    yield from pod.status.container_statuses
