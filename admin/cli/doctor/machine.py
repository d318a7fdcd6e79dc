"""The result of a check, and the checks of this machine, the running server and its replicas."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from admin.cli.options import TOKEN_FILE
from admin.text import size

if TYPE_CHECKING:
    from admin.client.client import Client

GIB: Final = 1024**3
DISK_LOW: Final = 5 * GIB
DISK_FULL: Final = GIB // 2
OLDEST: Final = (3, 11)
ENGINE_S: Final = 60.0
SOCKET_TAIL: Final = len("/00000000/data.sock")
SOCKET_PATH_MAX: Final = 107
"""Bytes of a Unix socket's path (unix(7))."""
PRIVATE: Final = 0o077
"""The permission bits of others, of which a token has none."""
ENGINE: Final = """\
import os, json
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import onnxruntime
print(json.dumps([onnxruntime.__version__, *onnxruntime.get_available_providers()]))
"""
FILTER_CHECK: Final = "replica filter"
FILTERED: Final = "2"
"""SECCOMP_MODE_FILTER, as proc_pid_status(5) shows it."""
PROGRAM: Final = b"runtime_image"

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check, and the remedy ("" for none)."""

    level: Level
    name: str
    found: str
    todo: str = ""


def render(checks: Sequence[Check]) -> str:
    """One line per check, with the remedy below it."""
    width = max((len(check.name) for check in checks), default=0)
    lines = []
    for check in checks:
        lines.append(f"{check.level:<4}  {check.name.ljust(width)}  {check.found}")
        if check.todo:
            lines.append(f"{'':<4}  {'':<{width}}  -> {check.todo}")
    return "\n".join(lines)


def to_json(checks: Sequence[Check]) -> list[dict[str, str]]:
    """The checks as plain JSON data."""
    return [asdict(check) for check in checks]


def softened(checks: Sequence[Check]) -> list[Check]:
    """The checks with failures made warnings, for parts that nothing here depends on."""
    return [replace(each, level="warn") if each.level == "fail" else each for each in checks]


def python(version: tuple[int, int] = sys.version_info[:2]) -> Check:
    """The interpreter is new enough."""
    found = ".".join(map(str, version))
    if version < OLDEST:
        return Check("fail", "python", f"{found}, expected 3.11 or newer", "install Python 3.11")
    return Check("ok", "python", f"{found} ({sys.executable})")


def folder(data: Path) -> Check:
    """The data folder can be written or made."""
    there = next((each for each in (data, *data.parents) if each.exists()), Path("/"))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        todo = "choose another with --data or FN_DATA, or give this user the right to write there"
        return Check("fail", "data folder", f"{there} cannot be written", todo)
    made = "" if there == data else "; the first fnctl serve makes it"
    return Check("ok", "data folder", f"{data} can be written{made}")


def disk(data: Path, free: int | None = None) -> Check:
    """There is room for models. `free` is in bytes, None to measure."""
    there = next((each for each in (data, *data.parents) if each.is_dir()), Path("/"))
    try:
        left = shutil.disk_usage(there).free if free is None else free
    except OSError as error:
        return Check("fail", "disk", f"{there}: {error.strerror}")
    todo = "free some, or choose another folder with --data"
    if left < DISK_FULL:
        return Check("fail", "disk", f"{size(left)} left", todo)
    return Check(
        "warn" if left < DISK_LOW else "ok", "disk", f"{size(left)} left", todo * (left < DISK_LOW)
    )


def token(data: Path) -> Check:
    """The admin token exists and only its owner can read it."""
    path = data / TOKEN_FILE
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        with path.open("rb") as file:
            is_empty = not file.read(1)
    except FileNotFoundError:
        return Check("warn", "admin token", f"{path} is not there", "fnctl serve makes it")
    except OSError as error:
        return Check("fail", "admin token", f"{path}: {error.strerror}", "use a key: --key, FN_KEY")
    if is_empty:
        return Check("fail", "admin token", f"{path} is empty", "remove it and restart the server")
    if mode & PRIVATE:
        found = f"{path} has mode {mode:04o}, expected 0600: others can read it"
        return Check("fail", "admin token", found, f"chmod 600 {path}")
    return Check("ok", "admin token", f"{path} can be read by you alone")


def sockets(run: Path) -> Check:
    """A replica's socket in the folder `run` has a path that the kernel takes."""
    length = len(os.fsencode(run)) + SOCKET_TAIL
    if length > SOCKET_PATH_MAX:
        found = f"{length} bytes in {run}, expected at most {SOCKET_PATH_MAX}"
        return Check("fail", "socket path", found, "choose a shorter --data or TMPDIR")
    return Check("ok", "socket path", f"{length} of {SOCKET_PATH_MAX} bytes")


