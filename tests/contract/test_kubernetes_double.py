"""The double does what a real cluster did: every recorded step, event by event."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hosts.kubernetes.access import Access
from hosts.kubernetes.client import KubernetesClient
from hosts.kubernetes.objects import PODS, Pod
from tests.support.dial_in.places import can_open_networks
from tests.support.far_host import until
from tests.support.kubernetes.a_pod import WAIT, Wanted, a_pod
from tests.support.kubernetes.clusters import asked
from tests.support.kubernetes.double import IMAGE, REPLICA_ACCOUNT, Double, NodePlan
from tests.support.kubernetes.observer import Observer, observing
from tests.support.kubernetes.pace import Pace
from tests.support.kubernetes.recorded import STEPS, WATCH, Seen, recorded, sequences

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not can_open_networks(), reason="needs root and network namespaces"),
]

PACE = Pace(notice_s=0.05, final_s=0.5, backoff_s=0.5, node_grace_s=0.5)
"""The recorder acted between two steps of the kubelet: they need some time."""
RECORDED = {**sequences(recorded(WATCH)), **sequences(recorded(STEPS))}
RESIZED = RECORDED["g0"][7]
"""The event by which the resize is over."""


SMALL: dict[str, Any] = {"memory_limit": "64Mi"}
OBEY = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("hello", flush=True)
while True:
    signal.pause()
"""


def told(action: str) -> str:
    """Return a program that does something when it is told to, by a signal."""
    return f"""
import signal, sys
signal.signal(signal.SIGUSR1, lambda *_: {action})
print("hello", flush=True)
while True:
    signal.pause()
"""


