"""What the manager is told of a node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pool_manager.core.state import Device
from pool_manager.hosts.kubernetes.inventory import NodeFacts
from pool_manager.hosts.kubernetes.node_life import (
    ANSWER_S,
    Announce,
    Command,
    NodeContact,
    Offer,
    ReportAway,
    ReportSilent,
    ReportUp,
    Surroundings,
    Told,
    Withdraw,
    next_step,
)

SLOT = Device("k/n1/cpu:0", "cpu", host="k/n1")
GPU = Device("k/n1/GPU-1", "cuda", host="k/n1")
NODE = NodeFacts("k/n1", "n1", labels={"zone": "a"}, devices=(SLOT,))
UNREADY = replace(NODE, why_not_ready="its kubelet does not report")
UNUSABLE = replace(NODE, why_unusable="it has the taint x")
OFFER = Offer((SLOT,))
AROUND = Surroundings(100.0)
ANSWERING = Surroundings(100.0, is_answering=True)
DOWN = Surroundings(100.0, api_down="no route")
UP = Told(NodeContact.UP, {"zone": "a"}, offer=OFFER)
SILENT = replace(UP, contact=NodeContact.SILENT, answered_s=100.0)
AWAY = replace(UP, contact=NodeContact.AWAY)
EXPECTED = Told(NodeContact.EXPECTED)
FOUND = ReportUp(OFFER, is_found=True)
AGAIN = ReportUp(OFFER, is_found=False)
SAID = Announce({"zone": "a"}, is_draining=False)


@pytest.mark.parametrize(
    ("told", "seen", "around", "contact", "commands"),
    [
        pytest.param(Told(), NODE, AROUND, "up", [SAID, FOUND], id="new"),
        pytest.param(Told(), UNREADY, AROUND, "expected", [SAID], id="new, not ready"),
        pytest.param(Told(), UNUSABLE, AROUND, "none", [], id="none of ours"),
        pytest.param(Told(), None, AROUND, "none", [], id="unknown"),
        pytest.param(Told(), NODE, DOWN, "none", [], id="new to a silent API server"),
        pytest.param(EXPECTED, None, AROUND, "none", [Withdraw(is_gone=True)], id="never found"),
        pytest.param(EXPECTED, None, DOWN, "expected", [], id="not known yet"),
        pytest.param(
            EXPECTED,
            UNREADY,
            replace(AROUND, has_pods=True),
            "silent",
            [SAID, FOUND, ReportSilent("its kubelet does not report")],
            id="adopted, not ready",
        ),
        pytest.param(UP, NODE, AROUND, "up", [], id="nothing new"),
        pytest.param(UP, None, AROUND, "none", [Withdraw(is_gone=True)], id="deleted"),
        pytest.param(UP, NODE, DOWN, "silent", [ReportSilent("no route")], id="API server away"),
        pytest.param(SILENT, NODE, DOWN, "silent", [], id="API server still away"),
        pytest.param(SILENT, None, DOWN, "silent", [], id="API server away, no node"),
        pytest.param(SILENT, NODE, AROUND, "up", [], id="API server back"),
        pytest.param(
            UP,
            UNREADY,
            ANSWERING,
            "silent",
            [ReportSilent("its kubelet does not report")],
            id="kubelet killed",
        ),
        pytest.param(
            UP,
            UNREADY,
            AROUND,
            "away",
            [ReportAway("its kubelet does not report")],
            id="cut off",
        ),
        pytest.param(
            SILENT, UNREADY, replace(ANSWERING, now=500.0), "silent", [], id="answers for long"
        ),
        pytest.param(
            SILENT,
            UNREADY,
            replace(AROUND, now=100.0 + ANSWER_S - 0.1),
            "silent",
            [],
            id="silent a moment ago",
        ),
        pytest.param(
            SILENT,
            UNREADY,
            replace(AROUND, now=100.0 + ANSWER_S),
            "away",
            [ReportAway("its kubelet does not report")],
            id="silent, then cut off",
        ),
        pytest.param(AWAY, UNREADY, ANSWERING, "away", [], id="still away"),
        pytest.param(AWAY, NODE, AROUND, "up", [FOUND], id="healed"),
        pytest.param(AWAY, NODE, DOWN, "away", [], id="away, API server too"),
        pytest.param(UP, UNUSABLE, AROUND, "up", [Withdraw(is_gone=False)], id="tainted"),
        pytest.param(
            replace(UP, is_leaving=True), UNUSABLE, AROUND, "up", [], id="tainted for long"
        ),
        pytest.param(
            replace(UP, is_leaving=True),
            replace(UNUSABLE, why_not_ready="gone quiet"),
            AROUND,
            "away",
            [ReportAway("gone quiet")],
            id="tainted, then cut off",
        ),
        pytest.param(
            replace(UP, is_leaving=True), NODE, AROUND, "up", [SAID, FOUND], id="no taint any more"
        ),
        pytest.param(
            UP,
            replace(NODE, is_draining=True),
            AROUND,
            "up",
            [Announce({"zone": "a"}, is_draining=True)],
            id="cordoned",
        ),
        pytest.param(
            UP,
            replace(NODE, devices=(SLOT, GPU)),
            AROUND,
            "up",
            [ReportUp(Offer((SLOT, GPU)), is_found=False)],
            id="more devices",
        ),
        pytest.param(
            UP,
            NODE,
            replace(AROUND, standby_kinds=frozenset({"cpu"})),
            "up",
            [ReportUp(Offer((SLOT,), 0.0, frozenset({"cpu"})), is_found=False)],
            id="standbys from now on",
        ),
        pytest.param(UP.forgotten(), NODE, AROUND, "up", [SAID, AGAIN], id="defined again"),
        pytest.param(
            SILENT.forgotten(), UNREADY, ANSWERING, "silent", [SAID], id="defined again, silent"
        ),
    ],
)
def test_steps(
    told: Told,
    seen: NodeFacts | None,
    around: Surroundings,
    contact: str,
    commands: list[Command],
) -> None:
    """Each case says what is told; a second look at the same tells nothing more."""
    after, said = next_step(told, seen, around)

    assert (after.contact, said) == (contact, commands)
    assert next_step(after, seen, around)[1] == []


def test_an_answer_begins_the_silence_anew() -> None:
    """A node that is not ready is unreachable only when its replicas were silent for a while."""
    told, _ = next_step(SILENT, UNREADY, replace(ANSWERING, now=500.0))
    told, said = next_step(told, UNREADY, replace(AROUND, now=500.0 + ANSWER_S - 1))
    assert said == []
    _, said = next_step(told, UNREADY, replace(AROUND, now=500.0 + ANSWER_S))

    assert said == [ReportAway("its kubelet does not report")]
