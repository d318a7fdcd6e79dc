"""Configuration of containers as the engine's JSON; the ways to request a GPU. No I/O.

This module contains everything that isolates a replica from the host and from other replicas.
Source of the fields: the Engine API's reference, container create (ContainerConfig, HostConfig).
"""

from __future__ import annotations

import hashlib
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pool_manager.drivers.environment import (
    MODEL_TARGET,
    RUN_TARGET,
    gpu_count,
    memory_cap_mib,
    replica_variables,
)
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.link import VERSION

OWNER: Final = "fngate.owner"
"""Label: the owner of a container, derived from the server's data folder."""
REPLICA: Final = "fngate.replica"
"""Label: the replica's id."""
HOLDER: Final = "fngate.holder"
"""Label: the number of a network holder, which is not a replica."""
PART: Final = "fngate.part"
"""Label of the two containers of a server function's replica: SIDECAR or SERVER."""
SIDECAR: Final = "sidecar"
SERVER: Final = "server"
FUNCTION: Final = "fngate.function"
"""Label: the pool that a replica was started for."""
UID: Final = "fngate.uid"
"""Label: the user id that a replica, or a sidecar, runs as."""
LINK: Final = "fngate.link"
"""Label of images and containers: their link version."""
CONTROL_TARGET: Final = "/run/fngate-control"
"""Folder of the control socket that all replicas of another host share."""
DATA_TARGET: Final = "/run/fngate-data"
"""Folder in which a replica on another host binds its data listener."""
MIB: Final = 2**20
TMP_SIZE: Final = "100%"
"""Size of /tmp relative to the machine's memory, i.e. unlimited: files in /tmp count in the
container's memory cap. A trial writes its prepared model there, whose size is not known before."""
PIDS_MAX: Final = 256
CPU_PERIOD_US: Final = 100_000
OOM_SCORE: Final = 500
"""oom_score_adj (proc(5)): if the host runs out of memory, replicas are killed before the
server."""
NOFILE_MAX: Final = 4096
SERVER_NOFILE_MAX: Final = 65_536
"""Max open files of a sidecar, which holds one for each exchange, and of its server."""
SIGPENDING_MAX: Final = 1024
"""Max pending signals and POSIX timers."""
NO_HEALTHCHECK: Final = {"Test": ["NONE"]}
"""Overrides the image's health check: PINGs and probes check replicas."""
HOLDER_MIB: Final = 16
HOLDER_PIDS_MAX: Final = 8
HOLDER_S: Final = 3600
"""Lifetime of a holder. It ends an unused holder whose server was killed."""
AGENT: Final = "agent"
"""Engine word of the record of a host's agent."""
AGENT_MIB: Final = 512
ALL_GPUS: Final = "all"
"""Device of an agent, which reads all GPUs, as the ways to request one write it."""


