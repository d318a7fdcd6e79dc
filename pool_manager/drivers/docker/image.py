"""Whether the engine and an image are what is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import docker

from pool_manager.drivers.docker.shape import LINK
from pool_manager.drivers.uids import misfit
from registry.errors import DriverError
from runtime_image.contract.link import VERSION

UID_MAP: Final = Path("/proc/self/uid_map")


def check_image(image: str, kind: str, inspected: dict[str, Any]) -> None:
    """`inspected` is what GET /images/NAME/json says. Raises DriverError where the image speaks
    another version of the link, or is no runtime image at all."""
    target = "gpu" if kind == "cuda" else kind
    labels = (inspected.get("Config") or {}).get("Labels") or {}
    spoken = labels.get(LINK)
    if spoken is None:
        found = f"image {image} is no runtime image: it has no label {LINK}"
    elif spoken != str(VERSION):
        found = f"image {image} speaks link version {spoken}, this server version {VERSION}"
    else:
        return
    raise DriverError(f"{found}; build it: fnctl image build {target}")


def inspection(image: str) -> Callable[[docker.APIClient], dict[str, Any]]:
    """What asks the engine for what `check_image` looks at."""
    return lambda client: client.inspect_image(image)


def check_uids(uids: range) -> None:
    """Raises DriverError where containers cannot run as these users: an engine of this very user
    namespace has no others."""
    if reason := misfit(uids, UID_MAP.read_text()):
        raise DriverError(reason)


def check_users(info: dict[str, Any]) -> None:
    """`info` is what the engine tells of itself (GET /info). Raises DriverError where a user id in
    a container is another one outside: no replica could enter its own run folder."""
    options = info.get("SecurityOptions") or []
    for name in ("rootless", "userns"):
        if any(f"name={name}" in str(option).split(",") for option in options):
            raise DriverError(
                f"the engine gives containers other users than this machine has ({name}), so that"
                " no replica could read its files; use an engine that runs as root, without"
                " userns-remap: FN_DOCKER_HOST"
            )
