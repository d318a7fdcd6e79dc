"""What fngate relies on of a Kubernetes cluster: one suite for the double and a real one.

It runs against the double, and also against the cluster whose kubeconfig FN_TEST_KUBERNETES names
(tests/support/kubernetes/clusters.py). `SEEN` says which cluster each test has passed on.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from hosts.kubernetes import objects as o
from hosts.kubernetes.access import Access
from hosts.kubernetes.client import ApiLimits, KubernetesClient
from hosts.kubernetes.errors import ApiRefused
from tests.support.dial_in.places import can_open_networks
from tests.support.kubernetes.a_pod import FAIL, GREED, WAIT, Wanted, a_pod
from tests.support.kubernetes.clusters import (
    HIGH,
    LOW,
    REAL,
    Cluster,
    a_client,
    a_cluster,
    asked,
    quota,
)
from tests.support.kubernetes.observer import Observer, observing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


class Seen(StrEnum):
    """What the double's answer was compared with."""

    REAL = "this test on Kubernetes 1.36.2 with containerd, 2026-11-30"
    TEXT = "the text of Kubernetes 1.36.2; this test has not run on a real cluster"


SEEN: Final = {
    "test_a_name_is_taken": Seen.REAL,
    "test_a_delete_is_of_one_uid": Seen.REAL,
    "test_what_is_not_there": Seen.REAL,
    "test_a_list_in_pages": Seen.REAL,
    "test_a_dry_run_leaves_nothing": Seen.REAL,
    "test_a_label_is_patched": Seen.REAL,
    "test_what_the_account_may_not": Seen.REAL,
    "test_a_token_that_is_none": Seen.REAL,
    "test_a_watch_from_an_old_version": Seen.REAL,
    "test_bookmarks": Seen.REAL,
    "test_a_selector_of_a_watch": Seen.REAL,
    "test_what_restricted_refuses": Seen.REAL,
    "test_a_quota": Seen.REAL,
    "test_a_quota_that_asks_for_limits": Seen.REAL,
    "test_a_resize_beyond_the_node": Seen.REAL,
    "test_what_a_pod_refers_to": Seen.REAL,
    "test_a_node_that_is_not_there": Seen.REAL,
    "test_a_node_that_is_too_small": Seen.REAL,
    "test_a_cordoned_node": Seen.REAL,
    "test_a_tainted_node": Seen.REAL,
    "test_gpus_of_a_plugin": Seen.REAL,
    "test_preemption": Seen.REAL,
    "test_an_eviction": Seen.REAL,
    "test_two_pods_of_a_claim": Seen.REAL,
    "test_a_claim_on_another_node": Seen.REAL,
    "test_what_a_container_finds": Seen.REAL,
    "test_ends": Seen.REAL,
    "test_a_delete_gives_time": Seen.REAL,
    "test_a_force_delete_proves_nothing": Seen.REAL,
    "test_a_resize": Seen.REAL,
    "test_an_image_that_is_not_there": Seen.REAL,
    "test_a_secret_that_is_not_there": Seen.REAL,
    "test_a_command_that_is_not_there": Seen.REAL,
    "test_a_sidecar": Seen.REAL,
    "test_what_waits_has_no_log": Seen.REAL,
    "test_the_token_of_a_pod": Seen.REAL,
}


@pytest.fixture(
    params=[
        pytest.param(
            "double",
            marks=pytest.mark.skipif(not can_open_networks(), reason="needs root and networks"),
        ),
        pytest.param(
            "real", marks=pytest.mark.skipif(not REAL, reason="FN_TEST_KUBERNETES is not set")
        ),
    ]
)
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    """Each cluster in turn."""
    async with a_cluster(request.param, tmp_path) as made:
        yield made


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[KubernetesClient]:
    async with a_client(cluster) as made:
        yield made


@pytest.fixture
async def observer(client: KubernetesClient) -> AsyncIterator[Observer]:
    """The events of Pods from the beginning of the test."""
    async with observing(client) as made:
        yield made


