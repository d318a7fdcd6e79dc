"""A cluster to which tests speak: the double, or a real one that FN_TEST_KUBERNETES names.

A real one is spoken to by kubectl with the kubeconfig of that name, in a namespace of its own,
which is made and removed. FN_TEST_KUBERNETES_IMAGE is an image with `python3` that its nodes have
or can pull.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import aiohttp

from hosts.kubernetes.access import Access
from hosts.kubernetes.client import KubernetesClient
from tests.support.kubernetes import access_rules, admission
from tests.support.kubernetes.admission import ENFORCE
from tests.support.kubernetes.double import (
    IMAGE,
    NAMESPACE,
    REPLICA_ACCOUNT,
    SERVER_ACCOUNT,
    Double,
    NodePlan,
)
from tests.support.kubernetes.store import NODES, PODS, RESOURCES, Json

REAL: Final = os.environ.get("FN_TEST_KUBERNETES", "")
"""The kubeconfig of a real cluster, "" for none."""
REAL_IMAGE: Final = os.environ.get("FN_TEST_KUBERNETES_IMAGE", "docker.io/library/python:3.12-slim")
HIGH: Final = "fngate-test-high"
LOW: Final = "fngate-test-low"
"""PriorityClasses of tests: 1000, and -1000 without preemption."""


OWN_KINDS: Final = ("namespace", "clusterrole", "clusterrolebinding")
"""Kinds of the cluster's objects that have the name of the namespace."""


class Cluster(Protocol):
    """What both have."""

    access: Access
    """The server's."""
    namespace: str
    image: str
    account: str
    """ServiceAccount of Pods."""
    nodes: list[str]
    gpu_node: str
    """A node with GPUs of a device plugin, "" for none."""

    async def make(self, object: Json) -> None:
        """Make an object as an administrator."""

    async def end(self, plural: str, name: str) -> None:
        """Delete an object as an administrator, without waiting."""

    async def evict(self, pod: str) -> None:
        """Evict a Pod, as a drain does."""

    async def change_node(self, node: str, spec: Json) -> None:
        """Change the spec of a node by a merge patch."""


class DoubleCluster:
    """The double."""

    def __init__(self, double: Double) -> None:
        self.double = double
        self.access = Access(double.folder, double.address, double.api.port)
        self.namespace, self.image, self.account = NAMESPACE, IMAGE, REPLICA_ACCOUNT
        self.nodes = list(double.kubelets)
        self.gpu_node = self.nodes[0]

    async def make(self, object: Json) -> None:
        resource = next(one for one in RESOURCES if one.kind == object["kind"])
        if resource == PODS:
            object = admission.admit(self.double.store, object)
        self.double.store.add(resource, object)

    async def end(self, plural: str, name: str) -> None:
        resource = next(one for one in RESOURCES if one.plural == plural)
        found = self.double.store.get(resource, name, self.namespace * resource.is_namespaced)
        assert found is not None
        if resource == PODS:
            self.double.delete(found)
        else:
            self.double.store.remove(resource, found)

    async def evict(self, pod: str) -> None:
        self.double.evict(self.double.pod(pod))

    async def change_node(self, node: str, spec: Json) -> None:
        def change(one: Json) -> None:
            one["spec"] |= spec

        self.double.store.change(NODES, self.double.node(node), change)