class Recorder:
    """Makes the steps of the recording again."""

    def __init__(self, double: Double, client: KubernetesClient, observer: Observer) -> None:
        self.client, self.observer = client, observer
        self._double = double

        self._first = 0
        """Events before are not of the recording."""

    def made(self, name: str) -> list[Seen]:
        """Return what is compared with the recording of a Pod."""
        lines = [one for one in self.observer.events[self._first :] if _name(one) == name]
        return sequences(lines).get(name, [])

    async def start(self, name: str, program: str = WAIT, **wanted: Any) -> None:
        asked = Wanted(name, program, IMAGE, "n2", **wanted)
        await self.client.create(PODS, a_pod(asked, REPLICA_ACCOUNT))

    async def run(self, name: str, program: str = WAIT, **wanted: Any) -> None:
        await self.start(name, program, **wanted)
        await self.observer.running(name)

    async def complete(self, *names: str) -> None:
        """Wait until there is as much as was recorded of some Pods."""
        await self.observer.until(
            lambda _: all(len(self.made(one)) >= len(RECORDED[one]) for one in names)
        )

    async def delete(self, name: str, grace_s: int | None = None) -> None:
        await self.client.delete(PODS, name, grace_s=grace_s)
        await self.observer.gone(name)

    async def normal(self, name: str) -> None:
        await self.run(name)
        await self.delete(name, 1)

    async def killed(self, name: str) -> None:
        await self.run(name)
        self._double.kill(self._double.pod(name))
        await self.observer.ended(name)
        await self.delete(name)

    async def forced(self, name: str) -> None:
        await self.run(name)
        await self.delete(name, 0)

    async def resized(self, name: str) -> None:
        await self.run(name, gpus=2)
        body = {"containers": [{"name": "replica", "resources": {"limits": {"memory": "512Mi"}}}]}
        await self.client.patch(PODS, name, {"spec": body}, subresource="resize")
        await self.observer.until(lambda seen: sequences(seen.of(name))[name][-1] == RESIZED)
        await self.delete(name, 1)

    async def full(self, name: str) -> None:
        await self.run("g0", gpus=2)
        await self.start(name, gpus=1)
        await self.observer.pod(name, lambda pod: pod.status.conditions)
        await self.delete(name)

    async def bound(self, name: str) -> None:
        """Name the node of a Pod instead of asking the scheduler."""
        await self.run("g0", gpus=2)
        pod = a_pod(Wanted(name, image=IMAGE, gpus=1), REPLICA_ACCOUNT)
        spec = msgspec.structs.replace(pod.spec, node_name="n2")
        await self.client.create(PODS, msgspec.structs.replace(pod, spec=spec))
        await self.observer.pod(name, lambda pod: pod.status.phase == "Failed")
        await self.delete(name)

    async def no_image(self, name: str) -> None:
        wanted = Wanted(name, image="localhost/none:1", node="n2")
        await self.client.create(PODS, a_pod(wanted, REPLICA_ACCOUNT))
        await self.observer.pod(name, lambda pod: _waiting(pod) == "ErrImagePull")
        await self.delete(name, 0)

    async def greedy(self, name: str) -> None:
        await self.run(name, told("print(len(b'x' * (1 << 30)))"))
        await self.tell(name, "replica")
        await self.observer.ended(name)
        await self.delete(name, 0)

    async def with_sidecar(self, name: str, program: str, side: str) -> None:
        pod = a_pod(Wanted(name, program, IMAGE, "n2", **SMALL), REPLICA_ACCOUNT)
        other = a_pod(Wanted(name, side, IMAGE, **SMALL), REPLICA_ACCOUNT).spec.containers[0]
        init = msgspec.structs.replace(other, name="sidecar", restart_policy="Always")
        spec = msgspec.structs.replace(pod.spec, init_containers=(init,))
        await self.client.create(PODS, msgspec.structs.replace(pod, spec=spec))
        await self.observer.running(name)

    async def sidecar(self, name: str) -> None:
        await self.with_sidecar(name, told("sys.exit(3)"), OBEY)
        await self.tell(name, "replica")

    async def restarted(self, name: str) -> None:
        await self.with_sidecar(name, OBEY, told("sys.exit(5)"))
        for count in (1, 2):
            await self.tell(name, "sidecar")
            if count == 1:
                await self.observer.pod(name, lambda pod: _restarts(pod) == 1)

    async def tell(self, name: str, container: str) -> None:
        """Let a program do what it is to do, once it can."""
        pod = self._double.pod(name)
        await until(lambda: b"hello" in self._double.log(pod, container))
        self._double.kill(pod, container, signal.SIGUSR1)

    async def obeying(self, name: str, program: str = OBEY, **wanted: Any) -> None:
        """Run a Pod that ends by TERM, and can."""
        await self.run(name, program, **SMALL, **wanted)
        await until(lambda: b"hello" in self._double.log(self._double.pod(name), "replica"))

    async def evicted(self, name: str) -> None:
        await self.run(name, **SMALL)
        self._double.evict(self._double.pod(name))
        await self.observer.gone(name)

    async def tainted(self, name: str) -> None:
        await self.obeying(name)
        self._double.taint("n2", "fngate.dev/test", "NoExecute")
        await self.observer.gone(name)

    async def preempted(self) -> None:
        for one in ("idle1", "idle2"):
            await self.obeying(one, gpus=1, grace_s=3, priority="fngate-idle")
        await self.start("serve", gpus=1, priority="fngate-serving")
        await self.observer.pod("serve", lambda pod: pod.status.conditions)
        await self.delete("serve")
        self._double.tenant("work", "n2", {"nvidia.com/gpu": "1"}, "tenant-high")
        await self.observer.gone("idle1")

    async def cut_off(self) -> None:
        """Cut the node off until one Pod, which does not tolerate that for long, is to end."""
        for one in ("stays", "deleted", "short"):
            seconds = 0 if one == "short" else 86400
            await self.obeying(one, tolerated_s=seconds)
        self._first = len(self.observer.events)
        await self._double.cut("n2")
        await self.client.delete(PODS, "deleted")
        await self.observer.pod("short", lambda pod: pod.metadata.deletion_timestamp)
        await self._double.heal("n2")

    async def removed(self, name: str) -> None:
        """Delete a Pod of a node without power, then the node."""
        await self.run(name, **SMALL)
        self._first = len(self.observer.events)
        await self._double.cut("n2")
        await self.observer.until(lambda _: self.made(name))
        await self.client.delete(PODS, name)
        await self._double.remove_node("n2")
        await self.observer.gone(name)


