"""What the objects of a Pod say about its replica."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from hosts.kubernetes.objects import Pod
from pool_manager.driver import MEMORY_KILL, Exit
from pool_manager.hosts.kubernetes.ends import (
    BY_SOMEBODY,
    CONFIG_S,
    IMAGE_S,
    PodFate,
    end_of,
    first_seen,
    has_ended,
    node_of,
    progress_of,
    refusal_of,
    trouble_of,
)

RECORDED = Path("tests/data/kubernetes_watch.jsonl")
"""A watch of a real cluster."""
LEASE_S = 65.0


def pod(**status: Any) -> Pod:
    """Return a Pod that a node has, with this status."""
    given = {"metadata": {"uid": "u"}, "spec": {"nodeName": "n1"}, "status": status}
    return msgspec.convert(given, Pod)


def container(name: str = "replica", **state: Any) -> dict[str, Any]:
    """Return the status of a container."""
    return {"name": name, "state": state}


def ended(code: int = 1, reason: str = "Error", message: str = "") -> dict[str, Any]:
    """Return the state of a container that has ended."""
    return {"exitCode": code, "reason": reason, "message": message}


def disrupted(reason: str, message: str = "") -> dict[str, Any]:
    """Return the condition of a Pod that the cluster ends."""
    return {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}


RUNNING = pod(phase="Running", containerStatuses=[container(running={})])
CREATING = pod(
    phase="Pending", containerStatuses=[container(waiting={"reason": "ContainerCreating"})]
)


def deleted(one: Pod) -> Pod:
    """Return the Pod while it is being deleted."""
    metadata = msgspec.structs.replace(one.metadata, deletion_timestamp="2026-11-28T19:03:00Z")
    return msgspec.structs.replace(one, metadata=metadata)


# The recorded watch


def recorded() -> dict[str, list[tuple[str, Pod]]]:
    """Return types and objects of the recorded events by the name of their Pod."""
    found: dict[str, list[tuple[str, Pod]]] = defaultdict(list)
    for line in RECORDED.read_text().splitlines():
        event = json.loads(line)
        one = msgspec.convert(event["object"], Pod)
        if one.metadata.uid:
            found[one.metadata.name].append((event["type"], one))
    return found


def play(events: list[tuple[str, Pod]], *, asked: bool = False) -> PodFate:
    """Return the state after events; the Pod is gone at 100 s."""
    fate = first_seen(events[0][1])
    for type, one in events:
        if asked and one.metadata.deletion_timestamp:
            fate = fate.asked()
        fate = fate.removed(one, 100.0) if type == "DELETED" else fate.seen(one)
    return fate


@pytest.mark.parametrize(
    ("name", "asked", "end", "is_proven"),
    [
        ("a", True, Exit("was killed by SIGKILL"), True),
        ("a", False, Exit(BY_SOMEBODY, True), True),
        ("b", False, Exit("was killed by SIGKILL"), True),
        ("c", False, Exit(BY_SOMEBODY, True), False),
        ("g1", True, Exit("exited"), True),
        ("im", True, Exit("exited"), False),
        ("oom", False, Exit(f"{MEMORY_KILL} and was killed by SIGKILL"), True),
    ],
)
def test_ends_of_a_real_cluster(name: str, asked: bool, end: Exit, is_proven: bool) -> None:
    """A force delete leaves no proof; that of an unscheduled Pod does."""
    fate = play(recorded()[name], asked=asked)
    assert fate.end == end
    assert fate.gone_s == 100.0
    assert fate.is_proven == is_proven


def test_a_refusal_by_the_kubelet_is_an_eviction() -> None:
    """The node of a real cluster had no GPU left; its Pod never ran."""
    fate = play(recorded()["g2"])
    assert fate.end is not None
    assert fate.end.is_eviction
    assert fate.end.how.startswith("was evicted: UnexpectedAdmissionError: Pod was rejected")
    assert fate.is_proven


def test_the_scheduler_and_the_kubelet_say_what_a_pod_waits_for() -> None:
    """As a real cluster has said it."""
    events = [one for _, one in recorded()["g1"]]
    assert [bool(refusal_of(one)) for one in events] == [False, True, True, True]
    assert refusal_of(events[1]).startswith("0/3 nodes are available: 1 Insufficient nvidia.com")
    assert progress_of(events[0]) == "waits for the scheduler"
    assert node_of(events[0]) == "n2"
    image = [one for _, one in recorded()["im"]]
    trouble = trouble_of(image[4])
    assert trouble is not None
    assert trouble.text.startswith("ErrImagePull: ")
    assert (trouble.patience_s, trouble.is_lasting) == (IMAGE_S, False)
    assert trouble_of(image[3]) is None
    assert "ContainerCreating" in progress_of(image[3])


@given(some.data())
def test_any_loss_of_recorded_events(data: some.DataObject) -> None:
    """A watch that skips events, or that is a list in the end, reports one end at most, and no
    proof that the whole watch does not have."""
    name = data.draw(some.sampled_from(sorted(recorded())))
    events = recorded()[name]
    whole = play(events)
    kept = [event for event in events[1:-1] if data.draw(some.booleans())]
    fate = first_seen(events[0][1])
    ends = set()
    for _, one in kept:
        fate = fate.seen(one)
        ends.add(fate.end)
    last = data.draw(some.sampled_from([events[-1][1], None]))
    fate = fate.removed(last, 1.0)
    ends |= {fate.end}
    assert len(ends - {None}) == 1
    assert whole.is_proven or not fate.is_proven
    assert fate.free_s(LEASE_S, 1.0) in (1.0, 1.0 + LEASE_S)


# Ends


@pytest.mark.parametrize(
    ("one", "end"),
    [
        (RUNNING, None),
        (CREATING, None),
        (pod(phase="Pending"), None),
        (
            pod(containerStatuses=[container(terminated=ended(0, "Completed"))]),
            Exit("exited with code 0"),
        ),
        (pod(containerStatuses=[container(terminated=ended(139))]), Exit("was killed by SIGSEGV")),
        (
            pod(containerStatuses=[container(terminated=ended(128, "StartError", "no such file"))]),
            Exit("could not be started: no such file"),
        ),
        (
            pod(
                containerStatuses=[container(terminated=ended(137, "ContainerStatusUnknown", "?"))]
            ),
            Exit("was lost with its node's state: ?", True),
        ),
        (pod(phase="Succeeded"), Exit("exited")),
        (pod(phase="Failed"), Exit("was evicted: no reason was given", True)),
        (
            pod(phase="Failed", reason="OutOfcpu", message="too little"),
            Exit("was evicted: OutOfcpu: too little", True),
        ),
        (
            pod(
                phase="Failed",
                reason="Evicted",
                message='Usage of EmptyDir volume "tmp" exceeds the limit "1Gi".',
            ),
            Exit(
                'was ended by the kubelet: Usage of EmptyDir volume "tmp" exceeds the limit "1Gi".'
            ),
        ),
        (
            pod(
                phase="Failed",
                reason="Evicted",
                message="The node was low on resource: memory.",
                conditions=[disrupted("TerminationByKubelet", "low on memory")],
                containerStatuses=[container(terminated=ended(137))],
            ),
            Exit("was evicted: TerminationByKubelet: low on memory", True),
        ),
        (
            pod(
                phase="Running",
                conditions=[disrupted("PreemptionByScheduler", "for a Pod of a tenant")],
                containerStatuses=[container(running={})],
            ),
            None,
        ),
    ],
)
def test_ends(one: Pod, end: Exit | None) -> None:
    """What the cluster ends is no failure of the replica; what it wrote too much is."""
    assert end_of(one, is_asked=False) == end


def test_a_stranger_has_deleted_it() -> None:
    """The Pod ends by its grace, as if by itself."""
    one = deleted(pod(containerStatuses=[container(terminated=ended(0, "Completed"))]))
    assert end_of(one, is_asked=False) == Exit(BY_SOMEBODY, True)
    assert end_of(one, is_asked=True) == Exit("exited with code 0")


def test_a_server_and_its_sidecar() -> None:
    """The server's end explains both; a sidecar that was started again has ended."""
    sidecar = container("sidecar", terminated=ended(1))
    server = container("server", terminated=ended(3))
    both = pod(initContainerStatuses=[sidecar], containerStatuses=[server])
    assert end_of(both, is_asked=False) == Exit("lost its server, which exited with code 3")
    again = {
        **container("sidecar", running={}),
        "restartCount": 1,
        "lastState": {"terminated": ended(139)},
    }
    runs = container("server", running={})
    restarted = pod(initContainerStatuses=[again], containerStatuses=[runs])
    assert end_of(restarted, is_asked=False) == Exit(
        "lost its sidecar, which was killed by SIGSEGV"
    )
    unseen = pod(
        initContainerStatuses=[{**container("sidecar", running={}), "restartCount": 1}],
        containerStatuses=[runs],
    )
    again_text = "lost its sidecar, which the kubelet has started again"
    assert end_of(unseen, is_asked=False) == Exit(again_text)
    assert not has_ended(restarted)
    alive = pod(
        initContainerStatuses=[container("sidecar", running={})], containerStatuses=[server]
    )
    assert not has_ended(alive)


