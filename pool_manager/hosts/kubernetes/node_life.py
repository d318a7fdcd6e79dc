"""What an engine tells its manager of a node of its cluster; pure.

Each node that replicas may run on is a host. `next_step` compares what the manager was told of a
node (`Told`) with what the API server has of it (`NodeFacts`), and returns what to tell next. It is
called whenever either has changed and, while something of a node depends on time, at each tick; a
second call with the same arguments returns nothing.

A node that is not ready is out of its kubelet's reach, not out of that of gateways and links, which
dial replicas directly. So it is a host whose engine is silent (`ReportSilent`) as long as one of
its replicas answers PINGs, and unreachable (`ReportAway`) only without such a replica.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from pool_manager.core.state import Device
from pool_manager.hosts.kubernetes.inventory import NodeFacts

ANSWER_S: Final = 15.0
"""Seconds that the replicas of a node which is not ready get to answer a PING."""


class NodeContact(StrEnum):
    """What the manager was told of a node."""

    NONE = "none"
    """That it has no such host."""
    EXPECTED = "expected"
    """That there is such a host, which has not been up yet."""
    UP = "up"
    SILENT = "silent"
    """That the host is up, but its engine is silent: nothing can be started or stopped there."""
    AWAY = "away"
    """That the host is unreachable."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What a host has for replicas."""

    devices: tuple[Device, ...] = ()
    memory_mib: float = 0.0
    """As in `events.HostUp`."""
    standby_kinds: frozenset[str] = frozenset()
    """As in `events.HostUp`."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the manager was told of a node last."""

    contact: NodeContact = NodeContact.NONE
    labels: Mapping[str, str] | None = None
    """None: they are to be told again."""
    is_draining: bool = False
    is_leaving: bool = False
    """Whether it was withdrawn: the manager forgets it with the last of its replicas."""
    offer: Offer | None = None
    """None: it is to be told again, as nothing was told or the manager may have forgotten it."""
    answered_s: float = 0.0
    """When a replica has answered last, or the node became silent: monotonic seconds."""

    def forgotten(self) -> Told:
        """Return what is left if the manager may have forgotten the host: its replicas are what
        they were."""
        return replace(self, labels=None, offer=None)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What else decides about a node."""

    now: float
    """Monotonic seconds."""
    api_down: str = ""
    """Why the API server gives no answers, "" while it does."""
    is_answering: bool = False
    """Whether a replica of the node has answered the last PINGs."""
    has_pods: bool = False
    """Whether replicas of this server run there by the list of Pods."""
    standby_kinds: frozenset[str] = frozenset()
    """As in `events.HostUp`."""


@dataclass(frozen=True, slots=True)
class Announce:
    """There is such a host, or its labels or its drain have changed."""

    labels: Mapping[str, str]
    is_draining: bool


@dataclass(frozen=True, slots=True)
class Withdraw:
    """There is no such host any more: its replicas drain; with `is_gone` they are given up."""

    is_gone: bool


@dataclass(frozen=True, slots=True)
class ReportUp:
    """The host is up."""

    offer: Offer
    is_found: bool
    """Whether it was not up before: the replicas without a Pod have ended. Otherwise none has."""


@dataclass(frozen=True, slots=True)
class ReportSilent:
    """The host is up, but its engine is silent."""

    reason: str


@dataclass(frozen=True, slots=True)
class ReportAway:
    """The host is unreachable."""

    reason: str


Command = Announce | Withdraw | ReportUp | ReportSilent | ReportAway
Step = tuple[Told, list[Command]]


def next_step(told: Told, seen: NodeFacts | None, around: Surroundings) -> Step:
    """Return what the manager is to be told of a node, and what it was told after that. `seen` is
    None for one that the API server does not have any more."""
    # 1. Without answers nothing new is known: replicas serve on, and none is started or stopped.
    if around.api_down:
        if told.contact is not NodeContact.UP:
            return told, []
        silent = replace(told, contact=NodeContact.SILENT, answered_s=around.now)
        return silent, [ReportSilent(around.api_down)]
    # 2. A node that was deleted. Its Pods are deleted with it, by the cluster.
    if seen is None:
        return Told(), [] if told.contact is NodeContact.NONE else [Withdraw(is_gone=True)]
    # 3. One that is none of ours, or is so no longer. Until its last replica has ended its contact
    #    goes on: a drain needs it as well.
    commands: list[Command] = []
    if seen.why_unusable:
        if told.contact is NodeContact.NONE:
            return Told(), []
        if not told.is_leaving:
            told = replace(told, is_leaving=True)
            commands.append(Withdraw(is_gone=False))
    # 4. One of ours.
    else:
        told, commands = _announced(told, seen)
    # 5. Whether it can be used now.
    has_slots = any(one.kind == "cpu" for one in seen.devices)
    memory_mib = 0.0 if has_slots else seen.memory_mib
    offer = Offer(seen.devices, memory_mib, around.standby_kinds)
    if seen.why_not_ready:
        told, said = _not_ready(told, seen.why_not_ready, offer, around)
    else:
        told, said = _ready(told, offer)
    return told, commands + said


def _announced(told: Told, seen: NodeFacts) -> Step:
    """Announce a node that is new or has changed. One that was leaving is like a new one: the
    manager may have forgotten it meanwhile."""
    is_new = told.contact is NodeContact.NONE or told.is_leaving
    if not is_new and (told.labels, told.is_draining) == (seen.labels, seen.is_draining):
        return told, []
    contact = NodeContact.EXPECTED if is_new else told.contact
    told = replace(
        told,
        contact=contact,
        labels=seen.labels,
        is_draining=seen.is_draining,
        is_leaving=False,
    )
    return told, [Announce(seen.labels, seen.is_draining)]


def _ready(told: Told, offer: Offer) -> Step:
    up = replace(told, contact=NodeContact.UP, offer=offer)
    match told.contact:
        case NodeContact.EXPECTED | NodeContact.AWAY:
            return up, [ReportUp(offer, is_found=True)]
        case NodeContact.UP | NodeContact.SILENT if told.offer != offer:
            return up, [ReportUp(offer, is_found=False)]
    # The manager asks a silent engine for its list until that answers.
    return up, []


def _not_ready(told: Told, why: str, offer: Offer, around: Surroundings) -> Step:
    silent = replace(told, contact=NodeContact.SILENT, answered_s=around.now)
    match told.contact:
        case NodeContact.EXPECTED if around.has_pods:
            # Those of an earlier manager may serve on: they dial in once the host is up.
            found = ReportUp(offer, is_found=True)
            return replace(silent, offer=offer), [found, ReportSilent(why)]
        case NodeContact.UP if around.is_answering:
            return silent, [ReportSilent(why)]
        case NodeContact.SILENT if around.is_answering:
            return silent, []
        case NodeContact.SILENT if around.now - told.answered_s < ANSWER_S:
            return told, []
        case NodeContact.UP | NodeContact.SILENT:
            return replace(told, contact=NodeContact.AWAY), [ReportAway(why)]
    return told, []