def _name(event: tuple[str, dict[str, Any]]) -> str:
    return str(event[1]["metadata"]["name"])


def _restarts(pod: Pod) -> int:
    return pod.status.init_container_statuses[0].restart_count


def _waiting(pod: Pod) -> str:
    statuses = pod.status.container_statuses
    waiting = statuses[0].state.waiting if statuses else None
    return waiting.reason if waiting else ""


@pytest.fixture
async def double() -> AsyncIterator[Double]:
    nodes = [replace(NodePlan("n1"), name=name, plugin_gpus=2) for name in ("n1", "n2", "n3")]
    async with Double(nodes, pace=PACE) as made:
        yield made


@pytest.fixture
async def recorder(double: Double) -> AsyncIterator[Recorder]:
    client = KubernetesClient(Access(double.folder, double.address, double.api.port))
    try:
        async with observing(client) as observer:
            yield Recorder(double, client, observer)
    finally:
        await client.close()


@dataclass(frozen=True)
class Step:
    """What was done to some Pods of the recording."""

    again: Callable[[Recorder], Awaitable[None]]
    names: tuple[str, ...]


MADE = {
    "delete": Step(partial(Recorder.normal, name="a"), ("a",)),
    "kill": Step(partial(Recorder.killed, name="b"), ("b",)),
    "force delete": Step(partial(Recorder.forced, name="c"), ("c",)),
    "resize": Step(partial(Recorder.resized, name="g0"), ("g0",)),
    "full node": Step(partial(Recorder.full, name="g1"), ("g1",)),
    "named node": Step(partial(Recorder.bound, name="g2"), ("g2",)),
    "no image": Step(partial(Recorder.no_image, name="im"), ("im",)),
    "out of memory": Step(partial(Recorder.greedy, name="oom"), ("oom",)),
    "sidecar": Step(partial(Recorder.sidecar, name="side"), ("side",)),
    "sidecar that ends": Step(partial(Recorder.restarted, name="side2"), ("side2",)),
    "eviction": Step(partial(Recorder.evicted, name="ev"), ("ev",)),
    "taint": Step(partial(Recorder.tainted, name="pdb"), ("pdb",)),
    "preemption": Step(Recorder.preempted, ("idle1", "idle2", "serve")),
    "cut": Step(Recorder.cut_off, ("stays", "deleted", "short")),
    "removed node": Step(partial(Recorder.removed, name="off"), ("off",)),
}


def test_every_recorded_pod_has_its_step() -> None:
    """None of the recording is left out."""
    named = [name for step in MADE.values() for name in step.names]
    assert sorted(named) == sorted(RECORDED)


@pytest.mark.parametrize("step", MADE.values(), ids=MADE)
async def test_the_same_events(recorder: Recorder, step: Step) -> None:
    """Type, phase, conditions, container states and limits of all events, in their order."""
    await step.again(recorder)
    await recorder.complete(*step.names)
    for name in step.names:
        wanted = RECORDED[name]
        made = recorder.made(name)[: len(wanted)]
        assert made == wanted, _differing(made, wanted)


def _differing(made: Sequence[object], wanted: Sequence[object]) -> str:
    """Return both sequences, an event a line."""
    lines = [*("made:", *map(str, made)), *("recorded:", *map(str, wanted))]
    return "\n".join(lines)


REFUSALS = [
    json.loads(line)
    for line in Path("tests/data/kubernetes_refusals.jsonl").read_text().splitlines()
]
"""Refused POSTs of Pods to the namespace `fngate` of a real cluster (1.36.2, 2026-11-30)."""


@pytest.mark.parametrize("refusal", REFUSALS, ids=[one["note"] for one in REFUSALS])
async def test_the_same_refusals(double: Double, refusal: dict[str, Any]) -> None:
    """Status, reason and text of what validation and admission refuse."""
    access = Access(double.folder, double.address, double.api.port)
    path = f"/api/v1/namespaces/fngate/pods?{refusal['query']}"
    code, answer = await asked(access, "POST", path, refusal["body"])
    assert (code, answer["reason"], answer["message"]) == (
        refusal["code"],
        refusal["reason"],
        refusal["message"],
    )
