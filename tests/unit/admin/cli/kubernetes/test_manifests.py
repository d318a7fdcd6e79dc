"""Tests of the manifests of a server in a cluster."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
import yaml
from typer.testing import Result

from admin.cli.kubernetes.server_pod import FIRST_KEY
from admin.settings import Settings
from hosts.kubernetes.objects import NETWORK_LABEL, OWNER_LABEL, REPLICA_LABEL
from registry.model.hosts import KubernetesHost

REPLICA = {OWNER_LABEL: "o", REPLICA_LABEL: "r", NETWORK_LABEL: "none"}
"""Labels of a Pod that the server makes."""
SERVER = {"app.kubernetes.io/name": "fngate"}


@pytest.fixture
def printed(fnctl: Callable[..., Result]) -> Callable[..., list[dict[str, Any]]]:
    """Return what `fnctl kubernetes manifests` prints."""

    def read(*options: str) -> list[dict[str, Any]]:
        return list(yaml.safe_load_all(fnctl("kubernetes", "manifests", *options).stdout))

    return read


def one(objects: list[dict[str, Any]], kind: str, name: str = "fngate") -> dict[str, Any]:
    """Return the object of a kind and name."""
    [found] = [x for x in objects if x["kind"] == kind and x["metadata"]["name"] == name]
    return found


def test_all_is_in_the_namespace(printed: Callable[..., list[dict[str, Any]]]) -> None:
    """Objects that can be are in the chosen namespace, also those that name it; it comes first, and
    the Service before the server."""
    objects = printed("--namespace", "models")

    placed = {x["kind"] for x in objects if x["metadata"].get("namespace") == "models"}
    wide = {x["kind"] for x in objects if "namespace" not in x["metadata"]}
    assert wide == {"Namespace", "PriorityClass", "ClusterRole", "ClusterRoleBinding"}
    assert placed >= {"Role", "RoleBinding", "ServiceAccount", "NetworkPolicy", "StatefulSet"}
    for kind, name in (("RoleBinding", "fngate"), ("ClusterRoleBinding", "fngate-models")):
        [subject] = one(objects, kind, name)["subjects"]
        assert subject == {"kind": "ServiceAccount", "name": "fngate", "namespace": "models"}
    kinds = [x["kind"] for x in objects]
    assert kinds[0] == "Namespace"
    assert kinds.index("Service") < kinds.index("StatefulSet")


def test_the_namespace_is_restricted(printed: Callable[..., list[dict[str, Any]]]) -> None:
    """Its admission refuses Pods that are not."""
    labels = one(printed(), "Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize("part", ["containers", "initContainers"])
def test_the_server_is_restricted(printed: Callable[..., list[dict[str, Any]]], part: str) -> None:
    """Its Pod is one that the namespace admits (kubernetes.io, "Pod Security Standards")."""
    pod = one(printed(), "StatefulSet")["spec"]["template"]["spec"]

    context = pod["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] > 0
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod[part]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
        assert {volume["mountPath"] for volume in container["volumeMounts"]} == {"/data", "/tmp"}
    assert {next(iter(volume.keys() - {"name"})) for volume in pod["volumes"]} == {"emptyDir"}


def test_the_settings_are_those_of_a_server(
    printed: Callable[..., list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads them, with the address of the Service filled in, and runs no function itself."""
    pod = one(printed("--public-host", "fn.example"), "StatefulSet")["spec"]["template"]["spec"]
    for pair in pod["containers"][0]["env"]:
        value = pair["value"].replace("$(FNGATE_SERVICE_HOST)", "10.96.0.9")
        monkeypatch.setenv(pair["name"], value)

    settings = Settings()

    assert (settings.cpu_slots, settings.gpus, settings.port) == (0, "none", 8080)
    assert settings.link_address == "10.96.0.9:7444"
    assert settings.public_hosts[-1] == "fn.example"
    assert {"localhost", "127.0.0.1", "fngate"} <= set(settings.public_hosts)
    assert pod["terminationGracePeriodSeconds"] > settings.shutdown_s
    probes = ("startupProbe", "readinessProbe", "livenessProbe")
    asked = [pod["containers"][0][probe]["httpGet"] for probe in probes]
    assert [one["path"] for one in asked] == ["/healthz", "/readyz", "/healthz"]
    [host] = {header["value"] for one in asked for header in one["httpHeaders"]}
    assert host in settings.public_hosts