class Pods:
    """Makes Pods in a cluster."""

    def __init__(self, cluster: Cluster, client: KubernetesClient) -> None:
        self._cluster, self.client = cluster, client

    def of(self, name: str = "a", program: str = WAIT, **wanted: Any) -> o.Pod:
        """Return a Pod that is not made."""
        wanted.setdefault("image", self._cluster.image)
        return a_pod(Wanted(name, program, **wanted), self._cluster.account)

    async def make(self, name: str = "a", program: str = WAIT, **wanted: Any) -> o.Pod:
        return await self.client.create(o.PODS, self.of(name, program, **wanted))


@pytest.fixture
def pods(cluster: Cluster, client: KubernetesClient) -> Pods:
    return Pods(cluster, client)


def with_spec(pod: o.Pod, **spec: Any) -> o.Pod:
    """Return a Pod with other members of its spec."""
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, **spec))


def with_container(pod: o.Pod, **container: Any) -> o.Pod:
    """Return a Pod with other members of its first container."""
    first = msgspec.structs.replace(pod.spec.containers[0], **container)
    return with_spec(pod, containers=(first, *pod.spec.containers[1:]))


def terminated(pod: o.Pod) -> o.Terminated:
    """Return how the first container has ended."""
    found = pod.status.container_statuses[0].state.terminated
    assert found is not None
    return found


async def why_waiting(observer: Observer, name: str, *reasons: str) -> str:
    """Return the message with which the first container waits for one of these reasons."""

    def waits(pod: o.Pod) -> bool:
        statuses = pod.status.container_statuses
        waiting = statuses[0].state.waiting if statuses else None
        return waiting is not None and waiting.reason in reasons

    pod = await observer.pod(name, waits)
    waiting = pod.status.container_statuses[0].state.waiting
    assert waiting is not None
    return waiting.message


async def unschedulable(observer: Observer, name: str) -> str:
    """Return why a Pod is not scheduled."""
    pod = await observer.pod(
        name, lambda pod: any(one.reason == "Unschedulable" for one in pod.status.conditions)
    )
    return pod.status.conditions[0].message


async def output(client: KubernetesClient, name: str, text: str = "") -> str:
    """Return what a container has written, without the time of each line, once it has `text`."""
    while True:
        lines = (await client.log(name, "replica", 10_000)).decode().splitlines()
        found = "\n".join(line.partition(" ")[2] for line in lines)
        if text in found:
            return found


# Objects


async def test_a_name_is_taken(client: KubernetesClient, pods: Pods) -> None:
    """A second POST with the same name is refused, so that a start may be repeated."""
    made = await pods.make()
    assert made.metadata.uid
    assert (await client.get(o.PODS, "a")).metadata.uid == made.metadata.uid
    with pytest.raises(ApiRefused, match='pods "a" already exists') as refused:
        await pods.make()
    assert (refused.value.code, refused.value.reason) == (409, "AlreadyExists")


async def test_a_delete_is_of_one_uid(client: KubernetesClient, pods: Pods) -> None:
    """A delete with the uid of an earlier Pod does not hit its successor."""
    made = await pods.make()
    other = "11111111-2222-3333-4444-555555555555"
    with pytest.raises(ApiRefused) as refused:
        await client.delete(o.PODS, "a", uid=other)
    assert (refused.value.code, refused.value.reason) == (409, "Conflict")
    assert f"the UID in the precondition ({other}) does not match" in str(refused.value)
    await client.delete(o.PODS, "a", uid=made.metadata.uid, grace_s=0)


async def test_what_is_not_there(client: KubernetesClient) -> None:
    """Neither get nor delete find it."""
    with pytest.raises(ApiRefused, match='pods "none" not found') as refused:
        await client.get(o.PODS, "none")
    assert (refused.value.code, refused.value.reason) == (404, "NotFound")
    with pytest.raises(ApiRefused, match='pods "none" not found'):
        await client.delete(o.PODS, "none")


async def test_a_list_in_pages(cluster: Cluster, client: KubernetesClient, pods: Pods) -> None:
    """All pages are one list, of one version."""
    for name in "abcde":
        await pods.make(name)
    small = KubernetesClient(cluster.access, ApiLimits(page=2))
    try:
        found, version = await small.list(o.PODS)
        assert set(found) == set("abcde")
        assert int(version) > 0
        chosen, _ = await client.list(o.PODS, "fngate.dev/test=c")
        assert set(chosen) == {"c"}
    finally:
        await small.close()


