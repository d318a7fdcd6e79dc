"""Configuration of the two containers of a server function's replica, as the engine's JSON. No I/O.

The *sidecar's* container has the network, the run folder and our runtime image. The *server's* has
the function's image; it joins the sidecar's network and sees no file of the sidecar.
"""

from __future__ import annotations

import math
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from pool_manager.drivers.docker import spec
from pool_manager.drivers.docker.spec import MIB, PART, REPLICA, SERVER, SIDECAR, MountPaths, Owner
from pool_manager.drivers.environment import NO_DEVICE, filler, server_variables, sidecar_cap_mib
from pool_manager.ports import ServerContainer
from registry.errors import DriverError
from registry.model.servers import Mount
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.server import BUNDLE_FOLDER

BRIDGE: Final = "bridge"
"""The engine's network of servers that may reach others."""
SIDECAR_PIDS_MAX: Final = 64
SERVER_PIDS_MAX: Final = 4096
VOLUME_MIB: Final = 256
"""Size of a VOLUME of the image that the function does not name in `writable`."""
VOLUMES_MAX: Final = 64
_NO_VOLUMES: Final = ("/proc", "/sys", "/dev")
"""Folders that the engine fills: a VOLUME there would hide what it mounts."""
STOP_S: Final = 10.0
"""Grace of a server whose container does not say it."""

_BUFFERS: Final = {
    "net.ipv4.tcp_rmem": "4096 131072 262144",
    "net.ipv4.tcp_wmem": "4096 65536 262144",
}
"""Sizes of TCP buffers: minimum, initial, maximum bytes. An answer that nobody reads takes kernel
memory, with the usual sizes up to 4 MiB for each connection (tcp(7))."""
_IPV6: Final = "net.ipv6.conf.lo.disable_ipv6"
"""Setting of the loopback interface alone. On the engine's network, which mostly has no IPv6 and no
rules for it, link-local addresses would reach the host and other containers."""
FOREIGN: Final = {spec.HOLDER: "", spec.UID: ""}
"""Labels of other containers of ours, which an image must not set."""


class Ids(NamedTuple):
    """User id and group id."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What an image says about its server: folders that it wants to write to, as `volumes_of`
    returns them, the ids of its user, None if these are unknown, whether it names a working folder,
    and the processors that it is for."""

    volumes: tuple[str, ...] = ()
    user: Ids | None = None
    has_folder: bool = False
    architecture: str = ""


@dataclass(frozen=True, slots=True)
class Abilities:
    """What the engine and the kernel can do. `read_only_below`: a read-only mount can cover what is
    mounted below it, too (API 1.44). `ipv6`: the kernel has IPv6."""

    read_only_below: bool = False
    ipv6: bool = True


@dataclass(frozen=True, slots=True)
class Pair:
    """What both containers of a replica are made from."""

    record: ReplicaRecord
    server: ServerContainer
    owner: Owner
    place: MountPaths


def sidecar(pair: Pair, image: str, uid: int, abilities: Abilities) -> dict[str, Any]:
    """Return the configuration of a sidecar: a replica as any other, with a network that the server
    joins. `uid` is a user id that no other container has."""
    server = pair.server
    config = spec.replica(pair.record, image, pair.owner, pair.place, uid)
    config["Labels"] |= {PART: SIDECAR}
    memory = sidecar_cap_mib(server) * MIB
    config["HostConfig"] |= spec.isolation(pair.owner.server_nofile) | {
        "NetworkMode": BRIDGE if server.network == "egress" else "none",
        "Sysctls": _sysctls(server.port, abilities),
        "PidsLimit": SIDECAR_PIDS_MAX,
        "Memory": memory,
        "MemorySwap": memory,
        "CpuPeriod": spec.CPU_PERIOD_US,
        "CpuQuota": spec.CPU_PERIOD_US,
    }
    return config


def _sysctls(port: int, abilities: Abilities) -> dict[str, str]:
    """Return the settings of the network, which belong to the container that creates it."""
    found = {
        "net.ipv4.ip_unprivileged_port_start": "0",
        # A connection's own port is chosen from the same range as a server's: without this, one to
        # a port without a listener may connect to itself.
        "net.ipv4.ip_local_reserved_ports": str(port),
        **_BUFFERS,
    }
    return {**found, _IPV6: "0"} if abilities.ipv6 else found


def sidecar_name(record: ReplicaRecord, owner: Owner) -> str:
    """Return the container name of a sidecar."""
    return f"fngate-sidecar-{record.id}-{owner.name[:4]}"


