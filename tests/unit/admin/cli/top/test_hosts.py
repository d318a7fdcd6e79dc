"""Tests of devices by host in `fnctl top`."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from admin.cli.live.state import LiveState
from admin.cli.top.hosts import rows, shares
from admin.cli.top.lines import Line
from admin.documents.events import DevicesEvent, HostsEvent, ReplicasEvent
from admin.documents.hosts import HostRow
from admin.documents.server import DeviceRow
from tests.support.admin_documents import made
from tests.support.event_server import device_row, replica_row


def text(line: Line) -> str:
    return "".join(part for part, _ in line).rstrip()


def live(devices: list[DeviceRow], hosts: list[HostRow]) -> LiveState:
    found = LiveState()
    for event in (
        HostsEvent(hosts),
        DevicesEvent(devices),
        ReplicasEvent([replica_row("r1", "digits", "gpu2/cpu:0")]),
    ):
        found.apply(event, 0.0)
    return found


LOCAL = made(HostRow, name="local", state="up", labels={"host": "local"})
GPU2 = made(
    HostRow,
    name="gpu2",
    state="up",
    labels={"host": "gpu2", "zone": "a"},
    rtt_ms=0.42,
    transfer="digits 40 %",
)
DEVICES = [device_row("cpu:0"), device_row("gpu2/cpu:0", host="gpu2", state="taken")]


def test_one_host_has_no_heading() -> None:
    """With the local host alone, devices are listed as ever."""
    found = rows(live([device_row("cpu:0")], [LOCAL]), 5, 100)

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
    reason = "no answer\x1b[2J for 8 s"
    away = replace(GPU2, state="unreachable", reason=reason, transfer="")
    line = text(rows(live(DEVICES, [LOCAL, away]), 9, 200)[2])

    assert line.startswith("gpu2 unreachable 0.42 ms")
    assert "no answer" in line
    assert "\x1b" not in line


def test_too_many_hosts_are_counted() -> None:
    """What is not up is shown first; there are never more lines than room."""
    many = [made(HostRow, name=f"h{n}", state="gone" if n == 7 else "up") for n in range(9)]
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