async def test_a_dry_run_leaves_nothing(client: KubernetesClient, pods: Pods) -> None:
    """Admission answers, and nothing is made."""
    await client.create(o.PODS, pods.of(), dry_run=True)
    assert (await client.list(o.PODS))[0] == {}


async def test_a_label_is_patched(client: KubernetesClient, pods: Pods, observer: Observer) -> None:
    """Other labels stay, and the spec cannot be changed so."""
    await pods.make()
    body = {"metadata": {"labels": {"fngate.dev/owner": "x"}}}
    changed = await client.patch(o.PODS, "a", body)
    assert changed.metadata.labels == {"fngate.dev/owner": "x", "fngate.dev/test": "a"}
    with pytest.raises(ApiRefused) as refused:
        await client.patch(o.PODS, "a", {"spec": {"restartPolicy": "Always"}})
    assert (refused.value.code, refused.value.reason) == (422, "Invalid")
    assert 'Pod "a" is invalid' in str(refused.value)
    await observer.running("a")


async def test_what_the_account_may_not(cluster: Cluster, client: KubernetesClient) -> None:
    """It does not read secrets."""
    with pytest.raises(ApiRefused) as refused:
        await client.list(o.SECRETS)
    assert (refused.value.code, refused.value.reason) == (403, "Forbidden")
    user = f"system:serviceaccount:{cluster.namespace}:fngate"
    where = f'in API group "" in the namespace "{cluster.namespace}"'
    assert str(refused.value) == (
        f'secrets is forbidden: User "{user}" cannot list resource "secrets" {where}'
    )


async def test_a_token_that_is_none(cluster: Cluster, tmp_path: Path) -> None:
    """It is refused by 401."""
    folder = tmp_path / "other"
    folder.mkdir()
    for name in ("ca.crt", "namespace"):
        (folder / name).write_bytes((cluster.access.folder / name).read_bytes())
    (folder / "token").write_text("none")
    client = KubernetesClient(Access(folder, cluster.access.host, cluster.access.port))
    try:
        with pytest.raises(ApiRefused, match="Unauthorized") as refused:
            await client.list(o.PODS)
        assert (refused.value.code, refused.value.reason) == (401, "Unauthorized")
    finally:
        await client.close()


# Watches


async def test_a_watch_from_an_old_version(client: KubernetesClient) -> None:
    """It is accepted, and its first event is an ERROR with 410."""
    async with client.watch(o.PODS, "1") as events:
        first = await anext(events)
    assert first.type == "ERROR"
    status = msgspec.json.decode(first.object, type=o.Status)
    assert (status.code, status.reason) == (410, "Expired")
    assert status.message.startswith("too old resource version: 1 (")


async def test_bookmarks(client: KubernetesClient) -> None:
    """A quiet watch has some, of a version and no name."""
    _, version = await client.list(o.PODS)
    async with client.watch(o.PODS, version) as events:
        first = await anext(events)
    assert first.type == "BOOKMARK"
    found = json.loads(bytes(first.object))
    assert int(found["metadata"]["resourceVersion"]) >= int(version)
    assert "name" not in found["metadata"]


async def test_a_selector_of_a_watch(client: KubernetesClient, pods: Pods) -> None:
    """A Pod that ceases to match is deleted for the watch."""
    _, version = await client.list(o.PODS)
    await pods.make("b")
    await pods.make("a")
    await client.patch(o.PODS, "a", {"metadata": {"labels": {"fngate.dev/test": "other"}}})
    types = []
    async with client.watch(o.PODS, version, "fngate.dev/test=a") as events:
        async for event in events:
            assert json.loads(bytes(event.object))["metadata"]["name"] == "a"
            types.append(event.type)
            if event.type == "DELETED":
                break
    assert types[0] == "ADDED"


# Admission


RESTRICTED: Final = (
    'pods "a" is forbidden: violates PodSecurity "restricted:latest": '
    "host namespaces (hostNetwork=true), "
    'allowPrivilegeEscalation != false (container "replica" must set '
    "securityContext.allowPrivilegeEscalation=false), "
    'unrestricted capabilities (container "replica" must set '
    'securityContext.capabilities.drop=["ALL"]; container "replica" must not include "SYS_ADMIN" '
    "in securityContext.capabilities.add), "
    'restricted volume types (volume "host" uses restricted volume type "hostPath"), '
    'runAsNonRoot != true (pod or container "replica" must set '
    "securityContext.runAsNonRoot=true), "
    'runAsUser=0 (container "replica" must not set runAsUser=0), '
    'seccompProfile (pod or container "replica" must set securityContext.seccompProfile.type '
    'to "RuntimeDefault" or "Localhost")'
)


