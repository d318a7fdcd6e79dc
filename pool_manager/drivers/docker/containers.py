"""What is asked of single containers, and how they ended.

All of it blocks and raises docker-py's errors, unless it says more.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Any, Final

import docker

from pool_manager.drivers.docker.failures import ENGINE_ERRORS, is_conflict, is_gone
from pool_manager.drivers.docker.shape import HOLDER, OWNER, REPLICA, UID
from registry.errors import DriverError

GONE_S: Final = 10.0
"""How long a removal that somebody else began may take."""
GONE_POLL_S: Final = 0.02
LOG_LINES: Final = 5000


def owned(client: docker.APIClient, owner: str) -> list[dict[str, Any]]:
    """All containers of an owner, whatever their state, as GET /containers/json shows them."""
    found: list[dict[str, Any]] = client.containers(
        all=True, filters={"label": [f"{OWNER}={owner}"]}
    )
    return found


def replica_id(listed: dict[str, Any]) -> str:
    """The replica of a listed container, "" for a holder."""
    return str((listed.get("Labels") or {}).get(REPLICA, ""))


def uid(listed: dict[str, Any]) -> int | None:
    """The user id of a listed replica; None where its server did not give it one of its own."""
    text = str((listed.get("Labels") or {}).get(UID, ""))
    return int(text) if text.isdecimal() else None


def holder_number(listed: dict[str, Any]) -> str:
    """The number of a listed network holder, "" for anything else."""
    return str((listed.get("Labels") or {}).get(HOLDER, ""))


def alive(listed: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of listed containers the replicas that run, by their ids."""
    return {replica_id(one): one for one in listed if replica_id(one) and _is_running(one)}


def holding(listed: list[dict[str, Any]]) -> dict[str, str]:
    """Of listed containers the network holders that run: their numbers, and their ids."""
    running = [one for one in listed if holder_number(one) and _is_running(one)]
    return {holder_number(one): one["Id"] for one in running}


def _is_running(listed: dict[str, Any]) -> bool:
    """Whether its processes exist: also one that is paused has them."""
    return listed.get("State") in ("running", "paused", "restarting")


@dataclass(frozen=True, slots=True)
class Ending:
    """How a container ended: `code` is None where nobody knows any more."""

    code: int | None
    out_of_memory: bool


def ending(client: docker.APIClient, container: str) -> Ending | None:
    """None while it runs."""
    try:
        state = client.inspect_container(container)["State"]
    except ENGINE_ERRORS as error:
        if is_gone(error):
            return Ending(None, out_of_memory=False)
        raise
    if state["Running"]:
        return None
    return Ending(int(state["ExitCode"]), bool(state.get("OOMKilled")))


def remove(client: docker.APIClient, container: str) -> None:
    """Kill and remove; harmless where it is gone. Raises DriverError where it stays."""
    try:
        client.remove_container(container, force=True, v=True)
    except ENGINE_ERRORS as error:
        if is_gone(error):
            return
        if not is_conflict(error):
            raise
        _wait_removed(client, container)


def _wait_removed(client: docker.APIClient, container: str) -> None:
    """Somebody else removes it."""
    deadline_s = time.monotonic() + GONE_S
    while time.monotonic() < deadline_s:
        try:
            client.inspect_container(container)
        except ENGINE_ERRORS as error:
            if is_gone(error):
                return
            raise
        time.sleep(GONE_POLL_S)
    raise DriverError(f"container {container[:12]} is being removed for {GONE_S:.0f} s")


def remove_holders(client: docker.APIClient, owner: str) -> None:
    """Remove every network holder of an owner."""
    for listed in owned(client, owner):
        if holder_number(listed):
            remove(client, listed["Id"])


def terminate(client: docker.APIClient, container: str) -> None:
    """TERM to its first process, which passes it on; harmless where nothing runs."""
    _signal(client, container, "SIGTERM")


def kill(client: docker.APIClient, container: str) -> None:
    """KILL; harmless where nothing runs."""
    _signal(client, container, "SIGKILL")


def _signal(client: docker.APIClient, container: str, name: str) -> None:
    try:
        client.kill(container, name)
    except ENGINE_ERRORS as error:
        if not (is_gone(error) or is_conflict(error)):
            raise


def limit(client: docker.APIClient, container: str, limits: dict[str, int], name: str) -> None:
    """Set what it may take, and call it what it is now."""
    client.update_container(
        container,
        cpu_period=limits["CpuPeriod"],
        cpu_quota=limits["CpuQuota"],
        mem_limit=limits["Memory"],
        memswap_limit=limits["MemorySwap"],
    )
    # Only for people who look: a name that is taken must not cost a replica.
    with contextlib.suppress(*ENGINE_ERRORS):
        client.rename(container, name)


def output(client: docker.APIClient, container: str, since_s: int) -> bytes | None:
    """What it has written since (Unix seconds), the last lines of it, each behind its time; None
    where it is gone."""
    try:
        written: bytes = client.logs(
            container,
            stdout=True,
            stderr=True,
            tail=LOG_LINES,
            timestamps=True,
            since=since_s or None,
        )
    except ENGINE_ERRORS as error:
        if is_gone(error):
            return None
        raise
    return written


def pids(client: docker.APIClient, container: str) -> frozenset[int] | None:
    """The host's numbers of its processes; None where they cannot be told."""
    try:
        shown = client.top(container)
    except ENGINE_ERRORS as error:
        if is_gone(error) or is_conflict(error):
            return None
        raise
    column = shown["Titles"].index("PID")
    return frozenset(int(row[column]) for row in shown["Processes"])
