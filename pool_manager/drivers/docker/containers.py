"""Operations on single containers (start, limit, signal, inspect, remove); checks of engine and
image.

Every function blocks, and raises docker-py's errors unless its docstring states otherwise.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import docker

from pool_manager.drivers.docker import spec
from pool_manager.drivers.docker.engine import (
    ENGINE_ERRORS,
    is_conflict,
    is_gone,
    is_no_way,
    translate,
)
from pool_manager.drivers.docker.spec import (
    HOLDER,
    LINK,
    OWNER,
    PART,
    REPLICA,
    SERVER,
    SIDECAR,
    UID,
    Way,
)
from pool_manager.drivers.uids import misfit
from registry.errors import DriverError
from runtime_image.contract.link import VERSION

GONE_S: Final = 10.0
"""Time limit of a removal that is already in progress."""
GONE_POLL_S: Final = 0.02
LOG_LINES: Final = 5000


UID_MAP: Final = Path("/proc/self/uid_map")


def check_image(image: str, kind: str, inspected: dict[str, Any]) -> None:
    """Raise DriverError if an image is not a runtime image, or speaks another version of the link.
    `inspected` is the answer of GET /images/NAME/json."""
    target = "gpu" if kind == "cuda" else kind
    labels = (inspected.get("Config") or {}).get("Labels") or {}
    spoken = labels.get(LINK)
    if spoken is None:
        found = f"image {image} is not a runtime image: it has no label {LINK}"
    elif spoken != str(VERSION):
        found = f"image {image} speaks link version {spoken}, this server speaks {VERSION}"
    else:
        return
    raise DriverError(f"{found}; build it: fnctl image build {target}")


def inspection(image: str) -> Callable[[docker.APIClient], dict[str, Any]]:
    """Return a call that fetches the input of `check_image`."""
    return lambda client: client.inspect_image(image)


def check_uids(uids: range) -> None:
    """Raise DriverError if containers cannot run as these users. The engine is assumed to be in
    this process's user namespace."""
    if reason := misfit(uids, UID_MAP.read_text()):
        raise DriverError(reason)


def check_users(info: dict[str, Any]) -> None:
    """Raise DriverError if the engine maps user ids of containers to other ids on the host: no
    replica could enter its own run folder. `info` is the answer of GET /info."""
    for name in ("rootless", "userns"):
        if _has_option(info, name):
            raise DriverError(
                f"the engine maps user ids of containers to other ids of this machine ({name}), so"
                " no replica could read its files; use an engine that runs as root, without"
                " userns-remap: FN_DOCKER_HOST"
            )


def maps_users(info: dict[str, Any]) -> bool:
    """Return whether user id 0 of a container is one without rights on the machine, and not that of
    the engine's own user, as in a rootless engine."""
    return _has_option(info, "userns") and not _has_option(info, "rootless")


def _has_option(info: dict[str, Any], name: str) -> bool:
    options = info.get("SecurityOptions") or []
    return any(f"name={name}" in str(option).split(",") for option in options)


@dataclass(frozen=True, slots=True)
class Start:
    """A container to be started. `holder` is the container whose network it joins; `gpus` are the
    UUIDs of its GPUs, requested by the first of `ways` that the engine supports."""

    name: str
    config: dict[str, Any]
    holder: str | None
    gpus: tuple[str, ...]
    ways: Sequence[Way]


@dataclass(frozen=True, slots=True)
class Started:
    """A started container; `way` is how its GPUs were requested. With `sidecar`, the container is
    that of a server, and `sidecar` the one whose network it joined. `doubt` is what may keep the
    server from running, "" if nothing is known."""

    container: str
    way: Way | None
    sidecar: str = ""
    doubt: str = ""


def begin(client: docker.APIClient, start: Start) -> Started:
    """Create and start a container. Raises DriverError, and then leaves nothing behind unless the
    engine stopped answering."""
    if not start.gpus:
        return Started(_in_network(client, start, start.config), None)
    refused: list[str] = []
    for way in start.ways:
        try:
            return Started(_in_network(client, start, way(start.config, start.gpus)), way)
        except DriverError as error:
            if not is_no_way(error):
                raise
            refused.append(error.message)
    names, verb = " and ".join(start.gpus), "is" if len(start.gpus) == 1 else "are"
    raise DriverError(f"GPU {names} {verb} not available to containers: {'; '.join(refused)}")