def engine(interpreter: str = sys.executable) -> Check:
    """ONNX Runtime can be imported, in a process of its own as replicas do."""
    todo = f"{interpreter} -m pip install onnxruntime"
    try:
        done = subprocess.run(
            [interpreter, "-c", ENGINE],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=ENGINE_S,
            check=False,
        )
        version, *providers = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError) as error:
        return Check("fail", "onnxruntime", str(error), todo)
    except ValueError:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return Check("fail", "onnxruntime", lines[-1] if lines else "no answer", todo)
    return Check("ok", "onnxruntime", f"{version}: {', '.join(providers)}")


def server(client: Client) -> Check:
    """The server is reachable and ready."""
    from admin.client.client import ApiError, Unreachable

    try:
        answer = client.ready()
    except Unreachable as error:
        return Check("fail", "server", str(error), "start it: fnctl serve; or name it with --url")
    except ApiError as error:
        return Check("fail", "server", str(error), "see the server's log")
    reasons = answer.get("reasons") or []
    if answer.get("status") != "ok" or reasons:
        shown = "; ".join(map(str, reasons)) or "no reason given"
        return Check("warn", "server", f"{client.url} is degraded: {shown}")
    return Check("ok", "server", f"{client.url} takes calls")


def access(client: Client) -> Check:
    """The key or token opens the admin API."""
    from admin.client.client import ApiError, Unreachable

    try:
        count = len(client.functions())
    except Unreachable:
        return Check("warn", "access", "not tried: the server gives no answer")
    except ApiError as error:
        todo = "give --key or FN_KEY, or the server's own folder with --data or FN_DATA"
        return Check("fail", "access", str(error), todo)
    return Check("ok", "access", f"functions can be listed ({count})")


def replica_pids(run: Path) -> list[int]:
    """The process ids of this machine's replicas of the server with the run folder `run`."""
    from pool_manager.drivers import process_groups
    from pool_manager.drivers.process import MODULE

    try:
        found = process_groups.find(run, MODULE)
    except OSError:
        return []
    for group in found.values():
        group.close()
    return [group.pid for group in found.values()]


def system_calls(pids: Collection[int], proc: Path = Path("/proc")) -> list[Check]:
    """Every replica among these processes has its filter of system calls; no check without one.

    Other processes of a container, like its init, are ignored.
    """
    found = {pid: status for pid in pids if (status := _status(proc / str(pid)))}
    if not found:
        return []
    modes = {pid: status.get("Seccomp", "unknown") for pid, status in found.items()}
    for pid, mode in modes.items():
        if mode != FILTERED:
            text = f"process {pid} has Seccomp: {mode}, expected {FILTERED}"
            return [
                Check("fail", FILTER_CHECK, text, "build its image again: fnctl image build cpu")
            ]
    count = len(found)
    return [
        Check(
            "ok", FILTER_CHECK, f"Seccomp: {FILTERED} in {count} running replica{'s' * (count > 1)}"
        )
    ]


def _status(process: Path) -> dict[str, str]:
    """/proc/PID/status of a replica; empty for any other process."""
    try:
        if PROGRAM not in (process / "cmdline").read_bytes().split(b"\0"):
            return {}
        lines = (process / "status").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
