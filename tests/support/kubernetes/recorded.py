"""Watches of Pods of a real cluster (Kubernetes 1.36.2, three nodes, 2026-11-28 and 2026-11-30),
and what of them has to be the same in the double."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.support.kubernetes.store import Json

WATCH: Final = Path("tests/data/kubernetes_watch.jsonl")
"""Starts, ends, refusals, a resize."""
STEPS: Final = Path("tests/data/kubernetes_steps.jsonl")
"""Sidecars, evictions, a preemption, a node that is cut off, and one that is removed."""
DYNAMIC: Final = frozenset({"startedAt", "finishedAt", "containerID"})
"""Fields of a container's state that differ from run to run."""


class Seen(NamedTuple):
    """An event of a watch without what differs from run to run."""

    type: str
    phase: str
    reason: str
    message: str
    generation: int
    grace_s: int | None
    """None if the Pod is not to be deleted."""
    has_address: bool
    conditions: frozenset[tuple[str, str, str, str]]
    """Type, status, reason and message of each."""
    states: tuple[str, ...]
    """Of each container, as sorted JSON."""
    initial: tuple[str, ...]
    """States of the init containers."""
    limits: tuple[str, ...]
    """Memory limit in force of each container, "" for none."""


def seen(type: str, object: Json) -> Seen:
    """Return what is compared of an event with a Pod."""
    metadata, status = object["metadata"], object["status"]
    grace_s = metadata["deletionGracePeriodSeconds"] if "deletionTimestamp" in metadata else None
    containers = status.get("containerStatuses") or []
    return Seen(
        type,
        status["phase"],
        status.get("reason", ""),
        status.get("message", ""),
        metadata["generation"],
        grace_s,
        "podIP" in status,
        frozenset(
            (one["type"], one["status"], one.get("reason", ""), one.get("message", ""))
            for one in status.get("conditions", [])
        ),
        tuple(_state(one) for one in containers),
        tuple(_state(one) for one in status.get("initContainerStatuses") or []),
        tuple(
            (one.get("resources") or {}).get("limits", {}).get("memory", "") for one in containers
        ),
    )


def _state(container: Json) -> str:
    state: Json = {
        kind: {key: value for key, value in one.items() if key not in DYNAMIC}
        for kind, one in container["state"].items()
    }
    return json.dumps([state, container["ready"], container["restartCount"]], sort_keys=True)


def sequences(lines: Iterable[tuple[str, Json]]) -> dict[str, list[Seen]]:
    """Return the events by Pod; those that are the same as the one before are left out, since they
    differ in what is not compared."""
    found: dict[str, list[Seen]] = {}
    for type, object in lines:
        one, known = seen(type, object), found.setdefault(object["metadata"]["name"], [])
        if not known or known[-1] != one:
            known.append(one)
    return found


def recorded(path: Path) -> list[tuple[str, Json]]:
    """Return the recorded events of Pods."""
    lines: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["type"], line["object"]) for line in lines]
