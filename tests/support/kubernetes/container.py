"""One container as a process of the double: `python -I -S container.py JSON`.

JSON is an object with the members of `Plan` in runtime.py. The process enters the network namespace
of the Pod, makes namespaces of mounts, processes, names and IPC, gives the command a root of its
own, and runs it as process 1 (below one that reaps, if the Pod shares its processes) with the user
and without capabilities. It writes one line to standard
output, `{"pid": N}` or `{"error": TEXT}`, and ends with the command's exit code, 128 + N for a
signal. The command ends with this process, and that with its parent.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

# From the kernel's headers sched.h, mount.h and prctl.h.
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT = 1, 2, 4, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38
CAPABILITIES_MAX = 64
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
START_FAILED = 128
"""Exit code of a container whose command cannot be started; as of runc."""

libc = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    """Run the container; return its exit code."""
    plan: dict[str, Any] = json.loads(sys.argv[1])
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for group in plan["groups"]:
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
    network = os.open(f"/proc/{plan['network']}/ns/net", os.O_RDONLY)
    _check(libc.setns(network, CLONE_NEWNET), "setns")
    os.close(network)
    _check(libc.unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS), "unshare")
    _mount("none", "/", flags=MS_REC | MS_PRIVATE)
    name = plan["hostname"].encode()
    libc.sethostname(name, len(name))
    make_root(plan)
    first = _pause() if plan["is_shared"] else 0
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        run(plan, writer)
    os.close(writer)
    with os.fdopen(reader) as why:
        error = why.read()
    said = {"error": error} if error else {"pid": pid}
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    _, status = os.waitpid(pid, 0)
    if first:
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
    return START_FAILED if error else _code(status)


def _pause() -> int:
    """Start process 1 of the namespace, which does nothing but reap; return its pid."""
    pid = os.fork()
    if pid == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        for stream in (0, 1, 2):
            os.close(stream)
        while True:
            signal.pause()
    return pid


def make_root(plan: dict[str, Any]) -> None:
    """Mount what the command sees: the image, some devices, and the volumes over them."""
    root = plan["root"]
    _mount("tmpfs", root, kind="tmpfs", options="mode=755")
    for folder in ("proc", "dev/shm", "tmp", "run", "var/tmp", "root"):
        Path(root, folder).mkdir(parents=True, exist_ok=True)
    for folder in ("tmp", "var/tmp"):
        Path(root, folder).chmod(0o1777)
    for device in DEVICES:
        Path(root, "dev", device).touch()
        _mount(f"/dev/{device}", f"{root}/dev/{device}", flags=MS_BIND)
    _mount("tmpfs", f"{root}/dev/shm", kind="tmpfs", options="size=64m")
    for link, target in plan["links"].items():
        Path(root + link).symlink_to(target)
    for source, target, is_read_only in plan["mounts"]:
        _bind(source, root + target, is_read_only=is_read_only)


def _bind(source: str, target: str, *, is_read_only: bool) -> None:
    where = Path(target)
    if Path(source).is_dir():
        where.mkdir(parents=True, exist_ok=True)
    else:
        where.parent.mkdir(parents=True, exist_ok=True)
        where.touch()
    _mount(source, target, flags=MS_BIND | MS_REC)
    if is_read_only:
        _mount(source, target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID)


def run(plan: dict[str, Any], failed: int) -> None:
    """Become the command; does not return. What fails is written to `failed`."""
    try:
        root = plan["root"]
        _mount("proc", f"{root}/proc", kind="proc")
        if plan["is_read_only"]:
            _mount("none", root, flags=MS_REMOUNT | MS_BIND | MS_RDONLY)
        log = os.open(plan["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chroot(root)
        os.chdir(plan["folder"] or "/")
        for capability in range(CAPABILITIES_MAX):
            libc.prctl(PR_CAPBSET_DROP, capability)
        os.setgroups(plan["extra_groups"])
        os.setgid(plan["group"])
        os.setuid(plan["user"])
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.environ["PATH"] = plan["environment"].get("PATH", os.defpath)
        os.execvpe(plan["command"][0], plan["command"], plan["environment"])
    except BaseException as error:  # noqa: BLE001 - it is a fork; its parent says what failed
        os.write(failed, _failed(plan, error).encode())
    os._exit(START_FAILED)


def _failed(plan: dict[str, Any], error: BaseException) -> str:
    if isinstance(error, FileNotFoundError):
        word = plan["command"][0]
        where = "executable file not found in $PATH"
        if "/" in word:
            where = f"stat {word}: no such file or directory"
        return f'exec: "{word}": {where}'
    return f"{type(error).__name__}: {error}"


def _code(status: int) -> int:
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status)
    return os.WEXITSTATUS(status)


def _mount(source: str, target: str, *, kind: str = "", flags: int = 0, options: str = "") -> None:
    words = (source.encode(), target.encode(), kind.encode() or None)
    _check(libc.mount(*words, flags, options.encode() or None), f"mount {source} at {target}")


def _check(result: int, what: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    sys.exit(main())
