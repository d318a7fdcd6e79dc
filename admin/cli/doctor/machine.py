"""Checks of this machine: what a server with processes for replicas needs."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Final

from admin.cli.doctor.check import Check
from admin.cli.session import TOKEN_FILE
from admin.cli.text import size

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


def python(version: tuple[int, int] = sys.version_info[:2]) -> Check:
    """The interpreter is new enough."""
    found = ".".join(map(str, version))
    if version < OLDEST:
        return Check("fail", "python", f"{found}, expected 3.11 or newer", "install Python 3.11")
    return Check("ok", "python", f"{found} ({sys.executable})")


def folder(data: Path) -> Check:
    """The data folder can be written, or made."""
    there = next((each for each in (data, *data.parents) if each.exists()), Path("/"))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        todo = "choose another with --data or FN_DATA, or give this user the right to write there"
        return Check("fail", "data folder", f"{there} cannot be written", todo)
    made = "" if there == data else "; the first fnctl serve makes it"
    return Check("ok", "data folder", f"{data} can be written{made}")


def disk(data: Path, free: int | None = None) -> Check:
    """There is room for models. `free` are the bytes left, None to look."""
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
    """The admin token is there, readable, and nobody else's."""
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
