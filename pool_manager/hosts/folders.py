"""This server's folders on another host: their contents, modes and removal.

BASE is `~/.fngate/OWNER` of the login, 0700: other users of the host see nothing of it. Containers
see single folders below it, so that the modes below say what their users may do.

    control/    0711  ctl.sock, which all replicas of the host share
    run/ID/     0755  the record
    data/ID/    0777  data.sock, which the replica binds; then 0711
    models/ID/  0755  hard links to files, and copies
    files/            files by content

A replica binds its socket before it greets, and foreign code runs in it only after its BIND. In
between its data folder is *sealed*: nothing can be made, removed or replaced in it any more. Until
then, or in the folder of a replica that was never bound, the socket may be a link to anything that
the login may use. The folder is therefore created before the container, never looked into, and
removed after it. Each step is one command of the host's shell: SFTP would follow links, and takes a
round trip per file.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Collection
from pathlib import PurePosixPath
from typing import Final, Protocol

from hosts.commands import Completed
from hosts.errors import ConnectionLost
from registry.errors import DriverError, HostDown
from registry.model.servers import Mount
from runtime_image.contract.control import CONTROL_SOCKET, DATA_SOCKET, RECORD_FILE

COMMAND_S: Final = 30.0
"""Time limit of a command on a host."""
REMOVE_S: Final = 120.0
"""Time limit of a removal: a replica may have made many files."""
SEALED: Final = "711"
"""Mode of a data folder in which nothing can be changed any more."""
SOCKET_PATH_MAX: Final = 107
"""Max bytes of a socket's path (unix(7))."""
SAID_MAX: Final = 300
"""Max characters shown of a command's error."""
_TAIL: Final = len(f"/data/00000000/{DATA_SOCKET}")


class Run(Protocol):
    """Runs a command in the login's shell. Raises OSError or TimeoutError."""

    def __call__(
        self, command: str, *, timeout_s: float, input: bytes = b""
    ) -> Awaitable[Completed]:
        """Return the end of `command`, whose standard input is `input`."""


