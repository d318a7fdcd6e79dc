"""The two containers of a server function's replica: their start, and their end with grace.

The sidecar's container starts first: it has the network that the server's joins. Its end would not
end the server, so the server's container is always stopped and removed first. A sidecar is never
restarted: it would have another network.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import math
import platform
import tarfile
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import docker

from pool_manager.drivers.container_exits import describe_exit
from pool_manager.drivers.docker import containers, server_spec, spec
from pool_manager.drivers.docker.containers import Parts, Start, Started, begin
from pool_manager.drivers.docker.engine import ENGINE_ERRORS, Engine, is_gone
from pool_manager.drivers.docker.server_spec import Abilities, Ids, ImageFacts, Pair
from pool_manager.drivers.docker.spec import PART, REPLICA, Way
from pool_manager.ports import ServerContainer
from registry.errors import DriverError, EngineDown

READ_ONLY_BELOW: Final = (1, 44)
"""API version from which a read-only mount can cover what is mounted below it."""
FILE_MAX: Final = 1024 * 1024
"""Max bytes of an image's passwd(5) or group(5)."""
IDS_MAX: Final = 256
"""Max images whose users are remembered."""
STRANGER_S: Final = 10.0
"""Longest grace of a server that no manager knows: the next manager's start waits for it."""
SHUT_S: Final = 2.0
"""Seconds in which a sidecar shuts its connections and exits."""
POLL_S: Final = (0.02, 0.5)
"""Shortest and longest pause between two looks at a container that is to end."""
USER: Final = "user"
"""Value of the label PART of a container that only shows an image's files."""
IPV6: Final = Path("/proc/sys/net/ipv6")
MOUNTS: Final = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of the engine: its processors (uname(2)), whether its kernel has IPv6, and its
    file systems (proc_pid_mountinfo(5))."""

    processors: str
    has_ipv6: bool
    mountinfo: str


def this_machine() -> Machine:
    """Return the machine of this process. Blocking."""
    return Machine(platform.machine(), IPV6.is_dir(), MOUNTS.read_text())


class ImageUsers:
    """The ids of the users of images. An image's content never changes, so neither do its ids."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Ids | None] = {}

    def find(
        self,
        client: docker.APIClient,
        image: str,
        user: str,
        labels: dict[str, str],
        volumes: Iterable[str] = (),
    ) -> Ids | None:
        """Return the ids of a user of an image, None if the image does not say them. Blocks; raises
        docker-py's errors. `labels` are of the container that this may take, which never runs;
        `volumes` are the image's."""
        if (plain := server_spec.numeric_ids(user)) is not None:
            return plain
        if (image, user) not in self._known:
            if len(self._known) >= IDS_MAX:
                self._known.clear()
            passwd, group = _account_files(client, image, labels, volumes)
            self._known[image, user] = server_spec.ids_of(user, passwd, group)
        return self._known[image, user]


def _account_files(
    client: docker.APIClient, image: str, labels: dict[str, str], volumes: Iterable[str]
) -> tuple[str, str]:
    config = {
        "Image": image,
        "Cmd": ["none"],
        "Labels": labels,
        # Each VOLUME without a tmpfs would be a copy of the image's folder on the host's disk.
        "HostConfig": {"NetworkMode": "none", "Tmpfs": dict.fromkeys(volumes, "")},
    }
    made: str = client.create_container_from_config(config)["Id"]
    try:
        return _read(client, made, "/etc/passwd"), _read(client, made, "/etc/group")
    finally:
        with contextlib.suppress(DriverError, *ENGINE_ERRORS):
            containers.remove(client, made)


def _read(client: docker.APIClient, container: str, path: str) -> str:
    """Return a text file of a container, "" if it has none or one that is too large."""
    try:
        stream, _ = client.get_archive(container, path)
    except ENGINE_ERRORS as error:
        if is_gone(error):
            return ""
        raise
    packed = bytearray()
    for part in stream:
        packed += part
        if len(packed) > FILE_MAX:
            stream.close()
            return ""
    try:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            member = archive.next()
            file = archive.extractfile(member) if member is not None and member.isreg() else None
            return file.read().decode("utf-8", "replace") if file is not None else ""
    except tarfile.TarError:
        return ""


@dataclass(frozen=True, slots=True)
class PairStart:
    """A replica of two containers to be started. `image` is the sidecar's, `uid` its user id;
    `gpus` and `ways` are as in `Start`, for the server. `machine` is called in the engine's
    thread."""

    pair: Pair
    image: str
    uid: int
    gpus: tuple[str, ...]
    ways: tuple[Way, ...]
    users: ImageUsers
    machine: Callable[[], Machine] = this_machine


