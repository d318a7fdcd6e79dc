"""Short-lived containers of a build, and what a build leaves behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from docker import APIClient

LABEL: Final = "fngate.build"
"""On all that a build makes, with the build's id: so that it can be found again."""
PROBE_S: Final = 300
OUTPUT_MAX: Final = 64 * 1024
SWEEPS: Final = 40
SWEEP_S: Final = 0.25
LOOKS: Final = 4
PIDS_MAX: Final = 256


def run_python(client: APIClient, image: str, code: str, build: str) -> tuple[int, str]:
    """Run `code` in a container of `image` as replicas run there: read-only, no network, no rights.

    Exit code and output (the end of it, OUTPUT_MAX at most). Raises docker-py's errors.
    """
    host = client.create_host_config(
        network_mode="none",
        read_only=True,
        tmpfs={"/tmp": "size=64m"},  # noqa: S108 - the container's own
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        pids_limit=PIDS_MAX,
    )
    made = client.create_container(
        image,
        entrypoint=["python3", "-I", "-c"],
        command=[code],
        labels={LABEL: build},
        user="10001:10001",
        host_config=host,
    )
    try:
        client.start(made["Id"])
        ended = client.wait(made["Id"], timeout=PROBE_S)
        output = client.logs(made["Id"], stdout=True, stderr=True, tail=200)
        return int(ended["StatusCode"]), output[-OUTPUT_MAX:].decode(errors="replace")
    finally:
        client.remove_container(made["Id"], force=True)


def sweep(
    client: APIClient,
    build: str,
    *,
    is_broken_off: bool,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Remove what the build with this id left: images without a name, and containers if it was
    broken off. A finished build has none, but replicas may run in its image, which has its label.

    An engine that was left alone goes on for a moment, so after a build that was broken off it is
    looked until nothing has come for LOOKS looks. What is in use is left.

    Raises docker-py's errors.
    """
    looks = LOOKS if is_broken_off else 1
    quiet = 0
    for _ in range(SWEEPS):
        count = remove_containers(client, build) if is_broken_off else 0
        quiet = 0 if count + _remove_images(client, build) else quiet + 1
        if quiet == looks:
            return
        if is_broken_off:
            pause(SWEEP_S)


def remove_unused(client: APIClient, image: str) -> bool:
    """Whether the nameless `image` is gone; what a container uses or a tag names stays."""
    from docker.errors import APIError

    try:
        if client.inspect_image(image).get("RepoTags"):
            return False
        client.remove_image(image)
    except APIError:
        return False
    return True


def remove_containers(client: APIClient, build: str) -> int:
    """Remove the containers of the build with this id, running or not; how many there were."""
    from docker.errors import APIError

    found: list[dict[str, Any]] = client.containers(all=True, filters={"label": f"{LABEL}={build}"})
    for container in found:
        with suppress(APIError):  # the engine may be at it, too
            client.remove_container(container["Id"], force=True)
    return len(found)


def _remove_images(client: APIClient, build: str) -> int:
    """How many nameless images were found and removed."""
    images = client.images(filters={"dangling": True, "label": f"{LABEL}={build}"})
    return sum(remove_unused(client, image["Id"]) for image in images)
