"""The configuration of containers, as the engine's JSON; the ways to ask for a GPU. Pure.

Everything that isolates a replica from the host and from other replicas is here. Source of the
fields: the Engine API's reference, container create (ContainerConfig, HostConfig).
"""

from __future__ import annotations

import hashlib
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.link import VERSION

OWNER: Final = "fngate.owner"
"""Label: which data folder's server a container belongs to."""
REPLICA: Final = "fngate.replica"
"""Label: the replica's id."""
HOLDER: Final = "fngate.holder"
"""Label: the number of a network holder, which is no replica."""
UID: Final = "fngate.uid"
"""Label: the user id that a replica runs as."""
LINK: Final = "fngate.link"
"""Label of images and containers: the version of the link that they speak."""
RUN_TARGET: Final = "/run/fngate"
MODEL_TARGET: Final = "/model"
MIB: Final = 2**20
TMP_SIZE: Final = "100%"
"""Of the machine's memory, no bound of its own: what lies in /tmp counts in the memory cap of its
container. A trial writes there what it prepares, and nobody knows before how much that is."""
PIDS_MAX: Final = 256
CPU_PERIOD_US: Final = 100_000
STANDBY_CAP_MIB: Final = {"cpu": 2048, "cuda": 8192}
"""What a standby may take until it has the limits of its model, by device kind: enough to load
most."""
OOM_SCORE: Final = 500
"""Where the host itself runs out of memory, a replica goes before the server (proc(5))."""
USER_NAME: Final = "fngate"
"""The user ids have no entry in the image's passwd(5): libraries take the name from USER."""
NOFILE_MAX: Final = 4096
SIGPENDING_MAX: Final = 1024
"""Signals and POSIX timers that wait."""
HOLDER_MIB: Final = 16
HOLDER_PIDS_MAX: Final = 8
HOLDER_S: Final = 3600
"""A holder that nobody ever uses or removes, since its server was killed, ends by itself."""


CAPABILITIES: Final = ("compute", "utility")
"""What of the driver is wanted inside: CUDA and NVML, nothing for displays or video."""
CDI_KIND: Final = "nvidia.com/gpu"
CONFIGURE: Final = (
    "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
)
GENERATE: Final = "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
"""What makes an engine know the runtime and the hook, and what the devices of CDI."""
Way = Callable[[dict[str, Any], str], dict[str, Any]]
"""Makes of a container's configuration one that has the GPU or MIG slice of that UUID."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose containers these are: `name` is unique for each data folder of this host, `nofile` the
    descriptors that a process of them may have."""

    name: str
    nofile: int = NOFILE_MAX

    @classmethod
    def of(cls, data: Path) -> Owner:
        """The server over the data folder `data`, which is this process."""
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(owner_name(data), descriptors(most))


@dataclass(frozen=True, slots=True)
class MountPaths:
    """Where a replica's folders lie on the host, and how much it may write to its log."""

    run_dir: Path
    model_dir: Path
    log_bytes: int


def owner_name(data: Path) -> str:
    """The owner of what runs for a data folder: the same after a restart, another elsewhere."""
    return hashlib.sha256(bytes(data)).hexdigest()[:16]


def container_name(record: ReplicaRecord, owner: Owner) -> str:
    """What `docker ps` shows: the revision, or that it is a standby, and the replica's id."""
    what = record.bound.rpartition("/")[2].replace("@", "-") or "standby"
    return f"fngate-{what}-{record.id}-{owner.name[:4]}"


def holder_name(number: str, owner: Owner) -> str:
    """What `docker ps` shows of a network holder."""
    return f"fngate-network-{number}-{owner.name[:4]}"


