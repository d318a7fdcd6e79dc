"""Tests of the parts of a cluster's checks that ask nobody."""

from __future__ import annotations

import pytest

from hosts.kubernetes.objects import Node, NodeInfo, NodeStatus
from pool_manager.hosts.kubernetes.examine import rights, usable, versions
from pool_manager.hosts.kubernetes.inventory import NodeFacts


def node(version: str) -> Node:
    return Node(status=NodeStatus(node_info=NodeInfo(kubelet_version=version)))


@pytest.mark.parametrize(
    ("found", "level", "text"),
    [
        (["v1.36.2", "v1.34.0-gke.100"], "ok", "1.34 to 1.36"),
        (["v1.33.1+k3s1"], "ok", "1.33"),
        (["v1.30.0", "v1.36.0"], "warn", "1.30 to 1.36"),
        (["v1.28.9"], "fail", "1.28"),
        (["some"], "fail", "0.0"),
        ([f"v1.{'9' * 20}"], "fail", "0.0"),
        ([], "fail", "there is no node"),
    ],
)
def test_the_oldest_kubelet_counts(found: list[str], level: str, text: str) -> None:
    """Sidecars need 1.29, standbys 1.33; a text that is no version is old."""
    check = versions([node(one) for one in found])

    assert check.level == level
    assert text in check.found


def test_missing_rights_are_listed() -> None:
    """With the command that grants them."""
    assert rights([]).level == "ok"
    check = rights(["create pods", "list nodes"])
    assert (check.level, check.found) == ("fail", "its account may not create pods, list nodes")
    assert "fnctl kubernetes manifests" in check.todo


def test_without_a_usable_node_each_reason_is_given() -> None:
    """Of a few nodes."""
    facts = [NodeFacts(f"k/n{n}", f"n{n}", why_unusable=f"reason {n}") for n in range(5)]
    check = usable(facts)
    assert check.level == "fail"
    assert "n2: reason 2" in check.found
    assert "n3" not in check.found
    ready = NodeFacts("k/a", "a", why_not_ready="its kubelet is silent")
    assert "its kubelet is silent" in usable([ready]).found