async def test_what_restricted_refuses(cluster: Cluster) -> None:
    """All of it, in one text."""
    bad = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": "a", "namespace": cluster.namespace},
        "spec": {
            "hostNetwork": True,
            "restartPolicy": "Never",
            "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
            "containers": [
                {
                    "name": "replica",
                    "image": cluster.image,
                    "securityContext": {
                        "runAsUser": 0,
                        "capabilities": {"add": ["SYS_ADMIN"]},
                    },
                }
            ],
        },
    }
    path = f"/api/v1/namespaces/{cluster.namespace}/pods"
    code, answer = await asked(cluster.access, "POST", path, bad)
    assert (code, answer["reason"]) == (403, "Forbidden")
    assert answer["message"] == RESTRICTED


async def test_a_quota(cluster: Cluster, client: KubernetesClient, pods: Pods) -> None:
    """It is refused at once, with what was asked, what is used and what is allowed."""
    await cluster.make(quota(cluster.namespace, pods="1"))
    await pods.make("a")
    with pytest.raises(ApiRefused) as refused:
        await pods.make("b")
    assert (refused.value.code, refused.value.reason) == (403, "Forbidden")
    assert str(refused.value) == (
        'pods "b" is forbidden: exceeded quota: small, requested: pods=1, used: pods=1, '
        "limited: pods=1"
    )
    assert set((await client.list(o.PODS))[0]) == {"a"}


async def test_a_quota_that_asks_for_limits(
    cluster: Cluster, client: KubernetesClient, pods: Pods
) -> None:
    """A container has to name what is counted."""
    hard = {"limits_memory": "1Gi", "requests_cpu": "1"}
    await cluster.make(quota(cluster.namespace, **hard))
    with pytest.raises(ApiRefused) as refused:
        await client.create(o.PODS, with_container(pods.of(), resources=o.Resources()))
    assert str(refused.value) == (
        'pods "a" is forbidden: failed quota: small: must specify limits.memory for: replica; '
        "requests.cpu for: replica"
    )


async def test_what_a_pod_refers_to(cluster: Cluster, client: KubernetesClient, pods: Pods) -> None:
    """A PriorityClass or a ServiceAccount that is not there is refused."""
    with pytest.raises(ApiRefused) as refused:
        await pods.make(priority="none")
    assert str(refused.value) == (
        'pods "a" is forbidden: no PriorityClass with name none was found'
    )
    with pytest.raises(ApiRefused) as refused:
        await client.create(o.PODS, with_spec(pods.of(), service_account_name="none"))
    where = f"error looking up service account {cluster.namespace}/none"
    assert str(refused.value) == f'pods "a" is forbidden: {where}: serviceaccount "none" not found'


# The scheduler


def others(cluster: Cluster) -> str:
    """Return how the scheduler counts the nodes that a Pod does not name."""
    return f"{len(cluster.nodes) - 1} node(s) didn't satisfy plugin(s) [NodeAffinity]"


async def test_a_node_that_is_not_there(cluster: Cluster, pods: Pods, observer: Observer) -> None:
    """The scheduler says no, within seconds."""
    await pods.make(node="none")
    count = len(cluster.nodes)
    why = await unschedulable(observer, "a")
    helpless = f"{count} Preemption is not helpful for scheduling"
    assert why == (
        f"0/{count} nodes are available: {count} node(s) didn't satisfy plugin(s) "
        f"[NodeAffinity]. no new claims to deallocate, preemption: "
        f"0/{count} nodes are available: {helpless}."
    )


async def test_a_node_that_is_too_small(cluster: Cluster, pods: Pods, observer: Observer) -> None:
    """The resource is named."""
    await pods.make(node=cluster.nodes[0], cpu="1000")
    why = await unschedulable(observer, "a")
    assert f"1 Insufficient cpu, {others(cluster)}" in why