def descriptors(server_max: int) -> int:
    """Descriptors for a container's process, where this process may have `server_max`: fewer, so
    that a replica runs out of them before its server can."""
    return min(NOFILE_MAX, server_max // 2)


def replica(
    record: ReplicaRecord, image: str, owner: Owner, place: MountPaths, uid: int
) -> dict[str, Any]:
    """The container of a replica: its run folder and its model folder, read-only, and nothing
    else of the host. `uid` is a user id that no other container has."""
    labels = {REPLICA: record.id, UID: str(uid), "fngate.function": record.bound}
    config = _base(image, owner, labels, uid)
    config["Cmd"] = [RUN_TARGET]
    config["Env"] = [
        "HOME=/tmp",
        "LANG=C.UTF-8",
        f"OMP_NUM_THREADS={record.threads}",
        "ORT_DISABLE_TELEMETRY=1",
        f"USER={USER_NAME}",
        f"LOGNAME={USER_NAME}",
    ]
    config["HostConfig"] |= {
        "Mounts": [
            _read_only(place.run_dir, RUN_TARGET),
            _read_only(place.model_dir, MODEL_TARGET),
        ],
        "PidsLimit": PIDS_MAX,
        "Tmpfs": {"/tmp": f"size={TMP_SIZE},mode=1777,nosuid,nodev"},  # noqa: S108 - its own /tmp
        "OomScoreAdj": OOM_SCORE,
        # Zombies of handlers are reaped, and TERM ends what has not come to heed it yet.
        "Init": True,
        "LogConfig": {
            "Type": "json-file",
            "Config": {"max-size": str(max(4096, place.log_bytes // 2)), "max-file": "2"},
        },
    }
    config["HostConfig"] |= limits(record)
    return config


def limits(record: ReplicaRecord) -> dict[str, int]:
    """Memory, without swap, and CPU time, as container create and update take them."""
    memory_mib = record.memory_mib
    if record.role == "standby":
        memory_mib = STANDBY_CAP_MIB[record.device_kind]
    memory = memory_mib * MIB
    return {
        "Memory": memory,
        "MemorySwap": memory,
        "CpuPeriod": CPU_PERIOD_US,
        "CpuQuota": record.threads * CPU_PERIOD_US,
    }


def holder(image: str, owner: Owner, number: str, uid: int) -> dict[str, Any]:
    """A network holder: a container that does nothing and whose network, which is none, one
    replica joins. Making a network is most of what a start costs; here it was made before."""
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
    """The same container in the network of a holder."""
    host = {**config["HostConfig"], "NetworkMode": f"container:{holder_id}"}
    return {**config, "HostConfig": host}


def _base(image: str, owner: Owner, labels: dict[str, str], uid: int) -> dict[str, Any]:
    return {
        "Image": image,
        "User": f"{uid}:{uid}",
        "WorkingDir": "/tmp",  # noqa: S108 - its own /tmp
        "Labels": {OWNER: owner.name, LINK: str(VERSION), **labels},
        # Whatever the image says: PING tells how a replica is.
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "NetworkMode": "none",
            # Not what the engine may be set to: with "shareable" others could join.
            "IpcMode": "private",
            "Privileged": False,
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "Ulimits": [
                # A core dump would be written by the host, outside of every limit.
                _limit("core", 0),
                _limit("nofile", owner.nofile),
                _limit("sigpending", SIGPENDING_MAX),
                _limit("msgqueue", 0),
            ],
            "RestartPolicy": {"Name": "no"},
        },
    }


def _limit(name: str, most: int) -> dict[str, Any]:
    return {"Name": name, "Soft": most, "Hard": most}


def _read_only(source: Path, target: str) -> dict[str, Any]:
    # A mount, not a bind: of a folder that is missing the engine complains instead of making it.
    return {"Type": "bind", "Source": str(source), "Target": target, "ReadOnly": True}


def by_cdi(config: dict[str, Any], device: str) -> dict[str, Any]:
    """As a device of the Container Device Interface, which the toolkit describes in files."""
    return _with_request(config, {"Driver": "cdi", "DeviceIDs": [f"{CDI_KIND}={device}"]})


def by_request(config: dict[str, Any], device: str) -> dict[str, Any]:
    """As `docker run --gpus` does: the engine itself calls the toolkit's hook."""
    request = {"Driver": "nvidia", "DeviceIDs": [device], "Capabilities": [["gpu", *CAPABILITIES]]}
    return _with_request(config, request)


def by_runtime(config: dict[str, Any], device: str) -> dict[str, Any]:
    """By the toolkit's own container runtime, which reads variables: the oldest way."""
    variables = [
        f"NVIDIA_VISIBLE_DEVICES={device}",
        f"NVIDIA_DRIVER_CAPABILITIES={','.join(CAPABILITIES)}",
    ]
    host = {**config["HostConfig"], "Runtime": "nvidia"}
    return {**config, "Env": [*config.get("Env", ()), *variables], "HostConfig": host}


def ways(info: dict[str, Any]) -> list[Way]:
    """Those worth a try, the best first, by what the engine tells of itself (GET /info).

    It does not tell whether it has the hook, so `by_request` is always worth one.
    """
    found: list[Way] = [by_cdi] if _has_cdi(info) else []
    found.append(by_request)
    if "nvidia" in (info.get("Runtimes") or {}):
        found.append(by_runtime)
    return found


def _has_cdi(info: dict[str, Any]) -> bool:
    """Newer engines list the devices that they found; older ones only where they look."""
    devices = info.get("DiscoveredDevices")
    if devices is not None:
        return any(str(one.get("ID", "")).startswith(CDI_KIND) for one in devices)
    return bool(info.get("CDISpecDirs"))


def _with_request(config: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    host = {**config["HostConfig"], "DeviceRequests": [request]}
    return {**config, "HostConfig": host}
