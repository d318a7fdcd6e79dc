"""Facts of a host that its engine does not tell."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Final

from pool_manager.drivers.docker.pairs import IPV6, MOUNTS, Machine
from pool_manager.hosts.folders import COMMAND_S, Run, call
from registry.errors import DriverError

NVIDIA: Final = "/dev/nvidiactl"
"""Device of a loaded NVIDIA driver."""
MOUNTS_MAX: Final = 512 * 1024
"""Max bytes read of a host's list of file systems."""
_SCRIPT: Final = (
    "cd && pwd -P && uname -m &&"
    f" {{ test -d {IPV6} && echo yes || echo no; }} &&"
    f" {{ test -e {NVIDIA} && echo yes || echo no; }} && head -c {MOUNTS_MAX} {MOUNTS}"
)
_LINES: Final = 4


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of a host: the login's home folder, whether an NVIDIA driver is loaded, and what the
    containers of servers need."""

    home: str
    has_nvidia: bool
    machine: Machine


async def read_facts(host: str, run: Run) -> Facts:
    """Return the facts of a host. Raises DriverError, or HostDown if the connection is lost."""
    command = f"sh -c {shlex.quote(_SCRIPT)}"
    done = await call(host, lambda: run(command, timeout_s=COMMAND_S))
    lines = done.stdout.decode("utf-8", "replace").split("\n", _LINES)
    if done.exit_status or len(lines) <= _LINES or not lines[0].startswith("/"):
        said = done.stderr.decode("utf-8", "replace").strip() or lines[0]
        raise DriverError(
            f"host {host}: expected a login with a shell that runs commands, got {said[:300]!r}"
        )
    home, processors, has_ipv6, has_nvidia, mounts = lines
    return Facts(home, has_nvidia == "yes", Machine(processors, has_ipv6 == "yes", mounts))