async def test_a_cordoned_node(cluster: Cluster, pods: Pods, observer: Observer) -> None:
    """It takes no Pod, and takes one again later."""
    await cluster.change_node(cluster.nodes[0], {"unschedulable": True})
    try:
        await pods.make(node=cluster.nodes[0])
        why = await unschedulable(observer, "a")
        assert "1 node(s) were unschedulable" in why
    finally:
        await cluster.change_node(cluster.nodes[0], {"unschedulable": False})
    await observer.running("a")


async def test_a_tainted_node(cluster: Cluster, pods: Pods, observer: Observer) -> None:
    """A Pod has to tolerate the taint."""
    taint = {"key": "fngate.dev/test", "effect": "NoSchedule"}
    node = cluster.nodes[0]
    await cluster.change_node(node, {"taints": [taint]})
    try:
        await pods.make(node=node)
        assert "1 node(s) had untolerated taint(s)" in await unschedulable(observer, "a")
        toleration = o.Toleration(key="fngate.dev/test", operator="Exists")
        wanted = pods.of("b", node=node)
        tolerant = with_spec(wanted, tolerations=(toleration,))
        await pods.client.create(o.PODS, tolerant)
        await observer.running("b")
    finally:
        await cluster.change_node(node, {"taints": []})


async def test_gpus_of_a_plugin(cluster: Cluster, pods: Pods, observer: Observer) -> None:
    """They are counted, and nobody is preempted for a Pod that must not preempt."""
    if not cluster.gpu_node:
        pytest.skip("no node has two GPUs of a device plugin")
    await pods.make("a", node=cluster.gpu_node, gpus=2, priority=LOW)
    await observer.running("a")
    await pods.make("b", node=cluster.gpu_node, gpus=1, priority=LOW)
    why = await unschedulable(observer, "b")
    assert f"1 Insufficient nvidia.com/gpu, {others(cluster)}" in why
    assert why.endswith("preemption: not eligible due to preemptionPolicy=Never.")


async def test_preemption(cluster: Cluster, pods: Pods, observer: Observer) -> None:
    """A Pod of a lower priority is told by a condition, ended with its grace period, and gone."""
    if not cluster.gpu_node:
        pytest.skip("no node has two GPUs of a device plugin")
    await pods.make("a", EXIT_BY_TERM, node=cluster.gpu_node, gpus=2, priority=LOW, grace_s=20)
    await observer.running("a")
    await output(pods.client, "a", "ready")
    await pods.make("b", node=cluster.gpu_node, gpus=1, priority=HIGH)
    last = await observer.gone("a")
    found = [one for one in last.status.conditions if one.type == "DisruptionTarget"]
    assert [(one.status, one.reason) for one in found] == [("True", "PreemptionByScheduler")]
    assert found[0].message == (
        "default-scheduler: preempting to accommodate a higher priority pod"
    )
    assert terminated(last).exit_code == 75
    await observer.running("b")


async def test_an_eviction(cluster: Cluster, pods: Pods, observer: Observer) -> None:
    """A drain tells the Pod by a condition, and deletes it with its grace period."""
    await pods.make("a", EXIT_BY_TERM, grace_s=20)
    await observer.running("a")
    await output(pods.client, "a", "ready")
    await cluster.evict("a")
    last = await observer.gone("a")
    found = [one for one in last.status.conditions if one.type == "DisruptionTarget"]
    assert [(one.reason, one.message) for one in found] == [
        ("EvictionByEvictionAPI", "Eviction API: evicting")
    ]
    assert terminated(last).exit_code == 75


# Claims


def a_claim(name: str, uuid: str) -> o.ResourceClaim:
    """Return a claim of one device."""
    expression = f"device.attributes['gpu.nvidia.com'].uuid == '{uuid}'"
    selector = o.DeviceSelector(cel=o.CelSelector(expression=expression))
    exactly = o.ExactRequest(device_class_name="gpu.nvidia.com", selectors=(selector,))
    request = o.DeviceRequest(name="gpu", exactly=exactly)
    spec = o.ResourceClaimSpec(devices=o.DeviceClaim(requests=(request,)))
    return o.ResourceClaim(metadata=o.Metadata(name=name), spec=spec)


def claiming(pod: o.Pod, claim: str) -> o.Pod:
    """Return a Pod that has a claim."""
    resources = pod.spec.containers[0].resources
    changed = msgspec.structs.replace(resources, claims=(o.ContainerClaim(name="gpu"),))
    made = with_container(pod, resources=changed)
    return with_spec(made, resource_claims=(o.PodClaim(name="gpu", resource_claim_name=claim),))


