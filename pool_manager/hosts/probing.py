"""Facts of a host that its engine does not report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pool_manager.drivers.docker.pairs import IPV6, MOUNTS, Machine
from pool_manager.hosts.folders import COMMAND_S, Run, shell
from registry.errors import DriverError

_NVIDIA: Final = "test -e /dev/nvidiactl || test -e /dev/dxg || command -v nvidia-smi >/dev/null"
"""Devices of a loaded NVIDIA driver, the second of Windows' subsystem; a program of the driver."""
_NOFILE: Final = (
    r"sed -n 's/^Max open files  *[^ ]*  *\([^ ]*\).*/\1/p' /proc/$(pidof -s dockerd)/limits"
)
"""Hard limit on open files of the engine, above which a container's cannot be: proc_pid_limits(5).
Without a process of that name, the login's limit stands for it."""
MOUNTS_MAX: Final = 512 * 1024
"""Max bytes read of a host's list of file systems."""
_SCRIPT: Final = (
    "cd && pwd -P && uname -m &&"
    f" {{ test -d {IPV6} && echo yes || echo no; }} &&"
    f" {{ {{ {_NVIDIA}; }} && echo yes || echo no; }} &&"
    f" {{ {{ {_NOFILE}; }} 2>/dev/null | grep . || ulimit -Hn; }} && head -c {MOUNTS_MAX} {MOUNTS}"
)
_LINES: Final = 5


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of a host: the login's home folder, whether an NVIDIA driver is installed, the limit on
    open files that a container can have (0: none), and the facts that containers of servers depend
    on."""

    home: str
    has_nvidia: bool
    nofile: int
    machine: Machine


async def read_facts(host: str, run: Run) -> Facts:
    """Return the facts of a host. Raises DriverError, or HostDown if the connection is lost."""
    done = await shell(host, run, _SCRIPT, COMMAND_S)
    lines = done.stdout.decode("utf-8", "replace").split("\n", _LINES)
    if done.exit_status or len(lines) <= _LINES or not lines[0].startswith("/"):
        said = done.stderr.decode("utf-8", "replace").strip() or lines[0]
        raise DriverError(
            f"host {host}: expected a login with a shell that runs commands, got {said[:300]!r}"
        )
    home, processors, has_ipv6, has_nvidia, nofile, mounts = lines
    most = int(nofile) if nofile.isascii() and nofile.isdigit() else 0
    return Facts(home, has_nvidia == "yes", most, Machine(processors, has_ipv6 == "yes", mounts))
