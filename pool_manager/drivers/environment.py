"""What containers of replicas have in common in every engine: variables, paths, sizes. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pool_manager.ports import ServerContainer
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.server import BUNDLE, BUNDLE_FOLDER, FREE_MAX, GPUS, several_gpus

RUN_TARGET: Final = "/run/fngate"
"""A replica's run folder in its container."""
MODEL_TARGET: Final = "/model"
"""Its model folder."""
USER_NAME: Final = "fngate"
"""User name for libraries, which read it from USER: the image's passwd(5) has no entry for the
user ids."""
STANDBY_CAP_MIB: Final = {"cpu": 2048, "cuda": 8192}
"""Memory cap of a standby until it has the limits of its model, by device kind; enough to load most
models."""
HOST: Final = "127.0.0.1"
"""Value of ${HOST}: an address that only the sidecar reaches, in every kind of network."""
SIDECAR_MIB: Final = 64
"""Memory cap of a sidecar without connections."""
CONNECTION_KIB: Final = 512
"""Kernel memory that a connection may take in a sidecar's cap: cgroup v2 charges the unread bytes
of a connection to the process that created the socket."""
VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
NO_DEVICE: Final = "void"
"""Value of VISIBLE for no device: images of CUDA say `all`, which NVIDIA's runtime follows."""


def gpu_count(record: ReplicaRecord) -> int:
    """Return the number of a replica's GPUs; 0 on a CPU slot."""
    return 0 if record.device_kind == "cpu" else len(record.devices)


def memory_cap_mib(record: ReplicaRecord) -> int:
    """Return the cap on the memory of a replica's container, 0 for none."""
    if record.role == "standby":
        return STANDBY_CAP_MIB[record.device_kind]
    return record.memory_mib


def sidecar_cap_mib(server: ServerContainer) -> int:
    """Return the cap on the memory of the sidecar of a server."""
    return SIDECAR_MIB + (server.concurrency + FREE_MAX) * CONNECTION_KIB // 1024


def replica_variables(record: ReplicaRecord) -> dict[str, str]:
    """Return the environment of a replica, and of a sidecar."""
    return {
        "HOME": "/tmp",  # noqa: S108 - its own /tmp
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": str(record.threads),
        "ORT_DISABLE_TELEMETRY": "1",
        "USER": USER_NAME,
        "LOGNAME": USER_NAME,
        **several_gpus(gpu_count(record), "none"),
    }


def server_variables(
    record: ReplicaRecord, server: ServerContainer, secrets: Mapping[str, str], visible: str
) -> dict[str, str]:
    """Return the environment that a server has beside the image's own. `secrets` are values by
    variable; `visible` is the value of VISIBLE, "" where the engine sets it."""
    fill = filler(record, server)
    found = {
        "OMP_NUM_THREADS": str(record.threads),
        **several_gpus(gpu_count(record), server.network),
        **{name: fill(value) for name, value in server.env.items()},
        **secrets,
        "PORT": str(server.port),
    }
    if visible:
        found[VISIBLE] = visible
    if server.has_files:
        found[BUNDLE] = BUNDLE_FOLDER
    return found


def filler(record: ReplicaRecord, server: ServerContainer) -> Callable[[str], str]:
    """Return what replaces ${PORT}, ${HOST} and ${GPUS} in words and values of a server."""
    values = (
        ("${PORT}", str(server.port)),
        ("${HOST}", HOST),
        (GPUS, str(gpu_count(record))),
    )

    def fill(text: str) -> str:
        for name, value in values:
            text = text.replace(name, value)
        return text

    return fill