async def a_device(client: KubernetesClient) -> tuple[str, str]:
    """Return node and UUID of a device that a driver has published."""
    slices, _ = await client.list(o.SLICES)
    for one in slices.values():
        for device in one.spec.devices:
            if uuid := device.attributes["uuid"].string:
                return one.spec.node_name, uuid
    pytest.skip("no driver has published devices")


async def test_two_pods_of_a_claim(
    client: KubernetesClient, pods: Pods, observer: Observer
) -> None:
    """Both run on the device, and its allocation ends with the second one."""
    node, uuid = await a_device(client)
    await client.create(o.CLAIMS, a_claim("one", uuid))
    async with observing(client, o.CLAIMS) as claims:
        for name in ("a", "b"):
            await client.create(o.PODS, claiming(pods.of(name), "one"))
            assert (await observer.running(name)).spec.node_name == node
        made = await client.get(o.CLAIMS, "one")
        assert made.status.allocation is not None
        assert [one.name for one in made.status.reserved_for] == ["a", "b"]
        for name in ("a", "b"):
            await client.delete(o.PODS, name)
            await observer.gone(name)
        await claims.until(lambda seen: "allocation" not in seen.events[-1][1].get("status", {}))
    await client.delete(o.CLAIMS, "one")


async def test_a_claim_on_another_node(
    cluster: Cluster, client: KubernetesClient, pods: Pods, observer: Observer
) -> None:
    """A device is where it is; a device that is taken is not there."""
    node, uuid = await a_device(client)
    await client.create(o.CLAIMS, a_claim("one", uuid))
    await client.create(o.CLAIMS, a_claim("two", uuid))
    other = next(name for name in cluster.nodes if name != node)
    await client.create(o.PODS, claiming(pods.of("a", node=other), "one"))
    assert "1 cannot allocate all claims" in await unschedulable(observer, "a")
    await client.create(o.PODS, claiming(pods.of("b", node=node), "one"))
    await observer.running("b")
    await client.create(o.PODS, claiming(pods.of("c", node=other), "one"))
    assert "1 resourceclaim not available on the node" in await unschedulable(observer, "c")
    await client.create(o.PODS, claiming(pods.of("d", node=node), "two"))
    assert "1 cannot allocate all claims" in await unschedulable(observer, "d")


# Containers


EXIT_BY_TERM: Final = """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: os._exit(75))
print("ready", flush=True)
while True:
    signal.pause()
"""
LOOK: Final = """
import json, os, pathlib
def writable(path):
    try:
        pathlib.Path(path, "file").write_text("x")
    except OSError as error:
        return error.strerror
    return True
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
print(json.dumps({
    "user": os.getuid(), "group": os.getgid(), "pid": os.getpid(),
    "capabilities": status["CapEff"].strip(), "bounded": status["CapBnd"].strip(),
    "no_new": status["NoNewPrivs"].strip(),
    "root": writable("/"), "tmp": writable("/tmp"), "id": writable("/id"),
    "note": open("/id/note").read(), "link": os.path.islink("/id/note"),
    "variable": os.environ.get("VARIABLE"), "secret": os.environ.get("SECRET"),
}), flush=True)
"""


async def test_what_a_container_finds(
    cluster: Cluster, client: KubernetesClient, pods: Pods, observer: Observer
) -> None:
    """User, rights, volumes, variables and secrets are those of its definition."""
    secret = o.Secret(metadata=o.Metadata(name="a"), string_data={"word": "hidden"})
    await client.create(o.SECRETS, secret)
    source = o.EnvSource(secret_key_ref=o.SecretKeyRef(name="a", key="word"))
    env = (o.EnvVar(name="VARIABLE", value="said"), o.EnvVar(name="SECRET", value_from=source))
    await client.create(o.PODS, with_container(pods.of("a", LOOK, note="a note"), env=env))
    await observer.pod("a", lambda pod: pod.status.phase == "Succeeded")
    found = json.loads(await output(client, "a"))
    assert found == {
        **{"user": 20001, "group": 20001, "pid": 1, "capabilities": "0" * 16},
        **{"bounded": "0" * 16, "no_new": "1"},
        **{"root": "Read-only file system", "tmp": True, "id": "Read-only file system"},
        **{"note": "a note", "link": True, "variable": "said", "secret": "hidden"},
    }
    await client.delete(o.SECRETS, "a")


