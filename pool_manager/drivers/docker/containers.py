"""Single containers: start, limit, signal, inspect, remove; checks of engine and image.

Every function blocks, and raises docker-py's errors unless it says otherwise.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from pool_manager.drivers.docker.spec import HOLDER, LINK, OWNER, REPLICA, UID, Way
from pool_manager.drivers.uids import misfit
from registry.errors import DriverError
from runtime_image.contract.link import VERSION

GONE_S: Final = 10.0
"""How long a removal that is already in progress may take."""
GONE_POLL_S: Final = 0.02
LOG_LINES: Final = 5000


UID_MAP: Final = Path("/proc/self/uid_map")


def check_image(image: str, kind: str, inspected: dict[str, Any]) -> None:
    """`inspected` is what GET /images/NAME/json says. Raises DriverError where the image speaks
    another version of the link, or is no runtime image at all."""
    target = "gpu" if kind == "cuda" else kind
    labels = (inspected.get("Config") or {}).get("Labels") or {}
    spoken = labels.get(LINK)
    if spoken is None:
        found = f"image {image} is no runtime image: it has no label {LINK}"
    elif spoken != str(VERSION):
        found = f"image {image} speaks link version {spoken}, this server version {VERSION}"
    else:
        return
    raise DriverError(f"{found}; build it: fnctl image build {target}")


def inspection(image: str) -> Callable[[docker.APIClient], dict[str, Any]]:
    """A call that gives `check_image` its input."""
    return lambda client: client.inspect_image(image)


def check_uids(uids: range) -> None:
    """Raises DriverError where containers cannot run as these users: an engine of this very user
    namespace has no others."""
    if reason := misfit(uids, UID_MAP.read_text()):
        raise DriverError(reason)


def check_users(info: dict[str, Any]) -> None:
    """`info` is what the engine tells of itself (GET /info). Raises DriverError where a user id in
    a container is another one outside: no replica could enter its own run folder."""
    options = info.get("SecurityOptions") or []
    for name in ("rootless", "userns"):
        if any(f"name={name}" in str(option).split(",") for option in options):
            raise DriverError(
                f"the engine gives containers other users than this machine has ({name}), so that"
                " no replica could read its files; use an engine that runs as root, without"
                " userns-remap: FN_DOCKER_HOST"
            )


@dataclass(frozen=True, slots=True)
class Start:
    """What is to be started. `holder` is the container whose network it joins, `gpu` the UUID it
    sees, to be asked for in one of `ways`, the first that the engine knows."""

    name: str
    config: dict[str, Any]
    holder: str | None
    gpu: str
    ways: Sequence[Way]


@dataclass(frozen=True, slots=True)
class Started:
    """A container that runs; `way` is how its GPU was asked for."""

    container: str
    way: Way | None


def begin(client: docker.APIClient, start: Start) -> Started:
    """Raises DriverError; nothing is left then, unless the engine went away."""
    if not start.gpu:
        return Started(_in_network(client, start, start.config), None)
    refused: list[str] = []
    for way in start.ways:
        try:
            return Started(_in_network(client, start, way(start.config, start.gpu)), way)
        except DriverError as error:
            if not is_no_way(error):
                raise
            refused.append(error.message)
    raise DriverError(f"GPU {start.gpu} cannot be had: {'; '.join(refused)}")


def _in_network(client: docker.APIClient, start: Start, config: dict[str, Any]) -> str:
    """In the holder's network if it still runs, else in one of its own."""
    if start.holder is not None:
        with contextlib.suppress(_HolderEnded):
            return _start(client, start.name, spec.join(config, start.holder), is_joining=True)
    return _start(client, start.name, config)


class _HolderEnded(Exception):
    """The network to join is not there any more."""


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
class ContainerExit:
    """How a container ended: `code` is None where the container is gone."""

    code: int | None
    out_of_memory: bool


def exit_of(client: docker.APIClient, container: str) -> ContainerExit | None:
    """None while it runs."""
    try:
        state = client.inspect_container(container)["State"]
    except ENGINE_ERRORS as error:
        if is_gone(error):
            return ContainerExit(None, out_of_memory=False)
        raise
    if state["Running"]:
        return None
    return ContainerExit(int(state["ExitCode"]), bool(state.get("OOMKilled")))


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
    """Wait for a removal that is already in progress."""
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
    """Set the limits of a container and rename it."""
    client.update_container(
        container,
        cpu_period=limits["CpuPeriod"],
        cpu_quota=limits["CpuQuota"],
        mem_limit=limits["Memory"],
        memswap_limit=limits["MemorySwap"],
    )
    # Only for display: a name that is taken must not cost a replica.
    with contextlib.suppress(*ENGINE_ERRORS):
        client.rename(container, name)


def output(client: docker.APIClient, container: str, since_s: int) -> bytes | None:
    """The last lines of its output since (Unix seconds), each after its time; None where it is
    gone."""
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
    """The host's numbers of its processes; None where it does not run."""
    try:
        shown = client.top(container)
    except ENGINE_ERRORS as error:
        if is_gone(error) or is_conflict(error):
            return None
        raise
    column = shown["Titles"].index("PID")
    return frozenset(int(row[column]) for row in shown["Processes"])
