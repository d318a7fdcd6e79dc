"""Checks of the cluster that the server runs in: for `fnctl doctor`, and before it is added."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from hosts.checks import Check
from hosts.errors import shown
from hosts.kubernetes.access import Access
from hosts.kubernetes.client import KubernetesClient
from hosts.kubernetes.errors import ApiAway, ApiRefused
from hosts.kubernetes.objects import (
    ACCESS_REVIEWS,
    CLASSES,
    NODES,
    PODS,
    PRIORITIES,
    SLICES,
    AccessReview,
    AccessReviewSpec,
    Node,
    Pod,
    ResourceAttributes,
)
from hosts.kubernetes.rights import IN_CLUSTER, IN_NAMESPACE, Grant
from pool_manager.hosts.kubernetes.ends import TROUBLES
from pool_manager.hosts.kubernetes.inventory import NodeFacts, node_facts
from pool_manager.hosts.kubernetes.nodes import may_claim
from pool_manager.hosts.kubernetes.pod_specs import (
    DIAL_IN,
    PodNeeds,
    PodOwner,
    PodPlace,
    PodRequest,
    pod_for,
)
from pool_manager.hosts.kubernetes.probe import (
    CONTAINER,
    LOG_BYTES,
    NAME,
    Target,
    found_by,
    probe_pod,
)
from registry.model.hosts import KubernetesHost
from runtime_image.contract.addresses import TlsAddress
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.link import VERSION

APPLY: Final = "fnctl kubernetes manifests | kubectl apply -f -"
OLDEST: Final = (1, 29)
"""Version of kubelets from which init containers can be sidecars."""
RESIZING: Final = (1, 33)
"""Version from which the limits of a running Pod can be changed by default."""
NODES_SHOWN: Final = 3
PROBE_S: Final = 120.0
"""Seconds for the Pod of a probe, in which its image is pulled."""
LOOK_S: Final = 0.5
METADATA: Final = "169.254.169.254"
"""Where clouds tell a machine its credentials."""
KUBELET: Final = 10_250
OWNER: Final = PodOwner("doctor")
"""Another owner than replicas have, as those without a record are deleted."""
NO_API: Final = "could not find the requested resource"
"""The API server's words for a path that it does not know."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the checks need of the server."""

    door: TlsAddress
    """What replicas dial."""
    authority: str
    """Certificate of the door's authority, PEM."""
    http_port: int
    api_host: str
    api_port: int
    uid: int
    """A user id of replicas."""


async def examine(access: Access, definition: KubernetesHost, around: Surroundings) -> list[Check]:
    """Return the results of all checks; of the API server alone if that does not answer. Raises
    nothing of the API server's."""
    client = KubernetesClient(access)
    try:
        return await _examine(client, access.namespace(), definition, around)
    except ApiAway as error:
        return [Check("fail", "API server", str(error))]
    finally:
        await client.close()


async def _examine(
    client: KubernetesClient, namespace: str, definition: KubernetesHost, around: Surroundings
) -> list[Check]:
    try:
        nodes, _ = await client.list(NODES)
    except ApiAway as error:
        todo = "check the API server, and the NetworkPolicies of the server's namespace"
        return [Check("fail", "API server", f"does not answer: {error}", todo)]
    except ApiRefused as error:
        return [Check("fail", "API server", f"refuses a list of nodes: {shown(error)}", APPLY)]
    checks = [Check("ok", "API server", f"{around.api_host} lists {len(nodes)} nodes")]
    checks.append(versions(nodes.values()))
    try:
        missing = await _missing_rights(client, namespace)
        checks.append(rights(missing))
        checks += await _examine_rest(client, definition, around, nodes.values(), missing)
    except (ApiAway, ApiRefused) as error:
        checks.append(Check("fail", "API server", f"broke the checks off: {shown(error)}"))
    return checks


