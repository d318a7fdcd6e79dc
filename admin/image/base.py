"""The image that a build begins with: had or pulled, and asked what it can run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from admin.image.containers import run_python
from admin.image.failures import DISK_FULL, ImageError, disk_full, image_error
from admin.image.wheels import Platform

if TYPE_CHECKING:
    from docker import APIClient

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
