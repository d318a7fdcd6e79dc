"""Tests of clusters over the admin API, with a server outside of one."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace as changed

from admin.documents.hosts import KubernetesHostSettings
from admin.documents.requests import HostChanges, KubernetesHostRequest
from admin.host_cluster import HostClusters
from hosts.checks import Check
from pool_manager.host import HostView
from registry.errors import HostRefused
from registry.model.hosts import KubernetesHost
from tests.support.server import ServingServer

NEW = {"kind": "kubernetes", "name": "k", "image": "registry.example/fn:1", "cpu_slots": 2}
GOOD = Check("ok", "API server", "lists 2 nodes")
BAD = Check("fail", "rights", "its account may not create pods", "kubectl apply")


async def test_a_server_outside_a_cluster_takes_none(server: ServingServer) -> None:
    """The reason and the remedy are named, also without checks; nothing is stored."""
    for query in ("", "?unchecked=true"):
        answer = await server.admin("POST", f"/hosts{query}", NEW)

        assert (answer.status, answer.problem["code"]) == (422, "host_refused")
        assert "this server runs outside a cluster" in answer.problem["detail"]
        assert "fnctl kubernetes manifests" in answer.problem["hint"]
    assert server.server.store.hosts.all() == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"kind": "ray"}, "Invalid enum value 'ray'"),
        ({"image": ""}, "image: expected"),
        ({"address": "nn@gpu2"}, "unknown field `address`"),
        ({"devices": "some"}, "Invalid enum value 'some'"),
        ({"tolerations": [{"key": 1}]}, "Expected `str`"),
    ],
)
async def test_bad_clusters_are_refused(
    server: ServingServer, changes: dict[str, Any], expected: str
) -> None:
    """Before any cluster is asked."""
    answer = await server.admin("POST", "/hosts", {**NEW, **changes})

    assert answer.status == 400
    assert expected in answer.problem["detail"]


async def test_what_a_server_needs_is_named() -> None:
    """Access to an API server first, then a door for replicas."""

    async def examine(_host: KubernetesHost) -> list[Check]:
        return [GOOD, BAD]

    host = KubernetesHost("k", image="i")
    with pytest.raises(HostRefused, match="outside a cluster: no token"):
        HostClusters(examine, "no token").check_server()
    with pytest.raises(HostRefused, match="FN_LINK_LISTEN is not set") as caught:
        HostClusters(examine, has_door=False).check_server()
    assert "FN_LINK_ADDRESS" in caught.value.detail["hint"]
    HostClusters(examine).check_server()
    with pytest.raises(HostRefused, match="rights: its account may not create pods") as caught:
        await HostClusters(examine).check(host)
    assert caught.value.detail["hint"] == "kubectl apply"


async def test_a_cluster_is_shown_changed_and_removed(
    server: ServingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its nodes are hosts of their own; it has the settings, and sums."""
    stored = await server.server.store.hosts.add(
        KubernetesHost("k", image="registry.example/fn:1", cpu_slots=2)
    )
    manager = server.server.manager
    nodes = [HostView(f"k/n{n}", f"10.0.0.{n}", "up", cpu_slots=2, replicas=n) for n in (1, 2)]
    monkeypatch.setattr(type(manager), "hosts_of", lambda _self, name: nodes if name == "k" else [])

    shown = (await server.admin("GET", "/hosts/k")).json()
    assert (shown["address"], shown["state"], shown["cpu_slots"], shown["replicas"]) == (
        "kubernetes",
        "up",
        4,
        3,
    )
    assert shown["settings"]["kind"] == "kubernetes"
    refused = await server.admin("PATCH", "/hosts/k", {"address": "nn@gpu2"})
    assert "k is a host in Kubernetes: it has no address" in refused.problem["detail"]
    await server.admin("PATCH", "/hosts/k", {"labels": {"zone": "b"}, "draining": True})
    kept = server.server.store.hosts.get("k")
    assert kept == changed(stored, labels={"zone": "b"}, is_draining=True)
    answer = await server.admin("DELETE", "/hosts/k")
    assert (answer.status, answer.json()) == (202, {"removed": None, "replicas": 3})


async def test_a_node_has_no_definition(
    server: ServingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is shown without settings, and changes name what can be changed."""
    node = HostView("k/n1", "10.0.0.1", "up")
    manager = server.server.manager
    monkeypatch.setattr(type(manager), "host", lambda _self, name: node if name == "k/n1" else None)

    shown = await server.admin("GET", "/hosts/k%2Fn1")
    assert (shown.status, shown.json()["settings"]) == (200, None)
    refused = await server.admin("PATCH", "/hosts/k%2Fn1", {"draining": True})
    assert "k/n1 is a node of the host k: expected k" in refused.problem["detail"]


async def test_a_definition_without_hosts_stands_for_itself(server: ServingServer) -> None:
    """So that it is seen in the list, by which it is found wrong."""
    await server.server.store.hosts.add(KubernetesHost("k", image="i", cpu_slots=1))

    items = (await server.admin("GET", "/hosts")).json()["items"]

    assert [(one["name"], one["address"], one["state"]) for one in items] == [
        ("local", "", "up"),
        ("k", "kubernetes", "joining"),
    ]


def test_documents_have_all_that_a_definition_has() -> None:
    """A new field can be given, changed and shown."""
    fields = set(KubernetesHost.__struct_fields__)
    own = {"is_draining", "added_s"}

    assert set(KubernetesHostRequest.__struct_fields__) == fields - own
    assert set(KubernetesHostSettings.__struct_fields__) == fields - {"name"}
    assert fields - own - {"name"} <= set(HostChanges.__struct_fields__)
