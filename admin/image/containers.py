"""Engine operations of a build besides building: pull and probe the base image, run code in
short-lived containers, remove leftovers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from admin.image.context import DISK_FULL, ImageError, disk_full, image_error
from admin.image.wheels import Platform

if TYPE_CHECKING:
    from docker import APIClient

LABEL: Final = "fngate.build"
"""Label on every image and container of a build; its value is the build's id."""
PROBE_S: Final = 300
OUTPUT_MAX: Final = 64 * 1024
SWEEPS: Final = 40
SWEEP_S: Final = 0.25
QUIET_SWEEPS: Final = 4
PIDS_MAX: Final = 256
OLDEST: Final = (3, 11)
PROBE_CODE: Final = """\
import json, os, sys
try:
    libc = os.confstr("CS_GNU_LIBC_VERSION").split()[1]
except (ValueError, OSError, AttributeError):
    libc = "0.0"
print(json.dumps([*sys.version_info[:2], os.uname().machine, *map(int, libc.split(".")[:2])]))
"""
PULL_S: Final = 600
"""Max seconds of a pull without a message."""


def run_python(client: APIClient, image: str, code: str, build: str) -> tuple[int, str]:
    """Run `code` in a container of `image` as replicas run: read-only, no network, no rights.

    Returns the exit code and the last OUTPUT_MAX bytes of output. Raises docker-py's errors.
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
    """Remove the untagged images of the build with this id, and its containers if `is_broken_off`
    (containers with the label of a finished build may be replicas).

    An engine whose client disconnected keeps working for a moment, so an interrupted build is swept
    until QUIET_SWEEPS sweeps in a row found nothing. Images in use stay. Raises docker-py's errors.
    """
    needed = QUIET_SWEEPS if is_broken_off else 1
    quiet = 0
    for _ in range(SWEEPS):
        count = remove_containers(client, build) if is_broken_off else 0
        quiet = 0 if count + _remove_images(client, build) else quiet + 1
        if quiet == needed:
            return
        if is_broken_off:
            pause(SWEEP_S)


def remove_unused(client: APIClient, image: str) -> bool:
    """Remove `image` unless it has a tag or a container; return True if it was removed."""
    from docker.errors import APIError

    try:
        if client.inspect_image(image).get("RepoTags"):
            return False
        client.remove_image(image)
    except APIError:
        return False
    return True


def remove_containers(client: APIClient, build: str) -> int:
    """Remove the containers of the build with this id, running or not; return their number."""
    from docker.errors import APIError

    found: list[dict[str, Any]] = client.containers(all=True, filters={"label": f"{LABEL}={build}"})
    for container in found:
        with suppress(APIError):  # the engine may be removing it as well
            client.remove_container(container["Id"], force=True)
    return len(found)


def _remove_images(client: APIClient, build: str) -> int:
    """Remove the untagged images of the build; return their number."""
    images = client.images(filters={"dangling": True, "label": f"{LABEL}={build}"})
    return sum(remove_unused(client, image["Id"]) for image in images)


def pull_base(
    client: APIClient, base: str, report: Callable[[str], None], silence_s: float = PULL_S
) -> None:
    """Pull `base` unless the engine has it.

    Raises ImageError, also if the pull sends no message for `silence_s` seconds.
    """
    from docker.errors import APIError, ImageNotFound
    from requests.exceptions import Timeout
    from urllib3.exceptions import ReadTimeoutError

    try:
        client.inspect_image(base)
    except ImageNotFound:
        report(f"pulling {base}")
        try:
            with _read_timeout(client, silence_s):
                for message in client.pull(base, stream=True, decode=True):
                    if "error" in message:
                        raise _not_pulled(base, str(message["error"]))
        except APIError as error:
            raise _not_pulled(base, str(error.explanation or error)) from error
        except (Timeout, ReadTimeoutError) as error:
            raise _not_pulled(base, f"no message for {silence_s:g} s") from error


@contextmanager
def _read_timeout(client: APIClient, silence_s: float) -> Iterator[None]:
    """Bound each wait for the engine: docker-py pulls without a timeout, but its client is a
    `requests.Session`, whose `send` takes one."""
    send = client.send
    client.send = lambda request, **options: send(request, **{**options, "timeout": silence_s})
    try:
        yield
    finally:
        del client.send


def probe_base(client: APIClient, base: str, build: str) -> Platform:
    """Return Python, machine and libc of `base`. Raises ImageError if Python is missing or old."""
    from docker.errors import APIError

    todo = "fnctl image build --base python:3.11-slim"
    try:
        code, output = run_python(client, base, PROBE_CODE, build)
        answer = json.loads(output)
    except APIError as error:
        if "executable file not found" not in str(error.explanation):
            raise
        raise image_error(f"the base image {base} has no python3", todo=todo) from error
    except ValueError:
        raise image_error(
            f"python3 of the base image {base} exited with code {code}:",
            tail=output.splitlines(),
            todo=todo,
        ) from None
    platform = Platform((answer[0], answer[1]), str(answer[2]), (answer[3], answer[4]))
    if platform.python < OLDEST:
        raise image_error(
            f"the base image {base} has Python {dotted(platform.python)}, expected 3.11 or newer",
            todo=todo,
        )
    return platform


def dotted(version: tuple[int, int]) -> str:
    """Return a version as text: 3.11."""
    return ".".join(map(str, version))


def _not_pulled(base: str, reason: Any) -> ImageError:
    if DISK_FULL in reason:
        return disk_full(reason, "docker system prune")
    return image_error(
        f"the base image {base} is not on the engine and cannot be pulled: {reason}",
        todo=f"docker pull {base}  or choose an existing one with --base or FN_IMAGE_BASE",
    )