@pytest.mark.parametrize(
    ("program", "phase", "reason", "code"),
    [
        ("pass", "Succeeded", "Completed", 0),
        ("import sys; sys.exit(3)", "Failed", "Error", 3),
        (FAIL, "Failed", "Error", 137),
        (GREED, "Failed", "OOMKilled", 137),
    ],
    ids=["done", "failed", "killed", "memory"],
)
async def test_ends(
    pods: Pods, observer: Observer, program: str, phase: str, reason: str, code: int
) -> None:
    """The exit code and its reason are in the status, and the Pod ends in a final phase."""
    await pods.make("a", program)
    pod = await observer.pod("a", lambda pod: pod.status.phase in ("Succeeded", "Failed"))
    assert pod.status.phase == phase
    assert (terminated(pod).reason, terminated(pod).exit_code) == (reason, code)


async def test_a_delete_gives_time(
    client: KubernetesClient, pods: Pods, observer: Observer
) -> None:
    """TERM comes first; the last object proves that the container has ended."""
    await pods.make("a", EXIT_BY_TERM, grace_s=20)
    await observer.running("a")
    await output(client, "a", "ready")
    await client.delete(o.PODS, "a")
    last = await observer.gone("a")
    assert last.status.phase == "Failed"
    assert terminated(last).exit_code == 75


async def test_a_force_delete_proves_nothing(
    client: KubernetesClient, pods: Pods, observer: Observer
) -> None:
    """The last object still runs."""
    await pods.make("a")
    await observer.running("a")
    await client.delete(o.PODS, "a", grace_s=0)
    last = await observer.gone("a")
    assert last.status.phase == "Running"
    assert last.status.container_statuses[0].state.running is not None


async def test_a_resize(client: KubernetesClient, pods: Pods, observer: Observer) -> None:
    """The limit changes without a restart."""
    await pods.make("a")
    await observer.running("a")
    container = {"name": "replica", "resources": {"limits": {"memory": "512Mi"}}}
    await client.patch(o.PODS, "a", {"spec": {"containers": [container]}}, subresource="resize")

    def is_resized(seen: Observer) -> bool:
        status = seen.of("a")[-1][1]["status"]["containerStatuses"][0]
        assert status["restartCount"] == 0
        return bool(status["resources"]["limits"]["memory"] == "512Mi")

    await observer.until(is_resized)


async def test_a_resize_beyond_the_node(
    client: KubernetesClient, pods: Pods, observer: Observer
) -> None:
    """It is refused, and nothing changes."""
    await pods.make("a")
    await observer.running("a")
    container = {"name": "replica", "resources": {"requests": {"cpu": "64"}}}
    body = {"spec": {"containers": [container]}}
    with pytest.raises(ApiRefused) as refused:
        await client.patch(o.PODS, "a", body, subresource="resize")
    assert (refused.value.code, refused.value.reason) == (403, "Forbidden")
    assert str(refused.value).startswith(
        'pods "a" is forbidden: node didn\'t have enough allocatable resources: cpu, '
        "requested: 64000, allocatable: "
    )


async def test_an_image_that_is_not_there(pods: Pods, observer: Observer) -> None:
    """The kubelet says why, and tries again."""
    await pods.make(image="localhost/none:1")
    why = await why_waiting(observer, "a", "ErrImagePull")
    assert why.startswith('failed to pull and unpack image "localhost/none:1": ')
    why = await why_waiting(observer, "a", "ImagePullBackOff")
    assert why.startswith('Back-off pulling image "localhost/none:1": ErrImagePull: ')


async def test_a_secret_that_is_not_there(
    client: KubernetesClient, pods: Pods, observer: Observer
) -> None:
    """The container is not made, and the reason names the secret."""
    source = o.EnvSource(secret_key_ref=o.SecretKeyRef(name="none", key="word"))
    env = (o.EnvVar(name="SECRET", value_from=source),)
    await client.create(o.PODS, with_container(pods.of(), env=env))
    why = await why_waiting(observer, "a", "CreateContainerConfigError")
    assert why == 'secret "none" not found'