class HostFolders:
    """The folders below BASE on one host. Methods raise DriverError, or HostDown if the connection
    to the host is lost."""

    def __init__(self, host: str, run: Run, base: PurePosixPath) -> None:
        self._host = host
        self._run = run
        self.base = base

    @property
    def control_socket(self) -> str:
        """The path of the host's control socket."""
        return str(self.base / "control" / CONTROL_SOCKET)

    def data_socket(self, id: str) -> str:
        """Return the path of the socket at which gateways connect to a replica."""
        return str(self.base / "data" / id / DATA_SOCKET)

    def model_dir(self, id: str) -> PurePosixPath:
        """Return a replica's model folder."""
        return self.base / "models" / id

    async def prepare(self) -> None:
        """Create BASE and the folders below it."""
        if len(str(self.base).encode()) + _TAIL > SOCKET_PATH_MAX:
            raise DriverError(
                f"the home folder on host {self._host} has a path that is too long for sockets:"
                f" {self.base}"
            )
        at = shlex.quote(str(self.base))
        folders = " ".join(f"{at}/{name}" for name in ("control", "run", "data", "models", "files"))
        await self._do(
            f"umask 077; mkdir -p {at} {folders} && chmod 700 {at} &&"
            f" chmod 711 {at}/control {at}/run {at}/data {at}/models",
            "make the folders of this server",
        )

    async def create(self, id: str, record: bytes) -> None:
        """Create a replica's folders, with its record."""
        run, data, models = self._of(id)
        await self._do(
            f"umask 022; mkdir -p {models} && mkdir {run} {data} && chmod 777 {data} &&"
            f" cat > {run}/{RECORD_FILE}",
            "make the folders of a replica",
            input=record,
        )

    async def empty_models(self, id: str, below: Collection[PurePosixPath] = ()) -> None:
        """Create a replica's model folder, or remove its contents; then create the folders `below`
        it. An existing folder is kept, since a container mounts it. A replica that runs is a
        standby, whose data folder is sealed."""
        _, data, models = self._of(id)
        folders = " ".join(sorted(f"{models}/{shlex.quote(str(one))}" for one in below))
        make = f" && mkdir -p {folders}" if folders else ""
        await self._do(
            f"umask 022; mkdir -p {models} && find {models} -mindepth 1 -delete{make} &&"
            f" {{ ! test -d {data} || chmod {SEALED} {data}; }}",
            "empty the model folder of a replica",
        )

    async def extend_models(self, id: str, below: Collection[PurePosixPath]) -> None:
        """Create the folders `below` the model folder of a replica that runs."""
        _, _, models = self._of(id)
        folders = " ".join(sorted(f"{models}/{shlex.quote(str(one))}" for one in below))
        make = f" && mkdir -p {folders}" if folders else ""
        await self._do(f"umask 022; test -d {models}{make}", "extend the model folder of a replica")

    async def seal(self, id: str) -> None:
        """Close a replica's data folder to the replica, which has bound its socket there."""
        _, data, _ = self._of(id)
        await self._do(f"chmod {SEALED} {data}", "close the data folder of a replica")

    async def remove(self, id: str) -> None:
        """Remove a replica's folders, if they exist. Its processes are gone."""
        folders = " ".join(self._of(id))
        await self._do(f"rm -rf {folders}", "remove the folders of a replica", limit_s=REMOVE_S)

    async def check_mount(self, mount: Mount) -> None:
        """Raise DriverError unless the source of a mount is a folder there, without links, and
        neither holds this server's files nor lies among them."""
        source = shlex.quote(mount.source)
        found = await self._do(f"cd {source} && pwd -P", f"mount {mount.source}")
        real = PurePosixPath(found.decode("utf-8", "replace").removesuffix("\n"))
        if str(real) != mount.source:
            raise DriverError(
                f"server.mounts.{mount.name}: expected a folder on host {self._host}, got a link:"
                f" {mount.source} is {real}"
            )
        if real in (self.base, *self.base.parents) or self.base in real.parents:
            raise DriverError(
                f"server.mounts.{mount.name}: expected a folder apart from {self.base} on host"
                f" {self._host}, got {real}"
            )

    async def ids(self) -> set[str]:
        """Return the ids of all replicas that have a folder."""
        at = shlex.quote(str(self.base))
        listed = await self._do(f"cd {at} && ls -1 run data models", "list the folders of replicas")
        names = listed.decode("utf-8", "replace").split()
        return {one for one in names if not one.endswith(":")}

    async def remove_all(self) -> None:
        """Remove BASE."""
        at = shlex.quote(str(self.base))
        await self._do(f"rm -rf {at}", "remove the folders of this server", limit_s=REMOVE_S)

    def _of(self, id: str) -> tuple[str, str, str]:
        """Return a replica's folders, quoted: run, data, models."""
        run, data, models = (
            shlex.quote(str(self.base / name / id)) for name in ("run", "data", "models")
        )
        return run, data, models

    async def _do(
        self, script: str, doing: str, *, input: bytes = b"", limit_s: float = COMMAND_S
    ) -> bytes:
        done = await shell(self._host, self._run, script, limit_s, input)
        if done.exit_status:
            said = done.stderr.decode("utf-8", "replace").strip()[:SAID_MAX]
            reason = said or f"exit status {done.exit_status}"
            raise DriverError(f"cannot {doing} on host {self._host}: {reason}{_remedy(said)}")
        return done.stdout


async def shell(host: str, run: Run, script: str, limit_s: float, input: bytes = b"") -> Completed:
    """Return the end of a script of the host's shell. Raises HostDown if the host does not answer,
    DriverError if it refuses commands."""
    try:
        return await run(f"sh -c {shlex.quote(script)}", timeout_s=limit_s, input=input)
    except TimeoutError:
        raise HostDown(f"host {host} does not end a command in time") from None
    except ConnectionLost as error:
        raise HostDown(f"the connection to host {host} is lost: {error}") from error
    except OSError as error:
        raise DriverError(f"host {host} runs no command: {error}") from error


def _remedy(said: str) -> str:
    if "No space left" in said or "Disk quota" in said:
        return "; free disk space there"
    return ""
