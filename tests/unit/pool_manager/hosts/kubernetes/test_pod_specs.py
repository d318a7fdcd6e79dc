"""The Pods of replicas, as the API server is sent them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from hosts.kubernetes.objects import Container, OwnerReference, Pod, Resources
from pool_manager.hosts.kubernetes.pod_specs import (
    AUDIENCE,
    PodNeeds,
    PodOwner,
    PodPlace,
    PodRequest,
    mib_in,
    pod_for,
    pod_name,
    resized,
    secret_for,
    selector,
    why_not,
)
from pool_manager.ports import ServerContainer
from registry.model.hosts import KubernetesHost, Toleration
from registry.model.servers import Mount
from runtime_image.replica.entrance import read_entrance
from tests.support.kubernetes.admission import admit
from tests.support.kubernetes.double import NAMESPACE, REPLICA_ACCOUNT
from tests.support.kubernetes.store import ACCOUNTS, NAMESPACES, PRIORITIES, Store
from tests.support.scenes import a_record

OWNER = PodOwner("abcdef0123456789", OwnerReference(kind="StatefulSet", name="fngate", uid="s"))
DEFINITION = KubernetesHost(
    name="k",
    image="runtime:cpu",
    cuda_image="runtime:gpu",
    pull_secrets=("pull",),
    runtime_class="nvidia",
    tolerations=(Toleration(key="gpus"),),
    pod_labels={"team": "a", "fngate.dev/owner": "another"},
)
RECORD = replace(
    a_record(),
    token="of-the-record",
    memory_mib=512,
    threads=2,
    control="tls://10.0.0.1:7444",
    data="tls://:7443",
)
ON_GPU = replace(RECORD, device_kind="cuda", devices=("k/n1/gpu-0", "k/n1/gpu-1"))
SERVER = ServerContainer(
    "",
    arguments=("--port", "${PORT}", "--at=${HOST}", "${GPUS}"),
    env={"A": "at ${PORT}", "PORT": "1"},
    network="egress",
    user="1234:99",
    writable={"/cache/": 100, "/tmp": 200, "/data": 5},
    shm_mib=128,
    mounts=(Mount("weights", "/srv/weights", "/data"),),
    has_files=True,
    secrets={"KEY": "hunter2"},
    reference="ghcr.io/acme/app:1",
    digest="ghcr.io/acme/app@sha256:00",
)


def request(server: ServerContainer | None = None, **changes: Any) -> PodRequest:
    """Return a request of a Pod."""
    made = PodRequest(
        RECORD,
        DEFINITION,
        OWNER,
        PodPlace("n1", 2000),
        PodNeeds(100.5, 10.0, 2.5, is_preemptible=False),
        "PEM",
        20007,
        server,
    )
    return replace(made, **changes)


def sent(one: Pod) -> dict[str, Any]:
    """Return a Pod as JSON."""
    found: dict[str, Any] = json.loads(msgspec.json.encode(one))
    return found


def variables(one: dict[str, Any]) -> dict[str, Any]:
    """Return the environment of a container."""
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in one["env"]}


def test_a_replica() -> None:
    """It has the entrance, and nothing of the cluster."""
    made = sent(pod_for(request()))
    metadata, spec = made["metadata"], made["spec"]
    assert metadata["name"] == "fn-abcdef01-aaaa0009" == pod_name("aaaa0009", OWNER)
    assert metadata["labels"] == {
        "team": "a",
        "fngate.dev/owner": OWNER.id,
        "fngate.dev/replica": "aaaa0009",
        "fngate.dev/network": "none",
    }
    assert selector(OWNER) == f"fngate.dev/owner={OWNER.id}"
    assert metadata["ownerReferences"][0]["kind"] == "StatefulSet"
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert (spec["restartPolicy"], spec["dnsPolicy"]) == ("Never", "Default")
    assert spec["terminationGracePeriodSeconds"] == 4
    assert spec["priorityClassName"] == "fngate-serving"
    assert spec["securityContext"]["runAsUser"] == 20007
    assert spec["tolerations"][0]["tolerationSeconds"] == 86_400
    assert spec["tolerations"][2] == {"key": "gpus", "operator": "Exists"}
    assert "nodeName" not in spec
    assert "runtimeClassName" not in spec
    (one,) = spec["containers"]
    assert one["args"] == ["/run/fngate", "/run/fngate-identity/entrance.json"]
    assert one["resources"] == {
        "limits": {"cpu": "2000m", "memory": "512Mi"},
        "requests": {"cpu": "1600m", "memory": "101Mi"},
    }
    assert variables(one)["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert variables(one)["OMP_NUM_THREADS"] == "2"


def test_the_entrance_is_one(tmp_path: Any) -> None:
    """It is an annotation, which the Pod sees as a file; its token is one of the kubelet's."""
    made = sent(pod_for(request()))
    (tmp_path / "e").write_text(made["metadata"]["annotations"]["fngate.dev/entrance"])
    assert read_entrance(tmp_path / "e") == {
        "server": "tls://10.0.0.1:7444",
        "authority": "PEM",
        "token": "",
        "token_file": "/run/fngate-identity/token",
        "listen": "tls://:7443",
    }
    identity = next(one for one in made["spec"]["volumes"] if one["name"] == "identity")
    downward, token = identity["projected"]["sources"]
    assert downward["downwardAPI"]["items"][0]["fieldRef"]["fieldPath"] == (
        "metadata.annotations['fngate.dev/entrance']"
    )
    assert token["serviceAccountToken"]["audience"] == AUDIENCE
    assert RECORD.token not in json.dumps(made)