def begin_pair(client: docker.APIClient, start: PairStart) -> Started:
    """Create and start both containers. Blocks. Raises DriverError or docker-py's errors, and then
    leaves nothing behind unless the engine stopped answering."""
    machine = start.machine()
    abilities = _abilities(client, machine)
    facts = _look_at(client, start)
    pair = start.pair
    if not abilities.read_only_below:
        _check_mounts(pair.server, machine)
    if pair.server.network == "egress":
        _check_bridge(client)
    config = server_spec.sidecar(pair, start.image, start.uid, abilities)
    name = server_spec.sidecar_name(pair.record, pair.owner)
    sidecar = begin(client, Start(name, config, None, (), ())).container
    try:
        config = server_spec.server(pair, facts, sidecar, abilities)
        name = spec.container_name(pair.record, pair.owner)
        began = begin(client, Start(name, config, None, start.gpus, start.ways))
    except BaseException as error:
        ended = _why_ended(client, sidecar)
        with contextlib.suppress(DriverError, *ENGINE_ERRORS):
            containers.remove(client, sidecar)
        if ended:
            raise DriverError(ended) from error
        raise
    doubt = server_spec.foreign(facts.architecture, machine.processors)
    return Started(began.container, began.way, sidecar, doubt)


def _abilities(client: docker.APIClient, machine: Machine) -> Abilities:
    version = tuple(int(part) for part in str(client.api_version).split(".")[:2])
    return Abilities(version >= READ_ONLY_BELOW, machine.has_ipv6)


def _look_at(client: docker.APIClient, start: PairStart) -> ImageFacts:
    """Return what the image says, with its user's ids only if a folder needs an owner. Raises
    DriverError if the image is gone."""
    server, owner = start.pair.server, start.pair.owner
    try:
        image = client.inspect_image(server.image)
    except ENGINE_ERRORS as error:
        if not is_gone(error):
            raise
        raise DriverError(
            f"the image {server.image[:19]} is no longer on the engine: deploy the function again"
        ) from error
    facts, named = server_spec.facts_of(image)
    if not (facts.volumes or server.writable):
        return facts
    labels = {
        **spec.common_labels(owner),
        **server_spec.FOREIGN,
        REPLICA: start.pair.record.id,
        PART: USER,
    }
    user = server.user or named
    ids = start.users.find(client, server.image, user, labels, facts.volumes)
    return replace(facts, user=ids)


def _check_bridge(client: docker.APIClient) -> None:
    """Raise DriverError if the engine lacks the network: it would start the container without any
    network, and without an error."""
    try:
        client.inspect_network(server_spec.BRIDGE)
    except ENGINE_ERRORS as error:
        if not is_gone(error):
            raise
        raise DriverError(
            f'server.network = "egress": expected the engine\'s network {server_spec.BRIDGE}, got'
            " none: the engine was configured without it (bridge in daemon.json)"
        ) from error


def _check_mounts(server: ServerContainer, machine: Machine) -> None:
    for point in server_spec.below(server.mounts, machine.mountinfo):
        raise DriverError(
            f"{point} is a file system of its own below a folder that the function mounts"
            " read-only: this engine cannot mount it read-only, an engine of version 25 or newer"
            " can; or mount it by a name of its own"
        )


def _why_ended(client: docker.APIClient, sidecar: str) -> str:
    """Return how a sidecar has ended, with its last line of output; "" if it runs, or that is
    unknown."""
    try:
        ended = containers.exit_of(client, sidecar)
        if ended is None:
            return ""
        said = client.logs(sidecar, stdout=True, stderr=True, tail=1).decode("utf-8", "replace")
    except ENGINE_ERRORS:
        return ""
    how = describe_exit(ended.code, out_of_memory=ended.out_of_memory)
    return f"the sidecar {how}: {said.strip()}" if said.strip() else f"the sidecar {how}"


class PairEnd:
    """Ends the containers of server functions' replicas, with grace for the server."""

    def __init__(
        self,
        engine: Engine,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._sleep = sleep
        self._clock = clock

    async def stop(self, parts: Parts, most_s: float = math.inf) -> None:
        """Let the sidecar shut what is open, then stop the server; what does not end in time is
        left to the removal. The server has its grace, at most `most_s`. Raises DriverError.

        Waits by looking again: a thread of the engine's client is not held for the grace.
        """
        stops = await self._state(parts.main) if parts.main else None
        if parts.sidecar and await self._state(parts.sidecar) is not None:
            # A server may wait for open exchanges after its stop signal, without a limit.
            await self._signal(parts.sidecar, "SIGTERM")
            await self._await_end(parts.sidecar, SHUT_S)
        if stops is not None:
            signal, grace_s = server_spec.stop_of(stops)
            if grace_s > 0:
                await self._stop_server(parts.main, signal)
                await self._await_end(parts.main, min(grace_s, most_s))

    async def _stop_server(self, container: str, signal: str) -> None:
        """Send a server its stop signal; TERM if the engine refuses it, because the STOPSIGNAL of
        an image may be any text."""
        try:
            await self._signal(container, signal)
        except EngineDown:
            raise
        except DriverError:
            await self._signal(container, "SIGTERM")

    async def _state(self, container: str) -> dict[str, Any] | None:
        """Return the Config of a container that runs, else None."""
        return await self._engine.call(
            "inspect a container", lambda client: containers.running_config(client, container)
        )

    async def _signal(self, container: str, signal: str) -> None:
        await self._engine.call(
            "stop a container", lambda client: containers.send_signal(client, container, signal)
        )

    async def _await_end(self, container: str, limit_s: float) -> None:
        until_s, (pause_s, longest_s) = self._clock() + limit_s, POLL_S
        while (left_s := until_s - self._clock()) > 0:
            await self._sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, longest_s)
            if await self._state(container) is None:
                return