@pytest.mark.parametrize(
    ("reason", "patience_s", "is_lasting"),
    [
        ("ImagePullBackOff", IMAGE_S, False),
        ("InvalidImageName", 0.0, True),
        ("CreateContainerConfigError", CONFIG_S, True),
        ("CreateContainerError", CONFIG_S, True),
    ],
)
def test_troubles(reason: str, patience_s: float, is_lasting: bool) -> None:
    """Of any container, in the kubelet's words."""
    waits = container("server", waiting={"reason": reason, "message": "because"})
    one = pod(initContainerStatuses=[container("sidecar", running={})], containerStatuses=[waits])
    assert trouble_of(one) == (f"{reason}: because", patience_s, is_lasting)
    assert progress_of(one) == f"waits on node n1: {reason}: because"


def test_progress() -> None:
    """A start is over when all containers have started."""
    assert progress_of(RUNNING) == ""
    assert progress_of(pod(phase="Pending")) == "waits on node n1 for its image or its container"


# Proofs


@pytest.mark.parametrize(
    ("one", "proven"),
    [
        (RUNNING, False),
        (CREATING, False),
        (pod(phase="Pending"), False),
        (pod(phase="Running", containerStatuses=[container(terminated=ended())]), True),
        (pod(phase="Failed", reason="NodeAffinity"), True),
        (pod(phase="Failed", containerStatuses=[container(waiting={})]), True),
        # An older kubelet names the phase before its containers are stopped.
        (pod(phase="Failed", containerStatuses=[container(running={})]), False),
        # The control plane has called it failed, as its node is gone.
        (
            pod(
                phase="Failed",
                conditions=[disrupted("DeletionByPodGC")],
                containerStatuses=[container(waiting={})],
            ),
            False,
        ),
        (
            pod(
                phase="Failed",
                conditions=[disrupted("DeletionByPodGC")],
                containerStatuses=[container(terminated=ended())],
            ),
            True,
        ),
    ],
)
def test_proofs(one: Pod, proven: bool) -> None:
    """Nothing runs, and nothing will."""
    assert has_ended(one) == proven
    assert first_seen(RUNNING).removed(one, 5.0).is_proven == proven