def test_gpus() -> None:
    """By a plugin they are counted, by claims they are named."""
    plugin = PodPlace("n1", 64_000, resource="nvidia.com/gpu")
    spec = sent(pod_for(request(record=ON_GPU, place=plugin)))["spec"]
    (one,) = spec["containers"]
    assert one["image"] == "runtime:gpu"
    assert one["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert one["resources"]["requests"]["cpu"] == "4000m"
    assert "NVIDIA_VISIBLE_DEVICES" not in variables(one)
    assert spec["runtimeClassName"] == "nvidia"
    claims = PodPlace("n1", 64_000, claims=("c0", "c1"))
    spec = sent(pod_for(request(record=ON_GPU, place=claims)))["spec"]
    assert spec["resourceClaims"] == [
        {"name": "gpu-0", "resourceClaimName": "c0"},
        {"name": "gpu-1", "resourceClaimName": "c1"},
    ]
    assert spec["containers"][0]["resources"]["claims"] == [{"name": "gpu-0"}, {"name": "gpu-1"}]


def test_a_standby() -> None:
    """It may be preempted, and has room for most models."""
    standby = replace(RECORD, role="standby", devices=(), memory_mib=0)
    spec = sent(pod_for(request(record=standby, needs=PodNeeds())))["spec"]
    assert spec["priorityClassName"] == "fngate-idle"
    assert spec["containers"][0]["resources"]["limits"]["memory"] == "2048Mi"
    assert spec["containers"][0]["resources"]["requests"]["memory"] == "64Mi"


def test_without_a_cap() -> None:
    """Nothing limits its memory, but its disk is limited."""
    record = replace(RECORD, memory_mib=0)
    spec = sent(pod_for(request(record=record)))["spec"]
    assert "memory" not in spec["containers"][0]["resources"]["limits"]
    sizes = {one["name"]: one["emptyDir"] for one in spec["volumes"] if "emptyDir" in one}
    assert sizes["tmp"] == {"medium": "", "sizeLimit": "16384Mi"}
    assert sizes["model"]["sizeLimit"] == "1064Mi"


def test_a_server_with_its_sidecar() -> None:
    """The server starts when the sidecar has fetched its files, and sees none of the sidecar's."""
    spec = sent(pod_for(request(SERVER)))["spec"]
    (sidecar,), (server,) = spec["initContainers"], spec["containers"]
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["startupProbe"]["exec"]["command"] == ["test", "-e", "/run/fngate/fetched"]
    assert sidecar["securityContext"]["runAsUser"] == 20007
    assert sidecar["resources"]["limits"]["memory"] == "112Mi"
    assert server["image"] == "ghcr.io/acme/app@sha256:00"
    assert server["args"] == ["--port", "8000", "--at=127.0.0.1", "0"]
    assert variables(server) == {
        "OMP_NUM_THREADS": "2",
        "A": "at 8000",
        "PORT": "8000",
        "KEY": {"secretKeyRef": {"name": "fn-abcdef01-aaaa0009", "key": "KEY"}},
        "NVIDIA_VISIBLE_DEVICES": "void",
        "FN_BUNDLE": "/function",
    }
    assert server["securityContext"]["runAsUser"] == 1234
    assert server["securityContext"]["runAsGroup"] == 99
    there = {one["mountPath"]: one for one in server["volumeMounts"]}
    assert set(there) == {"/dev/shm", "/tmp", "/cache", "/data", "/function"}
    assert there["/function"]["readOnly"] is True
    assert there["/data"]["readOnly"] is True
    volumes = {one["name"]: one for one in spec["volumes"]}
    claim = volumes[there["/data"]["name"]]["persistentVolumeClaim"]
    assert claim == {"claimName": "weights", "readOnly": True}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "128Mi"}
    assert volumes[there["/tmp"]["name"]]["emptyDir"]["sizeLimit"] == "200Mi"
    assert "shareProcessNamespace" not in spec
    assert spec["securityContext"]["sysctls"][1]["value"] == "8000"


