"""The view of the files of a server: a mount namespace in which sockets of the host are hidden.

A process that may connect to a socket below /run may command Docker, D-Bus or systemd, and no
network namespace separates sockets of the file system. So a server sees an empty /run, but for the
files that programs need. Sources: mount_namespaces(7), unix(7), hier(7).
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from runtime_image.server import libc

HIDDEN: Final = (Path("/run"), Path("/var/run"))
"""Folders with the sockets of services and sessions."""
DRIVERS: Final = tuple(
    Path("/run", name)
    for name in ("nvidia", "nvidia-persistenced", "nvidia-fabricmanager", "opengl-driver")
)
"""What GPU libraries look for below /run."""
RESOLVER: Final = Path("/etc/resolv.conf")
"""Often a link to a file below /run."""
MPS: Final = "CUDA_MPS_PIPE_DIRECTORY"
_PROGRAMS: Final = ("bin", "sbin")
_EMPTY: Final = "mode=755,size=1m,nr_inodes=1k"
_KEPT_FLAGS: Final = (
    (os.ST_NOSUID, libc.MS_NOSUID),
    (os.ST_NODEV, libc.MS_NODEV),
    (os.ST_NOEXEC, libc.MS_NOEXEC),
    (os.ST_NOATIME, libc.MS_NOATIME),
    (os.ST_NODIRATIME, libc.MS_NODIRATIME),
    (os.ST_RELATIME, libc.MS_RELATIME),
)
"""Flags that a user namespace may not remove from a mount."""
_SYS_MODULE, _SYS_PTRACE, _SYS_ADMIN, _MKNOD = 16, 19, 21, 27
_NET_ADMIN, _NET_RAW = 12, 13
_DROPPED: Final = (_SYS_MODULE, _SYS_PTRACE, _SYS_ADMIN, _MKNOD)
"""Capabilities with which a server that runs as root could undo its mounts, look through the /proc
of other processes and read its sidecar's memory."""


def own_mounts() -> None:
    """Enter a mount namespace from which no mount spreads. Raises OSError."""
    libc.unshare(libc.CLONE_NEWNS)
    libc.mount("none", "/", flags=libc.MS_REC | libc.MS_PRIVATE)


def mount_proc() -> None:
    """Show the processes of this PID namespace in /proc, and no others.

    Raises OSError: the kernel refuses it where parts of /proc are hidden, as in many containers.
    """
    libc.mount("proc", "/proc", "proc", libc.MS_NOSUID | libc.MS_NODEV | libc.MS_NOEXEC)


def needed(
    arguments: Sequence[str], environment: Mapping[str, str], *, has_network: bool
) -> list[Path]:
    """Return what a program needs below HIDDEN, if it is there: its own files and those of its
    PATH, what GPU libraries look for, and names of the network if it has one."""
    found = [*DRIVERS]
    if environment.get(MPS):
        found.append(Path(environment[MPS]))
    if has_network:
        found.append(RESOLVER)
    for folder in (Path(arguments[0]).parent, *map(Path, environment.get("PATH", "").split(":"))):
        if not folder.is_absolute():
            continue
        # A virtual environment: its programs need what is beside them.
        has_libraries = folder.name in _PROGRAMS and (folder.parent / "lib").is_dir()
        found.append(folder.parent if has_libraries else folder)
    return found


def limit_view(
    model_dir: Path,
    run_dir: Path,
    kept: Path,
    needs: Iterable[Path],
    *,
    is_alone: bool,
    read_only: Iterable[Path] = (),
) -> None:
    """Give this process, a child of a sidecar, its own view of the files.

    All run folders are hidden, except `kept` below `run_dir`, and so is what is below HIDDEN,
    except `needs` and `read_only`. The latter and `model_dir` get read-only. Drops the capabilities
    to undo that, and with a network namespace (`is_alone`) those over the network.
    """
    own_mounts()
    fixed = [one for one in read_only if one.is_dir()]
    for folder in (*fixed, model_dir):
        libc.mount(str(folder), str(folder), flags=libc.MS_BIND | libc.MS_REC)
        _remount_read_only(folder)
    runs = Path(os.path.realpath(run_dir.parent))
    if runs in hide((*HIDDEN, runs), (kept, model_dir, *fixed, *needs)):
        _remount_read_only(runs)
    for capability in (*_DROPPED, *((_NET_ADMIN, _NET_RAW) if is_alone else ())):
        with contextlib.suppress(OSError):
            libc.prctl(libc.PR_CAPBSET_DROP, capability)


def hide(folders: Sequence[Path], kept: Iterable[Path] = ()) -> list[Path]:
    """Mount an empty folder over each of `folders`, with what is `kept` of them at its former
    place; return what was mounted over. For a process with mounts of its own. Raises OSError."""
    places = {Path(os.path.realpath(one)) for one in folders if one.is_dir()}
    roots = [
        one for one in places if not any(one != two and one.is_relative_to(two) for two in places)
    ]
    opened: dict[Path, int] = {}
    for path in kept:
        for place in _places(path, folders):
            if place not in opened and any(root in place.parents for root in roots):
                with contextlib.suppress(OSError):  # it is not there
                    opened[place] = os.open(path, os.O_PATH)
    for root in roots:
        libc.mount("fngate", str(root), "tmpfs", libc.MS_NOSUID | libc.MS_NODEV, _EMPTY)
    for place, source in sorted(opened.items()):
        _put_back(place, source)
        os.close(source)
    return roots


def _places(path: Path, folders: Iterable[Path]) -> Iterator[Path]:
    """Yield where `path` is found below the real paths of `folders`, also if it is a link."""
    yield Path(os.path.realpath(path))
    for folder in folders:
        if path.is_relative_to(folder):
            yield Path(os.path.realpath(folder), path.relative_to(folder))


def _put_back(place: Path, source: int) -> None:
    if os.path.lexists(place):
        return  # with a folder that it is in
    if stat.S_ISDIR(os.fstat(source).st_mode):
        place.mkdir(mode=0o755, parents=True)
    else:
        place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        place.touch()
    libc.mount(f"/proc/self/fd/{source}", str(place), flags=libc.MS_BIND | libc.MS_REC)


def _remount_read_only(folder: Path) -> None:
    has = os.statvfs(folder).f_flag
    kept = sum(flag for shown, flag in _KEPT_FLAGS if has & shown)
    flags = libc.MS_REMOUNT | libc.MS_BIND | libc.MS_RDONLY
    libc.mount("none", str(folder), flags=flags | kept)