def _in_network(client: docker.APIClient, start: Start, config: dict[str, Any]) -> str:
    """Start a container in the holder's network if the holder still runs, else in its own."""
    if start.holder is not None:
        with contextlib.suppress(_HolderEnded):
            return _start(client, start.name, spec.join(config, start.holder), is_joining=True)
    return _start(client, start.name, config)


class _HolderEnded(Exception):
    """The network to join no longer exists."""


def _start(
    client: docker.APIClient, name: str, config: dict[str, Any], *, is_joining: bool = False
) -> str:
    container: str = ""
    try:
        container = client.create_container_from_config(config, name)["Id"]
        client.start(container)
    except ENGINE_ERRORS as error:
        if container:
            with contextlib.suppress(DriverError, *ENGINE_ERRORS):
                remove(client, container)
        if is_joining and (is_conflict(error) or is_gone(error)):
            raise _HolderEnded from error
        raise translate(error, "start a container") from error
    return container


def owned(client: docker.APIClient, owner: str) -> list[dict[str, Any]]:
    """Return all containers of an owner in any state, as listed by GET /containers/json."""
    found: list[dict[str, Any]] = client.containers(
        all=True, filters={"label": [f"{OWNER}={owner}"]}
    )
    return found


def replica_id(listed: dict[str, Any]) -> str:
    """Return the replica id of a listed container, "" for a holder."""
    return str((listed.get("Labels") or {}).get(REPLICA, ""))


def part(listed: dict[str, Any]) -> str:
    """Return which part of its replica a listed container is: SIDECAR, SERVER, or "" for all."""
    return str((listed.get("Labels") or {}).get(PART, ""))


def uid(listed: dict[str, Any]) -> int | None:
    """Return the user id of a listed replica, None if its server assigned none."""
    text = str((listed.get("Labels") or {}).get(UID, ""))
    return int(text) if text.isdecimal() else None


@dataclass(frozen=True, slots=True)
class Parts:
    """Containers of one replica. `main` is that of the model, or of the server if there is a
    `sidecar` or was one; "" for none. `uid` is the user id that the replica was assigned."""

    main: str = ""
    sidecar: str = ""
    uid: int | None = None
    is_pair: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether no part is missing."""
        return bool(self.main and (self.sidecar or not self.is_pair))


def parts_of(listed: list[dict[str, Any]]) -> dict[str, Parts]:
    """Return the containers of all replicas of a list, by replica id."""
    found: dict[str, Parts] = {}
    for one in listed:
        id, container = replica_id(one), one["Id"]
        if not id:
            continue
        has = found.get(id, Parts())
        if part(one) == SIDECAR:
            found[id] = replace(has, sidecar=container, uid=uid(one), is_pair=True)
        elif part(one) == SERVER:
            found[id] = replace(has, main=container, is_pair=True)
        elif not part(one):
            found[id] = replace(has, main=container, uid=uid(one))
    return found


def holder_number(listed: dict[str, Any]) -> str:
    """Return the number of a listed network holder, "" for anything else."""
    return str((listed.get("Labels") or {}).get(HOLDER, ""))


def alive(listed: list[dict[str, Any]]) -> dict[str, Parts]:
    """Return the running replicas of a list, by replica id. A replica of two containers runs only
    if both do."""
    running = parts_of([one for one in listed if _is_running(one)])
    return {id: parts for id, parts in running.items() if parts.is_whole}


def in_order(listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the listed containers in the order of their removal: a server outlives its sidecar,
    without anything that ends its exchanges, so the sidecar goes last."""
    return sorted(listed, key=lambda one: part(one) == SIDECAR)


def holding(listed: list[dict[str, Any]]) -> dict[str, str]:
    """Return the running network holders of a list: container ids by number."""
    running = [one for one in listed if holder_number(one) and _is_running(one)]
    return {holder_number(one): one["Id"] for one in running}


def _is_running(listed: dict[str, Any]) -> bool:
    """Whether a container has processes; a paused one does."""
    return listed.get("State") in ("running", "paused", "restarting")


@dataclass(frozen=True, slots=True)
class ContainerExit:
    """Exit of a container; `code` is None if the container is gone."""

    code: int | None
    out_of_memory: bool