def test_the_secret_of_a_server() -> None:
    """Its values are in no Pod."""
    made = secret_for(request(SERVER))
    assert made is not None
    assert made.string_data == {"KEY": "hunter2"}
    assert made.metadata.name == "fn-abcdef01-aaaa0009"
    assert "hunter2" not in json.dumps(sent(pod_for(request(SERVER))))
    assert secret_for(request(replace(SERVER, secrets={}))) is None
    assert secret_for(request()) is None


def test_a_secret_overrides_no_variable_of_ours() -> None:
    """As with any engine."""
    server = replace(SERVER, secrets={"PORT": "x", "A": "y"})
    found = variables(sent(pod_for(request(server)))["spec"]["containers"][0])
    assert found["PORT"] == "8000"
    assert found["A"]["secretKeyRef"]["key"] == "A"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"user": ""}, ""),
        ({"user": "1000"}, ""),
        ({"user": "0"}, "server.user: expected UID or UID:GID as numbers, and not root, got '0'"),
        ({"user": "app"}, "server.user: "),
        ({"user": "1:x"}, "server.user: "),
        ({"capabilities": ("NET_ADMIN",)}, "server.capabilities: expected none, got NET_ADMIN"),
        ({"port": 7443}, "server.port: expected another one than 7443"),
        ({"stop_signal": "SIGINT"}, "server.stop_signal: expected none, got SIGINT"),
    ],
)
def test_what_no_pod_can_have(changes: dict[str, Any], said: str) -> None:
    """It is refused with what to do."""
    why = why_not(replace(SERVER, **changes))
    assert why.startswith(said)
    assert bool(why) == bool(said)


@pytest.mark.parametrize(
    ("requests", "mib", "resources"),
    [
        ("64Mi", 512, {"limits": {"memory": "512Mi"}}),
        ("64Mi", 32, {"limits": {"memory": "32Mi"}, "requests": {"memory": "32Mi"}}),
    ],
)
def test_a_resize(requests: str, mib: int, resources: dict[str, Any]) -> None:
    """A request is never above its limit."""
    one = Container(name="replica", image="i", resources=Resources(requests={"memory": requests}))
    assert resized(one, mib) == {
        "spec": {"containers": [{"name": "replica", "resources": resources}]}
    }


@pytest.mark.parametrize(("text", "mib"), [("64Mi", 64), ("1Gi", 0), ("xMi", 0), ("", 0)])
def test_own_quantities(text: str, mib: int) -> None:
    """Only those that are written here are read here."""
    assert mib_in({"memory": text}) == mib


@pytest.mark.parametrize("server", [None, SERVER, replace(SERVER, user="", has_files=False)])
@pytest.mark.parametrize("record", [RECORD, ON_GPU, replace(RECORD, role="standby")])
def test_every_pod_keeps_the_policy_restricted(server: ServerContainer | None, record: Any) -> None:
    """As the double checks it."""
    store = Store()
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    store.add(NAMESPACES, {"metadata": {"name": NAMESPACE, "labels": labels}})
    store.add(ACCOUNTS, {"metadata": {"name": REPLICA_ACCOUNT, "namespace": NAMESPACE}})
    for name in ("fngate-serving", "fngate-idle"):
        made = {"metadata": {"name": name}, "value": 0, "preemptionPolicy": "Never"}
        store.add(PRIORITIES, made)
    pod = sent(pod_for(request(server, record=record, definition=PLAIN)))
    pod["metadata"]["namespace"] = NAMESPACE
    admitted = admit(store, pod)
    assert admitted["spec"]["securityContext"]["runAsNonRoot"] is True


PLAIN = KubernetesHost(name="k", image="runtime:cpu", cuda_image="runtime:gpu")