CAPABILITIES: Final = ("compute", "utility")
"""Driver capabilities inside a container: CUDA and NVML, no graphics, display or video."""
CDI_KIND: Final = "nvidia.com/gpu"
CONFIGURE: Final = (
    "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
)
GENERATE: Final = "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
"""Commands that register the runtime and the hook (CONFIGURE) and the CDI devices (GENERATE)."""
Way = Callable[[dict[str, Any], Sequence[str]], dict[str, Any]]
"""Adds the GPUs or MIG slices with these UUIDs to a container's configuration; returns a new
one."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The server that containers belong to. `name` is unique per data folder of this host; `nofile`
    is the limit on open files of a container's process, `server_nofile` that of servers and their
    sidecars. Both are lower than this server's: an image may have its user, and for a user the
    kernel counts descriptors in flight up to the limit of the process that sends."""

    name: str
    nofile: int = NOFILE_MAX
    server_nofile: int = SERVER_NOFILE_MAX

    @classmethod
    def of(cls, data: Path) -> Owner:
        """Return the owner for this process, a server with the data folder `data`."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = SERVER_NOFILE_MAX if hard == resource.RLIM_INFINITY else hard // 2
        return cls(owner_name(data), descriptors(soft), min(SERVER_NOFILE_MAX, most))

    @classmethod
    def elsewhere(cls, name: str, nofile: int) -> Owner:
        """Return the owner on another host, whose engine's limit on open files is `nofile` (0:
        none)."""
        most = nofile // 2 or SERVER_NOFILE_MAX
        return cls(name, min(NOFILE_MAX, most), min(SERVER_NOFILE_MAX, most))


@dataclass(frozen=True, slots=True)
class MountPaths:
    """A replica's folders on the engine's machine, and the size limit of its log. `control` and
    `data` are set on other hosts alone: the folder of the control socket, and the one in which the
    replica binds its data listener."""

    run_dir: Path
    model_dir: Path
    log_bytes: int
    control: Path | None = None
    data: Path | None = None

    @classmethod
    def below(cls, base: Path, id: str, log_bytes: int) -> MountPaths:
        """Return the folders of a replica on another host, whose folder of ours is `base`."""
        return cls(
            base / "run" / id, base / "models" / id, log_bytes, base / "control", base / "data" / id
        )


def owner_name(data: Path) -> str:
    """Return the owner's name for a data folder: stable across restarts, different for other
    folders."""
    return hashlib.sha256(bytes(data)).hexdigest()[:16]


def gpus_of(record: ReplicaRecord) -> tuple[str, ...]:
    """Return the UUIDs of a replica's GPUs, as its host's driver names them; none on a CPU slot."""
    if record.device_kind == "cpu":
        return ()
    return tuple(one.removeprefix(f"{record.host}/") for one in record.devices)


def container_name(record: ReplicaRecord, owner: Owner) -> str:
    """Return a replica's container name, with its revision (or "standby") and id, as shown by
    `docker ps`."""
    what = record.bound.rpartition("/")[2].replace("@", "-") or "standby"
    return f"fngate-{what}-{record.id}-{owner.name[:4]}"


def holder_name(number: str, owner: Owner) -> str:
    """Return the container name of a network holder."""
    return f"fngate-network-{number}-{owner.name[:4]}"


def descriptors(server_max: int) -> int:
    """Return the limit on open files of a container's process. It is lower than the server's
    `server_max`, so that a replica runs out of descriptors before its server does."""
    return min(NOFILE_MAX, server_max // 2)


def replica(
    record: ReplicaRecord, image: str, owner: Owner, place: MountPaths, uid: int
) -> dict[str, Any]:
    """Return the container configuration of a replica. From the host it sees only its run folder
    and its model folder, both read-only. `uid` is a user id that no other container has."""
    labels = {REPLICA: record.id, UID: str(uid), FUNCTION: record.bound}
    config = _base(image, owner, labels, uid)
    config["Cmd"] = [RUN_TARGET]
    config["Env"] = [f"{name}={value}" for name, value in replica_variables(record).items()]
    config["HostConfig"] |= {
        "Mounts": [*_links(place), _read_only(place.model_dir, MODEL_TARGET)],
        "PidsLimit": PIDS_MAX,
        "Tmpfs": {"/tmp": f"size={TMP_SIZE},mode=1777,nosuid,nodev"},  # noqa: S108 - its own /tmp
        "OomScoreAdj": OOM_SCORE,
        # An init process reaps zombies of handlers. It also makes TERM end a replica that has not
        # installed its signal handler yet, which would ignore TERM as the container's pid 1.
        "Init": True,
        "LogConfig": log_files(place.log_bytes),
    }
    config["HostConfig"] |= limits(record)
    return config


def _links(place: MountPaths) -> list[dict[str, Any]]:
    """Return the mounts by which a replica reaches its manager and gateways."""
    found = [_read_only(place.run_dir, RUN_TARGET)]
    if place.control is not None:
        found.append(_read_only(place.control, CONTROL_TARGET))
    if place.data is not None:
        found.append({**_read_only(place.data, DATA_TARGET), "ReadOnly": False})
    return found


def agent(
    record: ReplicaRecord, image: str, owner: Owner, place: MountPaths, uid: int
) -> dict[str, Any]:
    """Return the configuration of a host's agent: a replica without a model. NVML names processes
    only to a process that sees them, so it has the host's PID namespace; it runs no code but
    ours."""
    config = replica(record, image, owner, place, uid)
    memory = AGENT_MIB * MIB
    config["HostConfig"] |= {
        "Mounts": _links(place),
        "PidMode": "host",
        "Memory": memory,
        "MemorySwap": memory,
    }
    return config


def log_files(log_bytes: int) -> dict[str, Any]:
    """Return the log of a container, which the engine keeps in two files."""
    files = {"max-size": str(max(4096, log_bytes // 2)), "max-file": "2"}
    return {"Type": "json-file", "Config": files}


def limits(record: ReplicaRecord) -> dict[str, int]:
    """Return the limits on memory (without swap) and CPU time, as fields of container create and
    update. On several GPUs a server has a process for each, and the CPU time of each."""
    memory, processes = memory_cap_mib(record) * MIB, max(1, gpu_count(record))
    return {
        "Memory": memory,
        "MemorySwap": memory,
        "CpuPeriod": CPU_PERIOD_US,
        "CpuQuota": record.threads * processes * CPU_PERIOD_US,
    }


def holder(image: str, owner: Owner, number: str, uid: int) -> dict[str, Any]:
    """Return the configuration of a network holder: an idle container whose network (mode "none")
    one replica joins. Creating a network is the largest part of a start; a holder creates it in
    advance."""
    config = _base(image, owner, {HOLDER: number}, uid)
    config["Entrypoint"] = ["sleep"]
    config["Cmd"] = [str(HOLDER_S)]
    memory = HOLDER_MIB * MIB
    config["HostConfig"] |= {
        "AutoRemove": True,
        "PidsLimit": HOLDER_PIDS_MAX,
        "Memory": memory,
        "MemorySwap": memory,
        "LogConfig": {"Type": "none", "Config": {}},
    }
    return config


def join(config: dict[str, Any], holder_id: str) -> dict[str, Any]:
    """Return the configuration of the same container in the network of a holder."""
    host = {**config["HostConfig"], "NetworkMode": f"container:{holder_id}"}
    return {**config, "HostConfig": host}


def _base(image: str, owner: Owner, labels: dict[str, str], uid: int) -> dict[str, Any]:
    return {
        "Image": image,
        "User": f"{uid}:{uid}",
        "WorkingDir": "/tmp",  # noqa: S108 - its own /tmp
        "Labels": common_labels(owner) | labels,
        "Healthcheck": NO_HEALTHCHECK,
        "HostConfig": isolation(owner.nofile),
    }


def common_labels(owner: Owner) -> dict[str, str]:
    """Return the labels of every container of an owner."""
    return {OWNER: owner.name, LINK: str(VERSION)}


def isolation(nofile: int) -> dict[str, Any]:
    """Return what keeps every container from the host and from other containers, as HostConfig.
    `nofile` limits its open files."""
    return {
        "NetworkMode": "none",
        # Overrides the engine's default: with "shareable" other containers could join.
        "IpcMode": "private",
        "Privileged": False,
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "Ulimits": [
            # The host would write a core dump, outside of the container's limits.
            _limit("core", 0),
            _limit("nofile", nofile),
            _limit("sigpending", SIGPENDING_MAX),
            _limit("msgqueue", 0),
        ],
        "RestartPolicy": {"Name": "no"},
    }


def _limit(name: str, most: int) -> dict[str, Any]:
    return {"Name": name, "Soft": most, "Hard": most}


def _read_only(source: Path, target: str) -> dict[str, Any]:
    # A mount, not a bind: for a missing folder the engine reports an error and does not create it.
    return {"Type": "bind", "Source": str(source), "Target": target, "ReadOnly": True}


def by_cdi(config: dict[str, Any], gpus: Sequence[str]) -> dict[str, Any]:
    """Request GPUs as devices of the Container Device Interface (CDI), which the toolkit describes
    in files."""
    ids = [f"{CDI_KIND}={gpu}" for gpu in gpus]
    return _with_request(config, {"Driver": "cdi", "DeviceIDs": ids})


def by_request(config: dict[str, Any], gpus: Sequence[str]) -> dict[str, Any]:
    """Request GPUs as `docker run --gpus` does: the engine calls the toolkit's hook."""
    capabilities = [["gpu", *CAPABILITIES]]
    request = {"Driver": "nvidia", "DeviceIDs": list(gpus), "Capabilities": capabilities}
    return _with_request(config, request)