async def _examine_rest(
    client: KubernetesClient,
    definition: KubernetesHost,
    around: Surroundings,
    nodes: Collection[Node],
    missing: Sequence[str],
) -> list[Check]:
    facts = await _facts(client, definition, nodes)
    checks = [usable(facts), *await _classes(client, definition), *gpus(definition, facts)]
    checks.append(await _resizing(client))
    place = next((one for one in facts if not one.why_unusable and not one.why_not_ready), None)
    if missing or place is None:
        return checks
    admitted = [await _admission(client, pod) for pod in _pods(definition, around, place)]
    checks += admitted
    if all(one.level == "ok" for one in admitted):
        addresses = {node.metadata.name: node.status.addresses for node in nodes}
        inner = next((x.address for x in addresses[place.node] if x.type == "InternalIP"), "")
        checks += await _network(client, _pod(definition, around, place, "cpu"), around, inner)
    return checks


def versions(nodes: Iterable[Node]) -> Check:
    """Check the versions of kubelets."""
    found = sorted({_version(one.status.node_info.kubelet_version) for one in nodes})
    if not found:
        return Check("fail", "version", "there is no node")
    text = " to ".join(dict.fromkeys(f"{major}.{minor}" for major, minor in (found[0], found[-1])))
    if found[0] < OLDEST:
        todo = "update the nodes, or leave them out with --node-selector"
        return Check("fail", "version", f"kubelets {text}, expected 1.29 or newer", todo)
    if found[0] < RESIZING:
        return Check("warn", "version", f"kubelets {text}: standbys need 1.33", "update the nodes")
    return Check("ok", "version", f"kubelets {text}")


def _version(text: str) -> tuple[int, int]:
    """Return major and minor of a version such as v1.36.2+k3s1; zeros for any other text."""
    major, _, rest = text.removeprefix("v").partition(".")
    minor = rest.partition(".")[0]
    if major.isdecimal() and minor.isdecimal() and len(major) + len(minor) < 9:
        return int(major), int(minor)
    return 0, 0


async def _missing_rights(client: KubernetesClient, namespace: str) -> list[str]:
    """Return the rights that the server's account lacks, as verb and resource."""
    wanted = [(grant, verb) for grant in (*IN_NAMESPACE, *IN_CLUSTER) for verb in grant.verbs]
    return [
        f"{verb} {grant.resource}"
        for grant, verb in wanted
        if not await _may(client, namespace, grant, verb)
    ]


async def _may(client: KubernetesClient, namespace: str, grant: Grant, verb: str) -> bool:
    asked = ResourceAttributes(
        namespace=namespace if grant.kind.is_namespaced else "",
        verb=verb,
        group=grant.group,
        resource=grant.kind.plural,
        subresource=grant.subresource,
    )
    review = AccessReview(spec=AccessReviewSpec(resource_attributes=asked))
    return (await client.create(ACCESS_REVIEWS, review)).status.allowed


def rights(missing: Sequence[str]) -> Check:
    """Check the rights of the server's account."""
    if missing:
        return Check("fail", "rights", f"its account may not {', '.join(missing)}", APPLY)
    return Check("ok", "rights", "its account has all that it needs")


async def _facts(
    client: KubernetesClient, definition: KubernetesHost, nodes: Iterable[Node]
) -> list[NodeFacts]:
    slices = []
    if may_claim(definition):
        try:
            found, _ = await client.list(SLICES)
            slices = list(found.values())
        except ApiRefused:  # before 1.34, or without the right, which was checked
            pass
    return [
        node_facts(
            node,
            [one for one in slices if one.spec.node_name == node.metadata.name],
            definition,
        )
        for node in nodes
    ]


def usable(facts: Sequence[NodeFacts]) -> Check:
    """Check that there is a node for replicas."""
    good = [one for one in facts if not one.why_unusable and not one.why_not_ready]
    if good:
        slots = sum(1 for one in good for device in one.devices if device.kind == "cpu")
        count = sum(len(one.devices) for one in good) - slots
        text = f"{len(good)} of {len(facts)}, with {slots} CPU slots and {count} GPUs"
        return Check("ok", "nodes", text)
    whys = [f"{one.node}: {one.why_unusable or one.why_not_ready}" for one in facts[:NODES_SHOWN]]
    todo = "see --cpu-slots, --cuda-image, --node-selector and --tolerate"
    return Check("fail", "nodes", f"none can be used; {'; '.join(whys)}", todo)