def test_the_first_key_is_made_on_loopback() -> None:
    """A server that others can reach does not start without a key."""
    assert "--listen 127.0.0.1" in FIRST_KEY
    assert FIRST_KEY.index("&& exit 0") < FIRST_KEY.index("fnctl serve")


def test_names_are_those_of_a_definition(printed: Callable[..., list[dict[str, Any]]]) -> None:
    """A cluster that is added without options uses the account and priorities from here."""
    host, objects = KubernetesHost("k", image="i"), printed()

    assert (
        one(objects, "ServiceAccount", host.service_account)["automountServiceAccountToken"]
        is False
    )
    assert one(objects, "PriorityClass", host.priority_class)["value"] == 0
    assert one(objects, "PriorityClass", host.idle_class)["value"] < 0
    assert {x["preemptionPolicy"] for x in objects if x["kind"] == "PriorityClass"} == {"Never"}


def admitted(policies: list[dict[str, Any]], way: str, labels: dict[str, str]) -> list[Any]:
    """Return the rules of the policies that select a Pod with these labels."""
    found = []
    for policy in policies:
        spec = policy["spec"]
        if way.capitalize() in spec["policyTypes"] and selects(spec["podSelector"], labels):
            found += spec[way]
    return found


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Return whether a selector of labels takes a Pod with these."""
    wanted = selector.get("matchLabels", {})
    present = [x["key"] for x in selector.get("matchExpressions", ())]
    return wanted.items() <= labels.items() and set(present) <= labels.keys()


def test_a_replica_reaches_the_server_and_nothing_else(
    printed: Callable[..., list[dict[str, Any]]],
) -> None:
    """Its only rules are for Pods of the server at one port, in both directions."""
    policies = [x for x in printed() if x["kind"] == "NetworkPolicy"]

    [egress] = admitted(policies, "egress", REPLICA)
    [ingress] = admitted(policies, "ingress", REPLICA)

    for rule, peers, port in ((egress, "to", 7444), (ingress, "from", 7443)):
        assert [x["port"] for x in rule["ports"]] == [port]
        [peer] = rule[peers]
        assert selects(peer["podSelector"], SERVER)
        assert not selects(peer["podSelector"], REPLICA)
    doors = [x for x in admitted(policies, "ingress", SERVER) if "from" in x]
    assert [[port["port"] for port in x["ports"]] for x in doors] == [[7444]]
    assert not admitted(policies, "egress", SERVER)


@pytest.mark.parametrize(
    ("options", "inside", "outside"),
    [
        ((), ("169.254.169.254", "10.1.2.3", "192.168.1.1", "100.100.0.1"), ("8.8.8.8",)),
        (
            ("--cluster-cidr", "10.244.0.0/16", "--service-cidr", "10.96.0.0/12"),
            ("169.254.169.254", "10.244.3.4", "10.96.0.1"),
            ("8.8.8.8", "192.168.1.1"),
        ),
    ],
)
def test_functions_with_a_network_reach_no_cluster(
    printed: Callable[..., list[dict[str, Any]]],
    options: tuple[str, ...],
    inside: tuple[str, ...],
    outside: tuple[str, ...],
) -> None:
    """Neither Pods and Services, nor the cloud's metadata; but all else."""
    policies = [x for x in printed(*options) if x["kind"] == "NetworkPolicy"]

    [_, rule] = admitted(policies, "egress", {**REPLICA, NETWORK_LABEL: "egress"})

    blocks = [x["ipBlock"] for x in rule["to"]]

    def reaches(address: str) -> bool:
        at = ip_address(address)
        return any(
            at in ip_network(x["cidr"]) and not any(at in ip_network(y) for y in x["except"])
            for x in blocks
        )

    assert [reaches(x) for x in inside] == [False] * len(inside)
    assert [reaches(x) for x in outside] == [True] * len(outside)
    assert not reaches("fd00::1")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--namespace", "A b"), "expected a name"),
        (("--image", "a b"), "expected a reference"),
        (("--storage", "50"), "expected a size"),
        (("--cluster-cidr", "10.0.0.1/8"), "expected a network"),
        (("--resolver", "dns"), "expected an address"),
        (("--access-mode", "ReadWriteMany"), "ReadWriteOncePod"),
    ],
)
def test_wrong_options(
    fnctl: Callable[..., Result], options: tuple[str, ...], expected: str
) -> None:
    """What no API server would take is refused here, with what was expected."""
    result = fnctl("kubernetes", "manifests", *options)

    assert (result.exit_code, result.stdout) == (2, "")
    assert expected in " ".join(result.stderr.split())