def by_runtime(config: dict[str, Any], gpus: Sequence[str]) -> dict[str, Any]:
    """Request GPUs through the toolkit's container runtime, which reads environment variables (the
    oldest way)."""
    variables = [
        f"NVIDIA_VISIBLE_DEVICES={','.join(gpus)}",
        f"NVIDIA_DRIVER_CAPABILITIES={','.join(CAPABILITIES)}",
    ]
    host = {**config["HostConfig"], "Runtime": "nvidia"}
    return {**config, "Env": [*config.get("Env", ()), *variables], "HostConfig": host}


def ways(info: dict[str, Any]) -> list[Way]:
    """Return the ways to request a GPU that may work, the best first, from the engine's GET /info.

    `by_request` is always included, because the engine does not report whether it has the hook.
    """
    found: list[Way] = [by_cdi] if _has_cdi(info) else []
    found.append(by_request)
    if "nvidia" in (info.get("Runtimes") or {}):
        found.append(by_runtime)
    return found


def _has_cdi(info: dict[str, Any]) -> bool:
    """Whether the engine may have CDI devices. Newer engines list the devices that they found,
    older ones only the folders that they search."""
    devices = info.get("DiscoveredDevices")
    if devices is not None:
        return any(str(one.get("ID", "")).startswith(CDI_KIND) for one in devices)
    return bool(info.get("CDISpecDirs"))


def _with_request(config: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    host = {**config["HostConfig"], "DeviceRequests": [request]}
    return {**config, "HostConfig": host}