def exit_of(client: docker.APIClient, container: str) -> ContainerExit | None:
    """Return the exit of a container, None while it runs."""
    try:
        state = client.inspect_container(container)["State"]
    except ENGINE_ERRORS as error:
        if is_gone(error):
            return ContainerExit(None, out_of_memory=False)
        raise
    if state["Running"]:
        return None
    return ContainerExit(int(state["ExitCode"]), bool(state.get("OOMKilled")))


def running_config(client: docker.APIClient, container: str) -> dict[str, Any] | None:
    """Return the Config of a container that runs, None if it does not."""
    try:
        seen = client.inspect_container(container)
    except ENGINE_ERRORS as error:
        if is_gone(error):
            return None
        raise
    return dict(seen.get("Config") or {}) if seen["State"]["Running"] else None


def remove(client: docker.APIClient, container: str) -> None:
    """Kill and remove a container, if it exists. Raises DriverError if it cannot be removed."""
    try:
        client.remove_container(container, force=True, v=True)
    except ENGINE_ERRORS as error:
        if is_gone(error):
            return
        if not is_conflict(error):
            raise
        _wait_removed(client, container)


def _wait_removed(client: docker.APIClient, container: str) -> None:
    """Wait for a removal that is already in progress. Raises DriverError after GONE_S."""
    deadline_s = time.monotonic() + GONE_S
    while time.monotonic() < deadline_s:
        try:
            client.inspect_container(container)
        except ENGINE_ERRORS as error:
            if is_gone(error):
                return
            raise
        time.sleep(GONE_POLL_S)
    raise DriverError(f"container {container[:12]} was not removed within {GONE_S:.0f} s")


def remove_holders(client: docker.APIClient, owner: str) -> None:
    """Remove every network holder of an owner."""
    for listed in owned(client, owner):
        if holder_number(listed):
            remove(client, listed["Id"])


def terminate(client: docker.APIClient, container: str) -> None:
    """Send TERM to the first process of a container, which forwards it. Does nothing if the
    container does not run."""
    send_signal(client, container, "SIGTERM")


def kill(client: docker.APIClient, container: str) -> None:
    """Send KILL to a container. Does nothing if it does not run."""
    send_signal(client, container, "SIGKILL")


def send_signal(client: docker.APIClient, container: str, name: str) -> None:
    """Send a signal to the first process of a container. Does nothing if the container does not
    run."""
    try:
        client.kill(container, name)
    except ENGINE_ERRORS as error:
        if not (is_gone(error) or is_conflict(error)):
            raise


def limit(client: docker.APIClient, container: str, limits: dict[str, int], name: str) -> None:
    """Set the limits of a container and rename it."""
    client.update_container(
        container,
        cpu_period=limits["CpuPeriod"],
        cpu_quota=limits["CpuQuota"],
        mem_limit=limits["Memory"],
        memswap_limit=limits["MemorySwap"],
    )
    # The name is only for display: a name conflict must not fail the replica.
    with contextlib.suppress(*ENGINE_ERRORS):
        client.rename(container, name)


def output(client: docker.APIClient, container: str, since_s: int) -> bytes | None:
    """Return the last LOG_LINES lines of a container's output since a time (Unix seconds), each
    with a timestamp; None if the container is gone."""
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


def used_mib(client: docker.APIClient, container: str) -> float | None:
    """Return the MiB of memory that a container takes; None if it does not run."""
    try:
        stats = client.stats(container, stream=False, one_shot=True)
    except ENGINE_ERRORS as error:
        if is_gone(error) or is_conflict(error):
            return None
        raise
    return memory_of(stats.get("memory_stats") or {})


def memory_of(stats: dict[str, Any]) -> float | None:
    """Return the MiB in use by the field memory_stats of GET /containers/ID/stats.

    As `docker stats` does it, without files in the page cache that were not used lately, which the
    kernel gives up first.
    """
    usage = stats.get("usage")
    if not usage:
        return None
    more = stats.get("stats") or {}
    cached = more.get("total_inactive_file", more.get("inactive_file", 0))
    return max(0, int(usage) - int(cached)) / spec.MIB


def pids(client: docker.APIClient, container: str) -> frozenset[int] | None:
    """Return the host's pids of a container's processes; None if it does not run."""
    try:
        shown = client.top(container)
    except ENGINE_ERRORS as error:
        if is_gone(error) or is_conflict(error):
            return None
        raise
    column = shown["Titles"].index("PID")
    return frozenset(int(row[column]) for row in shown["Processes"])
