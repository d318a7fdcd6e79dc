"""Short-lived containers of a build, and what a build leaves behind.

The image that a build begins with: had or pulled, and asked what it can run.
"""

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


OLDEST: Final = (3, 11)
QUESTION: Final = """\
import json, os, sys
try:
    libc = os.confstr("CS_GNU_LIBC_VERSION").split()[1]
except (ValueError, OSError, AttributeError):
    libc = "0.0"
print(json.dumps([*sys.version_info[:2], os.uname().machine, *map(int, libc.split(".")[:2])]))
"""
PULL_S: Final = 600
"""Seconds without a word of the registry."""


def fetch(
    client: APIClient, base: str, tell: Callable[[str], None], silence_s: float = PULL_S
) -> None:
    """Pull `base` unless the engine has it.

    Raises ImageError, also where the engine tells nothing of the pull for `silence_s` seconds.
    """
    from docker.errors import APIError, ImageNotFound
    from requests.exceptions import Timeout
    from urllib3.exceptions import ReadTimeoutError

    try:
        client.inspect_image(base)
    except ImageNotFound:
        tell(f"pulling {base}")
        try:
            with _impatient(client, silence_s):
                for message in client.pull(base, stream=True, decode=True):
                    if "error" in message:
                        raise _not_pulled(base, str(message["error"]))
        except APIError as error:
            raise _not_pulled(base, str(error.explanation or error)) from error
        except (Timeout, ReadTimeoutError) as error:
            raise _not_pulled(base, f"nothing was heard of it for {silence_s:g} s") from error


@contextmanager
def _impatient(client: APIClient, silence_s: float) -> Iterator[None]:
    """Bound each wait for the engine. The client asks for a pull without any limit, but it is a
    `requests.Session`, which sends with one."""
    send = client.send
    client.send = lambda request, **options: send(request, **{**options, "timeout": silence_s})
    try:
        yield
    finally:
        del client.send


def examine(client: APIClient, base: str, build: str) -> Platform:
    """What `base` can run. Raises ImageError where it has no Python that is new enough."""
    from docker.errors import APIError

    todo = "fnctl image build --base python:3.11-slim"
    try:
        code, output = run_python(client, base, QUESTION, build)
        answer = json.loads(output)
    except APIError as error:
        if "executable file not found" not in str(error.explanation):
            raise
        raise image_error(f"the base image {base} has no python3", todo=todo) from error
    except ValueError:
        raise image_error(
            f"python3 of the base image {base} ended with code {code}:",
            tail=output.splitlines(),
            todo=todo,
        ) from None
    platform = Platform((answer[0], answer[1]), str(answer[2]), (answer[3], answer[4]))
    if platform.python < OLDEST:
        raise image_error(
            f"the base image {base} has Python {named(platform.python)}, expected 3.11 or newer",
            todo=todo,
        )
    return platform


def named(version: tuple[int, int]) -> str:
    """A version as people write it."""
    return ".".join(map(str, version))


def _not_pulled(base: str, reason: Any) -> ImageError:
    if DISK_FULL in reason:
        return disk_full(reason, "docker system prune")
    return image_error(
        f"the base image {base} is not on the engine and cannot be pulled: {reason}",
        todo=f"docker pull {base}  or name one that is there with --base or FN_IMAGE_BASE",
    )