def server(pair: Pair, facts: ImageFacts, sidecar_id: str, abilities: Abilities) -> dict[str, Any]:
    """Return the configuration of a server that joins the network of the container
    `sidecar_id`."""
    record, given, owner = pair.record, pair.server, pair.owner
    config: dict[str, Any] = {
        "Image": given.image,
        "Env": _variables(pair),
        "Labels": spec.common_labels(owner)
        | {REPLICA: record.id, PART: SERVER, spec.FUNCTION: record.bound}
        | FOREIGN,
        "Healthcheck": spec.NO_HEALTHCHECK,
        "StopTimeout": math.ceil(given.stop_grace_s),
        "HostConfig": spec.isolation(owner.server_nofile)
        | {
            "NetworkMode": f"container:{sidecar_id}",
            "CapAdd": list(given.capabilities),
            "PidsLimit": SERVER_PIDS_MAX,
            "ShmSize": given.shm_mib * MIB,
            "Tmpfs": _folders(given, facts),
            "Mounts": [_mount(one, abilities) for one in _mounts(pair)],
            "OomScoreAdj": spec.OOM_SCORE,
            # An init process reaps orphans. Without it, a server that has no handler of its own
            # would ignore the stop signal as the container's pid 1.
            "Init": True,
            "LogConfig": spec.log_files(pair.place.log_bytes),
        }
        | spec.limits(record),
    }
    if given.arguments:
        config["Cmd"] = list(map(filler(record, given), given.arguments))
    if given.user:
        config["User"] = given.user
    if given.has_files and not facts.has_folder:
        config["WorkingDir"] = BUNDLE_FOLDER
    if given.stop_signal:
        config["StopSignal"] = given.stop_signal
    return config


def _variables(pair: Pair) -> list[str]:
    """Return the environment that the server has beside the image's own."""
    visible = ",".join(spec.gpus_of(pair.record)) or NO_DEVICE
    found = server_variables(pair.record, pair.server, pair.server.secrets, visible)
    return [f"{name}={value}" for name, value in found.items()]


def _folders(given: ServerContainer, facts: ImageFacts) -> dict[str, str]:
    """Return the folders that the server may write to, with the options of their tmpfs.

    Without a tmpfs, a VOLUME would be an unlimited folder on the host's disk. A mount takes
    precedence over all of them, and `writable` sets the size of a VOLUME.
    """
    sizes = dict.fromkeys(map(_plain, facts.volumes), VOLUME_MIB)
    sizes |= {_plain(folder): mib for folder, mib in given.writable.items()}
    # mode= counts only for a folder that the image does not have; uid= and gid= always do.
    owned = f"mode=0755,uid={facts.user.uid},gid={facts.user.gid}" if facts.user else "mode=1777"
    found = {folder: f"size={mib}m,{owned},{_FLAGS}" for folder, mib in sizes.items()}
    size = f"{sizes['/tmp']}m" if "/tmp" in sizes else spec.TMP_SIZE  # noqa: S108 - its own /tmp
    found["/tmp"] = f"size={size},mode=1777,{_FLAGS}"  # noqa: S108 - see above
    for target in (*(one.target for one in given.mounts), *[BUNDLE_FOLDER] * given.has_files):
        found.pop(_plain(target), None)
    return found


_FLAGS: Final = "nosuid,nodev,exec"
"""exec: compilers of models write libraries that they then load."""


