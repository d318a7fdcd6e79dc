"""Tests of devices by host in `fnctl top`."""

from __future__ import annotations

from typing import Any

import pytest

from admin.cli.live.state import LiveState
from admin.cli.top.hosts import rows, shares
from admin.cli.top.lines import Line


def text(line: Line) -> str:
    return "".join(part for part, _ in line).rstrip()


def live(devices: list[dict[str, Any]], hosts: list[dict[str, Any]]) -> LiveState:
    found = LiveState()
    found.apply("reset", {"server": {}}, 0.0)
    found.apply("hosts", {"items": hosts}, 0.0)
    found.apply("devices", {"items": devices}, 0.0)
    replica = {"id": "r1", "function": "digits", "revision": "digits@1", "state": "ready"}
    found.apply("replicas", {"items": [{**replica, "device": "gpu2/cpu:0"}]}, 0.0)
    found.apply("ready", {}, 0.0)
    return found


def device(id: str, host: str, state: str = "free") -> dict[str, Any]:
    return {"id": id, "host": host, "kind": "cpu", "state": state, "reason": ""}


LOCAL = {"name": "local", "state": "up", "labels": {"host": "local"}, "rtt_ms": None}
GPU2 = {
    "name": "gpu2",
    "state": "up",
    "labels": {"host": "gpu2", "zone": "a"},
    "rtt_ms": 0.42,
    "transfer": "digits 40 %",
}
DEVICES = [device("cpu:0", "local"), device("gpu2/cpu:0", "gpu2", "taken")]


def test_one_host_has_no_heading() -> None:
    """With the local host alone, devices are listed as ever."""
    found = rows(live([device("cpu:0", "local")], [LOCAL]), 5, 100)

    assert [text(line).split()[0] for line in found] == ["cpu:0"]


def test_devices_stand_below_their_host() -> None:
    """The local host comes first; ids have no host, and replicas are on their device."""
    found = [text(line) for line in rows(live(DEVICES, [GPU2, LOCAL]), 9, 100)]

    assert found[0] == "local up 0 of 1 devices in use"
    assert found[1].startswith("  cpu:0 ")
    assert found[2] == "gpu2 up 0.42 ms  zone=a  1 of 1 devices in use  digits 40 %"
    assert found[3].startswith("  cpu:0 ")
    assert "digits@1 ready" in found[3]


def test_an_unreachable_host_shows_the_reason() -> None:
    """The reason stands in the line of the host."""
    away = {**GPU2, "state": "unreachable", "reason": "no answer\x1b[2J for 8 s", "transfer": ""}
    line = text(rows(live(DEVICES, [LOCAL, away]), 9, 200)[2])

    assert line.startswith("gpu2 unreachable 0.42 ms")
    assert "no answer" in line
    assert "\x1b" not in line


def test_too_many_hosts_are_counted() -> None:
    """What is not up is shown first; there are never more lines than room."""
    many = [{"name": f"h{n}", "state": "up"} for n in range(9)]
    many[7]["state"] = "gone"
    shown = [text(line) for line in rows(live([], [LOCAL, *many]), 4, 100)]

    assert len(shown) == 4
    assert shown[0].startswith("h7 gone")
    assert shown[-1] == "… and 7 more hosts"
    assert rows(live([], [LOCAL, *many]), 0, 100) == []


@pytest.mark.parametrize(
    ("wanted", "room", "expected"),
    [
        ({"a": 1, "b": 9}, 4, {"a": 1, "b": 3}),
        ({"a": 2, "b": 2}, 9, {"a": 2, "b": 2}),
        ({"a": 8, "b": 8}, 5, {"a": 2, "b": 3}),
        ({"a": 8}, -1, {"a": 0}),
    ],
)
def test_room_is_shared(wanted: dict[str, int], room: int, expected: dict[str, int]) -> None:
    """Hosts with few devices show them all, the others share the rest."""
    assert shares(wanted, room) == expected