class RealCluster:
    """A real one."""

    def __init__(self, folder: Path, namespace: str) -> None:
        self.namespace, self.image, self.account = namespace, REAL_IMAGE, REPLICA_ACCOUNT
        self._folder = folder
        self.nodes: list[str] = []
        self.gpu_node = ""

    async def open(self) -> None:
        """Make the namespace with its accounts, and the files of the server's."""
        config = json.loads(await self.kubectl("config", "view", "--minify", "--flatten", "-ojson"))
        cluster = config["clusters"][0]["cluster"]
        url = urlsplit(cluster["server"])
        await self._make_all(self._objects())
        token = await self.kubectl("create", "token", SERVER_ACCOUNT, "-n", self.namespace)
        authority = base64.b64decode(cluster["certificate-authority-data"])
        (self._folder / "ca.crt").write_bytes(authority)
        (self._folder / "namespace").write_text(self.namespace)
        (self._folder / "token").write_bytes(token.strip())
        assert url.hostname is not None
        self.access = Access(self._folder, url.hostname, url.port or 443)
        found = json.loads(await self.kubectl("get", "nodes", "-ojson"))["items"]
        self.nodes = [one["metadata"]["name"] for one in found]
        with_gpus = [
            one["metadata"]["name"]
            for one in found
            if int(one["status"]["allocatable"].get("nvidia.com/gpu", 0)) > 1
        ]
        self.gpu_node = with_gpus[0] if with_gpus else ""

    async def close(self) -> None:
        """Remove everything that was made."""
        names = [(kind, self.namespace) for kind in OWN_KINDS]
        for kind, name in (*names, ("priorityclass", LOW), ("priorityclass", HIGH)):
            await self.kubectl("delete", kind, name, "--ignore-not-found", "--wait=false")

    async def make(self, object: Json) -> None:
        await self._make_all([object])

    async def _make_all(self, objects: list[Json]) -> None:
        whole = {"kind": "List", "apiVersion": "v1", "items": objects}
        await self.kubectl("apply", "-f", "-", given=json.dumps(whole).encode())

    async def end(self, plural: str, name: str) -> None:
        await self.kubectl("delete", plural, name, "-n", self.namespace, "--wait=false")

    async def evict(self, pod: str) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/eviction"
        body = {"kind": "Eviction", "apiVersion": "policy/v1", "metadata": {"name": pod}}
        given = json.dumps(body).encode()
        await self.kubectl("create", "--raw", path, "-f", "-", given=given)

    async def change_node(self, node: str, spec: Json) -> None:
        patch = json.dumps({"spec": spec})
        await self.kubectl("patch", "node", node, "--type=merge", "-p", patch)

    async def kubectl(self, *words: str, given: bytes = b"") -> bytes:
        """Run kubectl; return what it prints."""
        ran = await asyncio.create_subprocess_exec(
            *("kubectl", "--kubeconfig", REAL, *words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said, error = await ran.communicate(given)
        assert ran.returncode == 0, f"kubectl {' '.join(words)}: {error.decode()}"
        return said

    def _objects(self) -> list[Json]:
        own = self.namespace
        labels = {ENFORCE: "restricted"}
        subject = {"kind": "ServiceAccount", "name": SERVER_ACCOUNT, "namespace": own}
        rbac, group = "rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io"
        made = [_object("v1", "Namespace", own, metadata={"labels": labels})]
        made += [
            _object("v1", "ServiceAccount", account, namespace=own)
            for account in (SERVER_ACCOUNT, REPLICA_ACCOUNT)
        ]
        for kind, namespace in (("Role", own), ("ClusterRole", "")):
            reference = {"apiGroup": group, "kind": kind, "name": own}
            made.append(_object(rbac, kind, own, namespace=namespace, rules=_rules()))
            binding = {"roleRef": reference, "subjects": [subject]}
            made.append(_object(rbac, f"{kind}Binding", own, namespace=namespace, **binding))
        return made


def _object(version: str, kind: str, name: str, *, namespace: str = "", **parts: Any) -> Json:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    metadata |= parts.pop("metadata", {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **parts}


def _rules() -> list[Json]:
    return [
        {"apiGroups": list(one.groups), "resources": list(one.resources), "verbs": list(one.verbs)}
        for one in access_rules.SERVER
    ]


def priorities() -> list[Json]:
    """Return the PriorityClasses of tests."""
    version, kind = "scheduling.k8s.io/v1", "PriorityClass"
    low: Mapping[str, Any] = {"value": -1000, "preemptionPolicy": "Never"}
    high: Mapping[str, Any] = {"value": 1000, "preemptionPolicy": "PreemptLowerPriority"}
    return [_object(version, kind, LOW, **low), _object(version, kind, HIGH, **high)]


def quota(namespace: str, **hard: str) -> Json:
    """Return a quota of a namespace."""
    limits = {key.replace("_", "."): value for key, value in hard.items()}
    return _object("v1", "ResourceQuota", "small", namespace=namespace, spec={"hard": limits})


@asynccontextmanager
async def a_cluster(kind: str, folder: Path) -> AsyncGenerator[Cluster, None]:
    """Yield the double or the real cluster, with the PriorityClasses of tests."""
    if kind == "double":
        nodes = [NodePlan(name, plugin_gpus=2, claimed_gpus=0) for name in ("n1", "n2")]
        async with Double([*nodes, NodePlan("n3", claimed_gpus=2)]) as double:
            made = DoubleCluster(double)
            for one in priorities():
                await made.make(one)
            yield made
        return
    real = RealCluster(folder, f"fngate-test-{token_hex(3)}")
    try:
        await real.open()
        for one in priorities():
            await real.make(one)
        yield real
    finally:
        await real.close()


async def asked(access: Access, method: str, path: str, body: Json) -> tuple[int, Json]:
    """Send a request as the server's account; return status and answer."""
    headers = {"Authorization": f"Bearer {access.token()}"}
    url = f"{access.base_url}{path}"
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.request(method, url, json=body, ssl=access.context()) as response,
    ):
        return response.status, await response.json()


@asynccontextmanager
async def a_client(cluster: Cluster) -> AsyncGenerator[KubernetesClient, None]:
    """Yield a client of the server's account."""
    client = KubernetesClient(cluster.access)
    try:
        yield client
    finally:
        await client.close()
