"""Tests of changes of hosts as occurrences."""

from __future__ import annotations

from dataclasses import replace

from admin.documents.events import HostEvent
from admin.events.hosts import HostChanges
from pool_manager.core.hosts import HostState
from pool_manager.host import HostView

LOCAL = HostView("local", state=HostState.UP)
GPU2 = HostView("gpu2", "nn@gpu2", "joining")


def test_a_host_comes_breaks_and_goes() -> None:
    """Each new state is one occurrence, with its reason."""
    changes = HostChanges([LOCAL], lambda: 7.0)
    up = replace(GPU2, state=HostState.UP)
    views = [
        replace(GPU2, reason="not connected yet"),
        up,
        replace(GPU2, state=HostState.UNREACHABLE, reason="timeout"),
        None,
    ]

    found = [changes.change("gpu2", view) for view in views]

    assert [one and (one.change, one.text) for one in found] == [
        ("added", "host gpu2 was added"),
        ("up", "host gpu2 is up"),
        ("unreachable", "host gpu2 is unreachable: timeout"),
        ("removed", "host gpu2 was removed"),
    ]
    assert found[2] == HostEvent(
        host="gpu2",
        change="unreachable",
        at_s=7.0,
        reason="timeout",
        text="host gpu2 is unreachable: timeout",
    )


def test_figures_alone_are_no_occurrence() -> None:
    """A host that was there at the start is not added, nor is one that is removed twice."""
    changes = HostChanges([LOCAL, replace(GPU2, state=HostState.UP)], lambda: 7.0)

    assert changes.change("gpu2", replace(GPU2, state=HostState.UP, rtt_ms=3.0)) is None
    assert changes.change("local", replace(LOCAL, replicas=4)) is None
    full = [
        replace(GPU2, state=HostState.UP, reason=f"its disk is full: {mib} MiB are free")
        for mib in (212, 211, 9)
    ]
    found = [changes.change("gpu2", view) for view in full]
    assert [one and one.reason for one in found] == [full[0].reason, None, None]
    assert changes.change("gpu2", None) is not None
    assert changes.change("gpu2", None) is None
