"""The manifests of a server in a Kubernetes cluster: all that it needs there, and no more. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from admin.cli.kubernetes.server_pod import HTTP, LINK, ServerPod, pod_template
from admin.cli.kubernetes.yaml import Document, Object, Value
from hosts.kubernetes.objects import DATA_PORT, NETWORK_LABEL, REPLICA_LABEL
from hosts.kubernetes.rights import IN_CLUSTER, IN_NAMESPACE, Grant

NAME: Final = "fngate"
"""Name of the server's objects. That of the Service names the variables that Pods get of it."""
REPLICA_ACCOUNT: Final = "fngate-replica"
PRIVATE: Final = ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16")
"""Networks that clusters are made of (RFC 1918, RFC 6598)."""
METADATA: Final = "169.254.0.0/16"
"""Where clouds answer questions about a machine, its credentials among them (RFC 3927)."""
PRIVATE_6: Final = ("fc00::/7", "fe80::/10")
"""Private networks and links of IPv6 (RFC 4193, RFC 4291)."""
IDLE_PRIORITY: Final = -1000
"""Lower than every Pod without a class."""
DNS: Final = 53


@dataclass(frozen=True, slots=True)
class Choices:
    """What differs between clusters."""

    namespace: str
    pod: ServerPod
    storage: str
    """Size of the volume for the data folder, a quantity such as 50Gi."""
    storage_class: str = ""
    """StorageClass of the volume, "" for the cluster's default."""
    access_mode: str = "ReadWriteOncePod"
    """Its access mode."""
    cluster_cidrs: Sequence[str] = ()
    """Networks of Pods and nodes, and of Services, which functions with `network = "egress"` must
    not reach; () for all private networks."""
    resolvers: Sequence[str] = ()
    """Addresses of the name servers of the nodes, for the same functions."""


def manifests(choices: Choices) -> list[Document]:
    """Return the objects of a server, in the order in which they are created."""
    wide = f"{NAME}-{choices.namespace}"
    found = [
        Document("", _namespace(choices.namespace)),
        *_priorities(),
        Document(
            "The server's account, and that of replicas, which may do nothing.", _account(NAME)
        ),
        Document("", {**_account(REPLICA_ACCOUNT), "automountServiceAccountToken": False}),
        Document("What the server does in its namespace.", _role("Role", NAME, IN_NAMESPACE)),
        Document("", _binding("Role", NAME, choices.namespace)),
        Document("What it reads of the cluster.", _role("ClusterRole", wide, IN_CLUSTER)),
        Document("", _binding("ClusterRole", wide, choices.namespace)),
        *_network(choices),
        Document("Before the server, whose Pod learns this address as it starts.", _service()),
        Document("", _stateful_set(choices)),
    ]
    return [one._replace(object=_placed(one.object, choices.namespace)) for one in found]


def _placed(object: Object, namespace: str) -> Object:
    """Return an object in the namespace, if objects of its kind are in one."""
    if object["kind"] in ("Namespace", "PriorityClass", "ClusterRole", "ClusterRoleBinding"):
        return object
    metadata = object["metadata"]
    assert isinstance(metadata, dict)
    return {**object, "metadata": {**metadata, "namespace": namespace}}


def _object(version: str, kind: str, name: str, **labels: str) -> dict[str, Value]:
    own = {"app.kubernetes.io/name": NAME, **labels}
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "labels": own},
    }


def _namespace(name: str) -> Object:
    """Return the namespace: its admission refuses every Pod that is not `restricted`."""
    levels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    found = _object("v1", "Namespace", name)
    found["metadata"] = {"name": name, "labels": {"app.kubernetes.io/name": NAME, **levels}}
    return found


def _priorities() -> list[Document]:
    """Return the priorities of Pods: neither preempts others, and those that idle give way."""
    version = "scheduling.k8s.io/v1"
    return [
        Document(
            comment,
            {
                **_object(version, "PriorityClass", f"{NAME}-{name}"),
                "value": value,
                "preemptionPolicy": "Never",
                "description": text,
            },
        )
        for name, value, text, comment in (
            ("serving", 0, "Replicas of functions that are not to be preempted.", ""),
            ("idle", IDLE_PRIORITY, "Replicas that give way to all other Pods.", ""),
        )
    ]


def _account(name: str) -> dict[str, Value]:
    return _object("v1", "ServiceAccount", name)


