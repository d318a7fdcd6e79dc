"""The ways of asking the engine for a GPU, and which of them it may know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

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
