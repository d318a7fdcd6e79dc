"""Checks of this machine, the running server and its replicas."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from admin.cli.options import TOKEN_FILE
from admin.client import routes
from admin.client.transport import ApiError, Unreachable
from admin.text import command, size
from hosts.checks import Check, Level
from registry.model.hosts import LOCAL_HOST

if TYPE_CHECKING:
    from admin.client.client import Client

GIB: Final = 1024**3
DISK_LOW: Final = 5 * GIB
DISK_FULL: Final = GIB // 2
OLDEST: Final = (3, 11)
ENGINE_S: Final = 60.0
SOCKET_TAIL: Final = len("/00000000/data.sock")
SERVER_TAIL: Final = len("/00000000/server/socket/http.sock")
"""Of Python functions, and of servers that listen on ${SOCKET}."""
SOCKET_PATH_MAX: Final = 107
"""Max bytes of a Unix socket's path (unix(7))."""
PRIVATE: Final = 0o077
"""Permission bits of group and others, none of which a token may have."""
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


def render(checks: Sequence[Check]) -> str:
    """Render one line per check, with the remedy below it."""
    width = max((len(check.name) for check in checks), default=0)
    lines = []
    for check in checks:
        lines.append(f"{check.level:<4}  {check.name.ljust(width)}  {check.found}")
        if check.todo:
            lines.append(f"{'':<4}  {'':<{width}}  -> {check.todo}")
    return "\n".join(lines)


def to_json(checks: Sequence[Check]) -> list[dict[str, str]]:
    """Return the checks as plain JSON data."""
    return [msgspec.structs.asdict(check) for check in checks]


def softened(checks: Sequence[Check]) -> list[Check]:
    """Return the checks with failures as warnings, for parts that nothing here depends on."""
    return [
        msgspec.structs.replace(each, level="warn") if each.level == "fail" else each
        for each in checks
    ]


def python(version: tuple[int, int] = sys.version_info[:2]) -> Check:
    """Check that the interpreter is new enough."""
    found = ".".join(map(str, version))
    if version < OLDEST:
        return Check("fail", "python", f"{found}, expected 3.11 or newer", "install Python 3.11")
    return Check("ok", "python", f"{found} ({sys.executable})")


def folder(data: Path) -> Check:
    """Check that the data folder can be written or created."""
    there = next((each for each in (data, *data.parents) if each.exists()), Path("/"))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        todo = "choose another with --data or FN_DATA, or make it writable for this user"
        return Check("fail", "data folder", f"{there} is not writable", todo)
    made = "" if there == data else "; the first fnctl serve creates it"
    return Check("ok", "data folder", f"{data} is writable{made}")


def disk(data: Path, free: int | None = None) -> Check:
    """Check the space for models. `free` is in bytes, None to measure."""
    there = next((each for each in (data, *data.parents) if each.is_dir()), Path("/"))
    try:
        left = shutil.disk_usage(there).free if free is None else free
    except OSError as error:
        return Check("fail", "disk", f"{there}: {error.strerror}")
    todo = "free some space, or choose another folder with --data"
    if left < DISK_FULL:
        return Check("fail", "disk", f"{size(left)} free", todo)
    return Check(
        "warn" if left < DISK_LOW else "ok", "disk", f"{size(left)} free", todo * (left < DISK_LOW)
    )


def token(data: Path) -> Check:
    """Check that the admin token exists and that only its owner can read it."""
    path = data / TOKEN_FILE
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        with path.open("rb") as file:
            is_empty = not file.read(1)
    except FileNotFoundError:
        return Check("warn", "admin token", f"{path} does not exist", "fnctl serve creates it")
    except OSError as error:
        return Check("fail", "admin token", f"{path}: {error.strerror}", "use a key: --key, FN_KEY")
    if is_empty:
        return Check("fail", "admin token", f"{path} is empty", "remove it and restart the server")
    if mode & PRIVATE:
        found = f"{path} has mode {mode:04o}, expected 0600: others can read it"
        return Check("fail", "admin token", found, command("chmod", "600", str(path)))
    return Check("ok", "admin token", f"{path} is readable only by you")