def _role(kind: str, name: str, grants: Sequence[Grant]) -> Object:
    rules: list[Value] = [
        {"apiGroups": [one.group], "resources": [one.resource], "verbs": list(one.verbs)}
        for one in grants
    ]
    return {**_object("rbac.authorization.k8s.io/v1", kind, name), "rules": rules}


def _binding(kind: str, name: str, namespace: str) -> Object:
    return {
        **_object("rbac.authorization.k8s.io/v1", f"{kind}Binding", name),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": namespace}],
    }


def _network(choices: Choices) -> list[Document]:
    """Return the policies: a replica reaches the server and nothing else, and only the server
    reaches it."""
    server: Object = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": NAME}}}
    any_replica: Object = {"matchExpressions": [{"key": REPLICA_LABEL, "operator": "Exists"}]}
    return [
        Document(
            "Replicas: calls come from the server, and the server is all that they reach.",
            _policy(
                f"{NAME}-replicas",
                any_replica,
                ingress=[{"from": [server], "ports": [_tcp(DATA_PORT)]}],
                egress=[{"to": [server], "ports": [_tcp(LINK)]}],
            ),
        ),
        Document(
            'Replicas of functions with network = "egress": the world outside of the cluster, too.',
            _policy(
                f"{NAME}-egress",
                {"matchLabels": {NETWORK_LABEL: "egress"}},
                egress=_outside(choices),
            ),
        ),
        Document(
            "The server: replicas come to the links, everybody to its HTTP port.",
            _policy(
                NAME,
                {"matchLabels": {"app.kubernetes.io/name": NAME}},
                ingress=[
                    {"from": [{"podSelector": any_replica}], "ports": [_tcp(LINK)]},
                    {"ports": [_tcp(HTTP)]},
                ],
            ),
        ),
    ]


def _outside(choices: Choices) -> list[Value]:
    """Return the rules of what functions with a network reach."""
    own = list(choices.cluster_cidrs) or [*PRIVATE, *PRIVATE_6]
    fours = [METADATA, *(one for one in own if ":" not in one)]
    sixes = [one for one in own if ":" in one]
    found: list[Value] = [
        {
            "to": [
                {"ipBlock": {"cidr": "0.0.0.0/0", "except": sorted(set(fours))}},
                {"ipBlock": {"cidr": "::/0", "except": sixes or list(PRIVATE_6)}},
            ]
        }
    ]
    if choices.resolvers:
        peers: list[Value] = [
            {"ipBlock": {"cidr": f"{one}/{128 if ':' in one else 32}"}} for one in choices.resolvers
        ]
        found.append({"to": peers, "ports": [_port("UDP", DNS), _port("TCP", DNS)]})
    return found


def _policy(
    name: str,
    selector: Object,
    ingress: Sequence[Value] | None = None,
    egress: Sequence[Value] | None = None,
) -> Object:
    types = [
        kind for kind, rules in (("Ingress", ingress), ("Egress", egress)) if rules is not None
    ]
    spec: dict[str, Value] = {"podSelector": selector, "policyTypes": types}
    if ingress is not None:
        spec["ingress"] = ingress
    if egress is not None:
        spec["egress"] = egress
    return {**_object("networking.k8s.io/v1", "NetworkPolicy", name), "spec": spec}


def _tcp(port: int) -> Object:
    return _port("TCP", port)


def _port(protocol: str, port: int) -> Object:
    return {"protocol": protocol, "port": port}


def _service() -> Object:
    """Return the Service: its address stays, whichever node the server is on."""
    return {
        **_object("v1", "Service", NAME),
        "spec": {
            "selector": {"app.kubernetes.io/name": NAME},
            # Replicas dial in while the server is not ready yet: it adopts them first.
            "publishNotReadyAddresses": True,
            "ports": [
                {"name": "http", "port": HTTP, "targetPort": HTTP},
                {"name": "links", "port": LINK, "targetPort": LINK},
            ],
        },
    }


def _stateful_set(choices: Choices) -> Object:
    volume: dict[str, Value] = {
        "accessModes": [choices.access_mode],
        "resources": {"requests": {"storage": choices.storage}},
    }
    if choices.storage_class:
        volume["storageClassName"] = choices.storage_class
    return {
        **_object("apps/v1", "StatefulSet", NAME),
        "spec": {
            "replicas": 1,
            "serviceName": NAME,
            "selector": {"matchLabels": {"app.kubernetes.io/name": NAME}},
            "template": pod_template(choices.pod, choices.namespace, NAME),
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": volume}],
        },
    }