async def _classes(client: KubernetesClient, definition: KubernetesHost) -> list[Check]:
    """Check that Pods can have their priorities."""
    names = {definition.priority_class, definition.idle_class} - {""}
    lacking = []
    for name in sorted(names):
        try:
            await client.get(PRIORITIES, name)
        except ApiRefused as error:
            lacking.append(f"{name}: {shown(error)}")
    if lacking:
        return [Check("fail", "priorities", "; ".join(lacking), APPLY)]
    if not definition.cuda_image or definition.devices not in ("auto", "claims"):
        return [Check("ok", "priorities", ", ".join(sorted(names)) or "none")]
    try:
        await client.get(CLASSES, definition.device_class)
        claims = Check("ok", "device class", definition.device_class)
    except ApiRefused as error:
        level: Final = "fail" if definition.devices == "claims" else "ok"
        text = f"{definition.device_class}: {shown(error)}"
        todo = "install the driver, or choose --devices plugin" if level == "fail" else ""
        claims = Check(level, "device class", text, todo)
    return [Check("ok", "priorities", ", ".join(sorted(names)) or "none"), claims]


def gpus(definition: KubernetesHost, facts: Sequence[NodeFacts]) -> list[Check]:
    """Check that there are GPUs, if there is an image for them."""
    if not definition.cuda_image or definition.devices == "none":
        return []
    there = [(one, device) for one in facts for device in one.devices if device.kind != "cpu"]
    notes = [f"{one.node}: {text}" for one in facts for text in one.notes][:NODES_SHOWN]
    modes = sorted({one.mode.value for one, _ in there})
    text = f"{len(there)}, by {', '.join(modes)}" if there else "no node has one"
    if there and not notes:
        return [Check("ok", "GPUs", text)]
    todo = f"see --resource {definition.resource} and --device-class {definition.device_class}"
    return [Check("warn", "GPUs", "; ".join([text, *notes]), todo)]


async def _resizing(client: KubernetesClient) -> Check:
    """Check that the API server knows `pods/resize`, at a Pod that does not exist."""
    try:
        await client.patch(PODS, f"{NAME}-none", {}, subresource="resize")
    except ApiRefused as error:
        if NO_API in str(error):
            todo = "update the cluster to 1.33 or newer"
            return Check("warn", "resize", "cannot be done: there are no standbys", todo)
    return Check("ok", "resize", "limits of Pods can be changed")


def _pods(definition: KubernetesHost, around: Surroundings, place: NodeFacts) -> list[Pod]:
    kinds = [kind for kind in ("cpu", "cuda") if kind == "cpu" or definition.cuda_image]
    return [_pod(definition, around, place, kind) for kind in kinds]


def _pod(definition: KubernetesHost, around: Surroundings, place: NodeFacts, kind: str) -> Pod:
    """Return the Pod of a replica as the driver makes it."""
    is_plugged = kind == "cuda" and definition.devices in ("auto", "plugin")
    record = ReplicaRecord(
        id="doctor",
        token="",
        role="serve",
        namespace="",
        bound="",
        model_dir="",
        devices=("gpu",) if kind == "cuda" else (),
        device_kind=kind,
        engine="",
        threads=1,
        orphan_s=60.0,
        memory_mib=0,
        launched_s=0.0,
        link=VERSION,
        control=str(around.door),
        data=DIAL_IN,
    )
    resource = definition.resource if is_plugged else ""
    at = PodPlace(place.node, place.share_millis, (), resource)
    needs = PodNeeds(measured_mib=64.0)
    return pod_for(PodRequest(record, definition, OWNER, at, needs, around.authority, around.uid))