def secret_key(path: Path) -> list[Check]:
    """Check that only its owner can read the key of the secrets; no check if there is none."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return []
    except OSError as error:
        return [Check("fail", "secrets' key", f"{path}: {error.strerror}")]
    if mode & PRIVATE:
        found = f"{path} has mode {mode:04o}, expected 0600: others can read it"
        return [Check("warn", "secrets' key", found, command("chmod", "600", str(path)))]
    return [Check("ok", "secrets' key", f"{path} is readable only by you")]


def sockets(run: Path) -> Check:
    """Check that the paths of replicas' sockets in the folder `run` fit the kernel's limit."""
    length = len(os.fsencode(run)) + SOCKET_TAIL
    if length > SOCKET_PATH_MAX:
        found = f"{length} bytes in {run}, expected at most {SOCKET_PATH_MAX}"
        return Check("fail", "socket path", found, "choose a shorter --data or TMPDIR")
    longest = length - SOCKET_TAIL + SERVER_TAIL
    if longest > SOCKET_PATH_MAX:
        found = f"{longest} bytes in {run} for Python functions and servers on ${{SOCKET}}"
        found = f"{found}, which cannot listen: expected at most {SOCKET_PATH_MAX}"
        return Check("warn", "socket path", found, "choose a shorter --data")
    return Check("ok", "socket path", f"{length} of {SOCKET_PATH_MAX} bytes")


def engine(interpreter: str = sys.executable) -> Check:
    """Check that ONNX Runtime can be imported, in a separate process as in replicas."""
    todo = "make install ENGINE=cpu, or ENGINE=gpu for NVIDIA GPUs"
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
    """Check that the server is reachable and ready."""
    try:
        answer = client.ready()
    except Unreachable as error:
        return Check("fail", "server", str(error), "start it: fnctl serve; or set --url")
    except ApiError as error:
        return Check("fail", "server", str(error), "see the server's log")
    reasons = answer.get("reasons")
    if answer.get("status") != "ok" or reasons:
        given = reasons if isinstance(reasons, list) else []
        shown = "; ".join(map(str, given)) or "no reason given"
        return Check("warn", "server", f"{client.url} is degraded: {shown}")
    return Check("ok", "server", f"{client.url} accepts calls")


def access(client: Client) -> Check:
    """Check that the key or token grants access to the admin API."""
    try:
        count = len(client.items(routes.FUNCTIONS).value)
    except Unreachable:
        return Check("warn", "access", "not tried: the server does not answer")
    except ApiError as error:
        todo = "give --key or FN_KEY, or the server's data folder with --data or FN_DATA"
        return Check("fail", "access", str(error), todo)
    return Check("ok", "access", f"functions can be listed ({count})")


def openness(client: Client) -> list[Check]:
    """Tell who may call without a key; nothing to who may not know it."""
    from admin.cli.openness import openness_line

    try:
        found = client.call(routes.ACCESS).value
    except (ApiError, Unreachable):  # as the check before says
        return []
    level: Level = "warn" if found.openness == "open" else "ok"
    return [Check(level, "without a key", openness_line(found))]


def devices(client: Client) -> list[Check]:
    """Tell which devices the server has; nothing to who may not know them."""
    try:
        kinds = Counter(one.kind for one in client.items(routes.DEVICES).value)
    except (ApiError, Unreachable):  # as the check of access says
        return []
    counts = [f"{count} {kind}" for kind, count in sorted(kinds.items())]
    if "cuda" not in kinds:
        counts.append("no GPU: fnctl doctor on the server's machine says why")
    return [Check("ok", "devices", ", ".join(counts))]


def reserved_users(client: Client) -> list[Check]:
    """Tell which functions may share a user id with the server or its replicas; nothing without
    any, and nothing to who may not list functions."""
    from admin.cli.function_table import reserved_users as lines

    try:
        found = lines(client.items(routes.FUNCTIONS).value)
    except (ApiError, Unreachable):  # as the check of access says
        return []
    if not found:
        return []
    todo = 'set user = "UID:GID" in their [server], and deploy them again'
    return [Check("warn", "user ids", "; ".join(found), todo)]


def host(client: Client, name: str) -> list[Check]:
    """Return the checks of one of the server's hosts: its present state and that of its agent, then
    the results of a new login, or of requests to its cluster."""
    if name == LOCAL_HOST:
        text = f"{name} is the machine that the server runs on"
        return [Check("fail", "host", text, "run there, without --host: fnctl doctor")]
    # Imported here, as other checks decode nothing.
    from admin.documents.hosts import SshHostSettings

    try:
        known = client.call(routes.HOST, name).value
        found = client.items(routes.CHECK_HOST, name).value
    except Unreachable as error:
        return [Check("fail", "server", str(error), "start it: fnctl serve; or set --url")]
    except ApiError as error:
        return [Check("fail", "host", str(error), *getattr(error, "__notes__", ())[:1])]
    is_up, agent = known.state == "up", known.agent
    text = f"{name} is {known.state}" + (f": {known.reason}" if known.reason else "")
    checks = [Check("ok" if is_up and not known.reason else "warn", "host", text)]
    if is_up and isinstance(known.settings, SshHostSettings):  # nodes of a cluster have none
        checks.append(Check("warn" if agent else "ok", "agent", agent or "reports GPUs and disk"))
    return [*checks, *found]


def replica_pids(run: Path) -> list[int]:
    """Return the process ids of this machine's replicas of the server with the run folder `run`."""
    from pool_manager.drivers import process_groups
    from pool_manager.drivers.process import MODULE

    try:
        found = process_groups.find(run, MODULE)
    except OSError:
        return []
    for group in found.values():
        group.close()
    return [group.pid for group in found.values()]


def grpc() -> list[Check]:
    """Check that the packages of the extra for gRPC fit each other, if they are installed."""
    from admin.extras import grpc_refusal, has_grpc

    if not has_grpc():
        return []
    refusal, _, todo = grpc_refusal().partition(": ")
    return [Check("warn" if refusal else "ok", "gRPC", refusal or "its packages fit", todo)]


def system_calls(pids: Collection[int], proc: Path = Path("/proc")) -> list[Check]:
    """Check that every replica among these processes has its system call filter; no check if there
    is no replica.

    Other processes of a container, like its init, are ignored.
    """
    found = {pid: status for pid in pids if (status := _status(proc / str(pid)))}
    if not found:
        return []
    modes = {pid: status.get("Seccomp", "unknown") for pid, status in found.items()}
    for pid, mode in modes.items():
        if mode != FILTERED:
            text = f"process {pid} has Seccomp: {mode}, expected {FILTERED}"
            return [Check("fail", FILTER_CHECK, text, "rebuild its image: fnctl image build cpu")]
    count = len(found)
    return [
        Check(
            "ok", FILTER_CHECK, f"Seccomp: {FILTERED} in {count} running replica{'s' * (count > 1)}"
        )
    ]


def _status(process: Path) -> dict[str, str]:
    """Parse /proc/PID/status of a replica; empty for any other process."""
    try:
        if PROGRAM not in (process / "cmdline").read_bytes().split(b"\0"):
            return {}
        lines = (process / "status").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
