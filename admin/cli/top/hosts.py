"""Devices by host as rows of `fnctl top`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from admin.cli.live.state import LiveState, seconds
from admin.cli.top import sections
from admin.cli.top.lines import Line, Span, cut, shown
from admin.text import get, number
from registry.model.hosts import LOCAL_HOST, host_order

STATES: Final = {
    "up": "green",
    "joining": "yellow",
    "draining": "yellow",
    "unreachable": "bold red",
    "gone": "bold red",
}
INDENT: Final = 2

Item = dict[str, Any]


def rows(live: LiveState, room: int, width: int) -> list[Line]:
    """Return the devices on at most `room` lines, below a line for each host if there are
    several."""
    resources, replicas = live.resources, live.on_device()
    hosts = ordered(resources.hosts)
    if len(hosts) < 2:
        return sections.rows(resources.devices, replicas, room, width)
    kept = hosts if len(hosts) <= room else _worst_first(hosts)[: max(0, room - 1)]
    devices = {str(host["name"]): _devices(str(host["name"]), resources.devices) for host in kept}
    rooms = shares({name: len(own) for name, own in devices.items()}, room - len(kept))
    lines: list[Line] = []
    for host in kept:
        name = str(host["name"])
        own = {short(id): {**device, "id": short(id)} for id, device in devices[name].items()}
        there = {short(id): replicas.get(id, []) for id in devices[name] if replicas.get(id)}
        lines.append(cut(heading(host, own), width))
        inner = sections.rows(own, there, rooms[name], max(1, width - INDENT))
        lines += [((" " * INDENT, ""), *line) for line in inner]
    if len(kept) < len(hosts) and room:
        lines.append(((f"… and {len(hosts) - len(kept)} more hosts", "dim"),))
    return lines


def ordered(hosts: Mapping[str, Item]) -> list[Item]:
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


def short(id: str) -> str:
    """Return a device's id without its host."""
    return id.partition("/")[2] or id


def heading(host: Item, devices: Mapping[str, Item]) -> tuple[Span, ...]:
    """Render "gpu2 up 0.4 ms zone=a 3 of 4 in use", with its transfer or its problem."""
    state, reason = shown(get(host, "state")), shown(get(host, "reason"))
    used = sum(each.get("state") != "free" for each in devices.values())
    rtt = host.get("rtt_ms")
    labels = host.get("labels")
    own = {k: v for k, v in labels.items() if k != "host"} if isinstance(labels, dict) else {}
    facts = [
        *([f"{number(seconds(rtt))} ms"] if rtt is not None else []),
        *(shown(f"{key}={value}") for key, value in sorted(own.items())),
        f"{used} of {len(devices)} devices in use",
    ]
    transfer = shown(get(host, "transfer"))
    return (
        (shown(host["name"]), "bold"),
        (" ", ""),
        (state, STATES.get(state, "")),
        (f" {'  '.join(facts)}", "dim"),
        (f"  {transfer}" if transfer else "", "cyan"),
        (f"  {reason}" if reason else "", "red" if state != "up" else "yellow"),
    )


def _devices(host: str, devices: Mapping[str, Item]) -> dict[str, Item]:
    return {id: one for id, one in devices.items() if (one.get("host") or LOCAL_HOST) == host}


def _worst_first(hosts: Sequence[Item]) -> list[Item]:
    return sorted(hosts, key=lambda host: host.get("state") == "up")
