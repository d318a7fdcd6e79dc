"""Devices by host as rows of `fnctl top`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from admin.cli.live.state import LiveState
from admin.cli.top import sections
from admin.cli.top.lines import Line, Span, cut, shown
from admin.documents.hosts import HostRow
from admin.documents.server import DeviceRow
from admin.text import number
from registry.model.hosts import host_order

STATES: Final = {
    "up": "green",
    "joining": "yellow",
    "draining": "yellow",
    "unreachable": "bold red",
    "gone": "bold red",
}
INDENT: Final = 2


def rows(live: LiveState, room: int, width: int) -> list[Line]:
    """Return the devices on at most `room` lines, below a line for each host if there are
    several."""
    devices, replicas = live.resources.devices.values(), live.on_device()
    hosts = ordered(live.resources.hosts)
    if len(hosts) < 2:
        return sections.rows(devices, replicas, room, width)
    kept = hosts if len(hosts) <= room else _worst_first(hosts)[: max(0, room - 1)]
    own = {host.name: [one for one in devices if one.host == host.name] for host in kept}
    rooms = shares({name: len(there) for name, there in own.items()}, room - len(kept))
    lines: list[Line] = []
    for host in kept:
        lines.append(cut(heading(host, own[host.name]), width))
        inner = sections.rows(own[host.name], replicas, rooms[host.name], max(1, width - INDENT))
        lines += [((" " * INDENT, ""), *line) for line in inner]
    if len(kept) < len(hosts) and room:
        lines.append(((f"… and {len(hosts) - len(kept)} more hosts", "dim"),))
    return lines


def ordered(hosts: Mapping[str, HostRow]) -> list[HostRow]:
    """Return the hosts by name, the local one first."""
    return [hosts[name] for name in sorted(hosts, key=host_order)]


def shares(wanted: Mapping[str, int], room: int) -> dict[str, int]:
    """Divide `room` lines: small demands are met in full, the others share the rest evenly."""
    found: dict[str, int] = {}
    left = max(0, room)
    for at, name in enumerate(sorted(wanted, key=lambda name: wanted[name])):
        found[name] = min(wanted[name], left // (len(wanted) - at))
        left -= found[name]
    return found


def heading(host: HostRow, devices: Sequence[DeviceRow]) -> tuple[Span, ...]:
    """Render "gpu2 up 0.4 ms zone=a 3 of 4 in use", with its transfer or its problem."""
    used = sum(one.state != "free" for one in devices)
    own = (f"{key}={value}" for key, value in sorted(host.labels.items()) if key != "host")
    facts = [
        *([f"{number(host.rtt_ms)} ms"] if host.rtt_ms is not None else []),
        *map(shown, own),
        f"{used} of {len(devices)} devices in use",
    ]
    reason, transfer = shown(host.reason), shown(host.transfer)
    return (
        (shown(host.name), "bold"),
        (" ", ""),
        (host.state, STATES[host.state]),
        (f" {'  '.join(facts)}", "dim"),
        (f"  {transfer}" if transfer else "", "cyan"),
        (f"  {reason}" if reason else "", "red" if host.state != "up" else "yellow"),
    )


def _worst_first(hosts: Sequence[HostRow]) -> list[HostRow]:
    return sorted(hosts, key=lambda host: host.state == "up")