def test_an_unscheduled_pod_is_gone_only_by_its_last_object() -> None:
    """A list that lacks it says nothing of what happened before."""
    one = msgspec.convert({"metadata": {"uid": "u"}}, Pod)
    assert first_seen(one).removed(one, 5.0).is_proven
    assert not first_seen(one).removed(None, 5.0).is_proven
    assert first_seen(one).removed(None, 5.0).end == Exit(BY_SOMEBODY, True)


def test_devices_without_a_proof_are_free_by_the_lease() -> None:
    """It is renewed until this server has left the replica."""
    fate = first_seen(RUNNING)
    assert fate.free_s(LEASE_S, 10.0) is None
    gone = fate.removed(RUNNING, 100.0)
    assert gone.free_s(LEASE_S, 10.0) == 165.0
    assert gone.free_s(LEASE_S, 120.0) == 185.0


def test_a_pod_that_is_there_again_was_not_gone() -> None:
    """Its end was told, and is not told again; it holds its devices."""
    gone = first_seen(RUNNING).removed(None, 5.0)
    back = gone.seen(RUNNING)
    assert back.gone_s is None
    assert back.end == gone.end
    assert back.free_s(LEASE_S, 0.0) is None


STATES = {
    "waiting": {"waiting": {"reason": "ContainerCreating"}},
    "running": {"running": {}},
    "ended": {"terminated": ended(0)},
}


@given(
    some.lists(some.sampled_from(sorted(STATES)), max_size=6),
    some.sampled_from(["event", "list", "none"]),
    some.booleans(),
)
def test_any_order_of_objects(states: list[str], how: str, is_asked: bool) -> None:
    """Objects in any order give one end at most, the same ever after; and a Pod whose last known
    container runs, or may be about to, is never proven to be gone."""
    fate = first_seen(msgspec.convert({"metadata": {"uid": "u"}}, Pod))
    if is_asked:
        fate = fate.asked()
    told: list[Exit] = []
    last = None
    for state in states:
        last = pod(containerStatuses=[container(**STATES[state])])
        before = fate.end
        fate = fate.seen(last)
        if fate.end is not None and before is None:
            told.append(fate.end)
        assert fate.is_proven == (state == "ended")
    if how != "none":
        before = fate.end
        fate = fate.removed(last if how == "event" else None, 50.0)
        if before is None and fate.end is not None:
            told.append(fate.end)
        assert fate.is_over
        assert fate.free_s(LEASE_S, 50.0) == (50.0 if fate.is_proven else 50.0 + LEASE_S)
    assert len(told) <= 1
    assert told in ([], [fate.end])
    if states and states[-1] != "ended":
        assert not fate.is_proven
    assert replace(fate) == fate