async def test_a_command_that_is_not_there(
    client: KubernetesClient, pods: Pods, observer: Observer
) -> None:
    """The container ends at once, with the reason."""
    await client.create(o.PODS, with_container(pods.of(), command=("none",)))
    pod = await observer.ended("a")
    assert (terminated(pod).reason, terminated(pod).exit_code) == ("StartError", 128)
    assert 'exec: "none": executable file not found in $PATH' in terminated(pod).message


SIDE: Final = """
import os, signal, socket
signal.signal(signal.SIGTERM, lambda *_: os._exit(75))
listener = socket.create_server(("127.0.0.1", 9000))
while True:
    peer, _ = listener.accept()
    peer.sendall(b"from the sidecar")
    peer.close()
"""
CALL: Final = """
import socket, time
for _ in range(100):
    try:
        print(socket.create_connection(("127.0.0.1", 9000)).recv(100).decode(), flush=True)
        break
    except OSError:
        time.sleep(0.1)
"""


async def test_a_sidecar(client: KubernetesClient, pods: Pods, observer: Observer) -> None:
    """It starts before the main container, shares its network, and ends after it."""
    pod = pods.of("a", CALL, grace_s=20)
    side = pods.of("side", SIDE).spec.containers[0]
    side = msgspec.structs.replace(side, name="side", restart_policy="Always")
    await client.create(o.PODS, with_spec(pod, init_containers=(side,)))
    pod = await observer.pod("a", lambda pod: pod.status.phase == "Succeeded")
    assert await output(client, "a") == "from the sidecar"
    ended = pod.status.init_container_statuses[0].state.terminated
    assert ended is not None
    assert ended.exit_code == 75


async def test_what_waits_has_no_log(
    client: KubernetesClient, pods: Pods, observer: Observer
) -> None:
    """The refusal says why."""
    await pods.make(image="localhost/none:1")
    await why_waiting(observer, "a", "ErrImagePull", "ImagePullBackOff")
    with pytest.raises(ApiRefused) as refused:
        await client.log("a", "replica", 1000)
    assert (refused.value.code, refused.value.reason) == (400, "BadRequest")
    assert str(refused.value).startswith('container "replica" in pod "a" is waiting to start: ')


# Reviews of tokens


SAY_TOKEN: Final = """
import signal
print(open("/id/token").read(), flush=True)
signal.pause()
"""


async def review(client: KubernetesClient, token: str, *audiences: str) -> o.TokenReviewStatus:
    """Return what a TokenReview says."""
    spec = o.TokenReviewSpec(token=token, audiences=audiences)
    return (await client.create(o.REVIEWS, o.TokenReview(spec=spec))).status


async def test_the_token_of_a_pod(
    cluster: Cluster, client: KubernetesClient, pods: Pods, observer: Observer
) -> None:
    """A review tells account, Pod and uid, to its audience alone, while the Pod is there."""
    made = await pods.make("a", SAY_TOKEN)
    await observer.running("a")
    token = (await output(client, "a", ".")).strip()
    said = await review(client, token, "fngate")
    assert said.authenticated
    assert said.audiences == ("fngate",)
    assert said.user.username == f"system:serviceaccount:{cluster.namespace}:{cluster.account}"
    extra = said.user.extra
    assert extra["authentication.kubernetes.io/pod-name"] == ("a",)
    assert extra["authentication.kubernetes.io/pod-uid"] == (made.metadata.uid,)

    said = await review(client, token, "other")
    assert not said.authenticated
    assert said.error.endswith(
        'token audiences ["fngate"] is invalid for the target audiences ["other"]]'
    )
    said = await review(client, "none", "fngate")
    assert (said.authenticated, said.error) == (False, "invalid bearer token")

    await client.delete(o.PODS, "a", grace_s=0)
    await observer.gone("a")
    said = await review(client, token, "fngate", "another")
    while said.authenticated:  # the API server keeps what it has accepted for 10 s
        said = await review(client, token, "fngate", "another")
    assert said.error == "[invalid bearer token, service account token has been invalidated]"


def test_the_table_is_whole() -> None:
    """Each test is in it once."""
    tests = {name for name in globals() if name.startswith("test_")}
    assert set(SEEN) == tests - {"test_the_table_is_whole"}