async def _admission(client: KubernetesClient, pod: Pod) -> Check:
    """Check that the namespace admits a Pod, without making it."""
    image = pod.spec.containers[0].image
    try:
        await client.create(PODS, pod, dry_run=True)
    except ApiRefused as error:
        if error.reason != "AlreadyExists":
            return Check("fail", "admission", f"a Pod of {image} is refused: {shown(error)}")
    return Check("ok", "admission", f"Pods of {image} are admitted")


async def _network(
    client: KubernetesClient, replica: Pod, around: Surroundings, node: str
) -> list[Check]:
    """Check by a Pod that replicas reach the door, and nothing that they must not."""
    targets = [
        Target("the door", around.door.host, around.door.port, is_needed=True),
        Target("the HTTP port of the server", around.door.host, around.http_port, is_known=True),
        Target("the API server", around.api_host, around.api_port, is_known=True),
        Target("the metadata of the cloud", METADATA, 80),
    ]
    if node:
        targets.append(Target("the kubelet of its node", node, KUBELET))
    await _remove(client)
    try:
        await client.create(PODS, probe_pod(replica, targets))
        why = await _end_of(client)
        log = b"" if why else await client.log(NAME, CONTAINER, LOG_BYTES)
    except (ApiAway, ApiRefused) as error:
        why, log = shown(error), b""
    finally:
        await _remove(client)
    found = found_by(log, targets)
    if found is None:
        text = f"the Pod {NAME} did not end well: {why or 'its output cannot be read'}"
        return [Check("fail", "probe", text, f"see the image: {replica.spec.containers[0].image}")]
    checks = []
    if found.missing:
        todo = "check FN_LINK_ADDRESS, the Service fngate, and its NetworkPolicy"
        why = ", ".join(found.missing.values())
        text = f"a Pod does not reach {around.door.host}:{around.door.port}: {why}"
        checks.append(Check("fail", "door", text, todo))
    else:
        checks.append(Check("ok", "door", f"Pods reach {around.door.host}:{around.door.port}"))
    if found.reached:
        names = ", ".join(one.name for one in found.reached)
        todo = "use a network plugin that enforces NetworkPolicies; see " + APPLY
        return [*checks, Check("warn", "network policies", f"a Pod reaches {names}", todo)]
    if not found.is_proven:
        return [*checks, Check("warn", "network policies", "not proven: nothing listens")]
    return [*checks, Check("ok", "network policies", "enforced: a Pod reaches the door alone")]


async def _end_of(client: KubernetesClient) -> str:
    """Return why the probe's Pod did not succeed in time, "" once it has."""
    why = "it was not seen"
    with suppress(TimeoutError):
        async with asyncio.timeout(PROBE_S):
            while True:
                pod = await client.get(PODS, NAME)
                if pod.status.phase == "Succeeded":
                    return ""
                why = _waits_for(pod)
                if pod.status.phase == "Failed" or _cannot_start(pod):
                    return why
                await asyncio.sleep(LOOK_S)
    return f"not within {PROBE_S:g} s: {why}"


def _cannot_start(pod: Pod) -> bool:
    """Return whether the kubelet cannot get an image or make a container."""
    waiting = (one.state.waiting for one in pod.status.container_statuses)
    return any(one is not None and one.reason in TROUBLES for one in waiting)


def _waits_for(pod: Pod) -> str:
    """Return the words of the scheduler or the kubelet about a Pod."""
    for one in pod.status.conditions:
        if one.type == "PodScheduled" and one.status == "False":
            return shown(one.message or one.reason)
    for container in pod.status.container_statuses:
        state = container.state.waiting or container.state.terminated
        if state is not None:
            return shown(": ".join(filter(None, (state.reason, state.message))))
    return shown(pod.status.message or pod.status.phase)


async def _remove(client: KubernetesClient) -> None:
    """Delete the Pod of a probe, if there is one, and wait until its name is free."""
    with suppress(ApiAway, ApiRefused, TimeoutError):
        await client.delete(PODS, NAME, grace_s=1)
        async with asyncio.timeout(PROBE_S):
            while True:
                await client.get(PODS, NAME)
                await asyncio.sleep(LOOK_S)