def volumes_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the VOLUMEs of an image's Config as the engine resolves them. Raises DriverError if
    there are too many, or one cannot be a folder of its own.

    The engine compares paths after it has resolved "..", "." and "//": a tmpfs under any other
    spelling would leave the VOLUME what it is, an unlimited folder on the host's disk.
    """
    names = config.get("Volumes") or {}
    if len(names) > VOLUMES_MAX:
        raise DriverError(f"the image has {len(names)} VOLUMEs, expected at most {VOLUMES_MAX}")
    return tuple(sorted({_resolved(name) for name in names}))


def _resolved(volume: str) -> str:
    folder = posixpath.normpath(f"/{volume.lstrip('/')}")
    is_taken = any(f"{folder}/".startswith(f"{one}/") for one in _NO_VOLUMES)
    if not volume.startswith("/") or folder == "/" or is_taken:
        raise DriverError(
            f"the image has the VOLUME {volume[:100]!r}, expected an absolute path, not / and not"
            " below /proc, /sys or /dev"
        )
    return folder


def _plain(folder: str) -> str:
    return folder.rstrip("/") or "/"


def _mounts(pair: Pair) -> tuple[Mount, ...]:
    """Return the folders of the host that the server sees: those that the function names, and its
    own files."""
    given, files = pair.server, Mount("", str(pair.place.model_dir), BUNDLE_FOLDER)
    return (*given.mounts, files) if given.has_files else given.mounts


def _mount(mount: Mount, abilities: Abilities) -> dict[str, Any]:
    """Return a folder of the host. What is mounted below a read-only one would stay writable: it is
    left out, unless the engine can make it read-only, too."""
    found: dict[str, Any] = {
        "Type": "bind",
        "Source": mount.source,
        "Target": mount.target,
        "ReadOnly": mount.is_read_only,
    }
    options: dict[str, Any] = {"Propagation": "rprivate"}
    if mount.is_read_only and abilities.read_only_below:
        options["ReadOnlyForceRecursive"] = True
    elif mount.is_read_only:
        options["NonRecursive"] = True
    return {**found, "BindOptions": options}


_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
"""Names of uname(2) and of images."""


def foreign(architecture: str, machine: str) -> str:
    """Return a sentence if an image is for other processors than those of a `machine` (uname(2)),
    "" otherwise. A kernel may emulate them, so that this is no error."""
    own = _ARCHITECTURES.get(machine, "")
    if not own or not architecture or architecture == own:
        return ""
    return f"the image is for {architecture}, this machine is {own}"


def below(mounts: Iterable[Mount], mountinfo: str) -> Iterator[str]:
    """Yield file systems that are mounted below read-only mounts, as found in `mountinfo`
    (proc_pid_mountinfo(5)); a server would see empty folders in their place."""
    points = [Path(_unescaped(line.split()[4])) for line in mountinfo.splitlines() if line.strip()]
    sources = [Path(one.source) for one in mounts if one.is_read_only]
    for point in points:
        if any(source in point.parents for source in sources):
            yield str(point)


def _unescaped(text: str) -> str:
    """Return a path of mountinfo, in which space, tab, newline and backslash are octal escapes."""
    for escape, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(escape, char)
    return text


def facts_of(image: Mapping[str, Any]) -> tuple[ImageFacts, str]:
    """Return the facts of an inspected image, without the ids of its user, and how it names the
    user. Raises DriverError like `volumes_of`."""
    config = image.get("Config") or {}
    facts = ImageFacts(
        volumes=volumes_of(config),
        # Builders write "/" for an image that names none.
        has_folder=config.get("WorkingDir") not in (None, "", "/"),
        architecture=str(image.get("Architecture") or ""),
    )
    return facts, str(config.get("User") or "")


def numeric_ids(user: str) -> Ids | None:
    """Return the ids of a container's user, as "UID:GID", "root" or "" (root); None if the image's
    passwd(5) and group(5) have to be asked."""
    if user in ("", "0", "root", "root:root"):
        return Ids(0, 0)
    uid, found, gid = user.partition(":")
    return Ids(int(uid), int(gid)) if found and _is_id(uid) and _is_id(gid) else None


def ids_of(user: str, passwd: str, group: str) -> Ids | None:
    """Return the ids of a container's user by name or number, optionally with a group. `passwd` and
    `group` are the image's files. As the engine does it: a lone user id without an entry has the
    group 0."""
    name, has_group, group_name = user.partition(":")
    row = next((row for row in _rows(passwd, 4) if name in (row[0], row[2])), None)
    if row is None and not _is_id(name):
        return None
    uid, gid = (int(row[2]), int(row[3])) if row else (int(name), 0)
    if not has_group:
        return Ids(uid, gid)
    if _is_id(group_name):
        return Ids(uid, int(group_name))
    other = next((row for row in _rows(group, 3) if row[0] == group_name), None)
    return Ids(uid, int(other[2])) if other else None


def _rows(text: str, fields: int) -> Iterator[list[str]]:
    """Yield the rows of passwd(5) or group(5) whose ids are numbers."""
    for line in text.splitlines():
        row = line.split(":")
        if len(row) >= fields and all(map(_is_id, row[2:fields])):
            yield row


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 10


def stop_of(config: Mapping[str, Any]) -> tuple[str, float]:
    """Return signal and grace in seconds with which a server stops, from an inspected container's
    Config."""
    grace_s = config.get("StopTimeout")
    return str(config.get("StopSignal") or "SIGTERM"), STOP_S if grace_s is None else float(grace_s)
