"""Check of the namespaces in which the sidecars of server functions start commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hosts.checks import Check

NAME: Final = "server isolation"
TRY_S: Final = 30.0
TRY: Final = """\
import json
from runtime_image.server.namespaces import isolate
print(json.dumps(isolate("none", 8000)))
"""
"""What a sidecar does, in a process of its own: there is no way back."""
COMMAND: Final = (sys.executable, "-I", "-c", TRY)
FINE: Final = (
    "commands get user, network, mount and PID namespaces of their own, /run of the host is hidden"
)
SWITCHES: Final = {
    "kernel/apparmor_restrict_unprivileged_userns": "0",
    "kernel/unprivileged_userns_clone": "1",
}
"""Settings below /proc/sys that refuse user namespaces, with the values that permit them."""


def namespaces(command: Sequence[str] = COMMAND, settings: Path = Path("/proc/sys")) -> Check:
    """Check that a command can have user, network, mount and PID namespaces of its own, in which
    /run of the host is hidden. Commands also run without them, so a failure is a warning."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=TRY_S,
            check=False,
        )
        network, processes, files = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return Check("warn", NAME, "not tried: the attempt ended without an answer")
    if network:
        found = f"{network}: local users can reach the commands' ports"
        if files:
            found += (
                ", bundles are not read-only, commands reach the sockets below /run (Docker,"
                " D-Bus), and functions in Python can write to their packages, of which each has a"
                " copy"
            )
        return Check("warn", NAME, found, _advice(settings))
    if processes:
        found = f"{processes}: a process may outlive a sidecar that is killed"
        todo = "let fngate see all of /proc, without mounts over parts of it"
        return Check("warn", NAME, found, todo)
    return Check("ok", NAME, FINE)


def _advice(settings: Path) -> str:
    """Return which setting to change; a container has none of its own."""
    for name, wanted in SWITCHES.items():
        try:
            is_off = (settings / name).read_text().strip() != wanted
        except OSError:
            continue
        if is_off:
            return f"sudo sysctl -w {name.replace('/', '.')}={wanted}"
    return "permit user namespaces: user.max_user_namespaces, and the seccomp profile in containers"
