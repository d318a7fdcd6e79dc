"""What the engine's errors mean, and which command mends them."""

from __future__ import annotations

from typing import Final

import requests
from docker.errors import APIError, DockerException, NotFound

from pool_manager.drivers.docker.gpu import CONFIGURE, GENERATE
from registry.errors import DriverError, EngineDown

RESTART: Final = "sudo systemctl restart docker"

_MEANINGS: Final = (
    ("no such image", "build it: fnctl image build cpu, or gpu"),
    ("unknown runtime specified", CONFIGURE),
    ("could not select device driver", CONFIGURE),
    ("unresolvable cdi devices", GENERATE),
    ("driver not loaded", "load the NVIDIA driver: sudo modprobe nvidia, or reboot"),
    ("no space left on device", "free some: docker system prune"),
    ("docker-init", "install it: sudo apt-get install tini, or docker-ce of Docker itself"),
    ("bind source path does not exist", "the engine must run on this very machine"),
    ("minimum memory limit", "give the function more memory: --memory MIB"),
    ("range of cpus", "raise FN_CPU_SLOTS: each slot has its part of the cores"),
)
"""What an engine's message contains, in lower case, and what mends it."""
_UNREACHABLE: Final = (
    ("permission denied", "sudo usermod -aG docker $USER, then log in again"),
    ("no such file", "sudo systemctl start docker, or name its socket: FN_DOCKER_HOST"),
    ("connection refused", RESTART),
    ("too many open files", "raise the limit on open files of the server: ulimit -n"),
)
_NO_WAY: Final = ("unknown runtime specified", "could not select device driver", "cdi")
"""Messages that say that a GPU cannot be asked for in this way; another may work."""


def translate(error: Exception, doing: str) -> DriverError:
    """Our error for one of docker-py's; `doing` is what was tried, as "start a container"."""
    if isinstance(error, APIError):
        said = str(error.explanation or error)
        return DriverError(f"cannot {doing}: the engine says: {said}{_mending(said, _MEANINGS)}")
    if isinstance(error, requests.exceptions.Timeout):
        return EngineDown(f"cannot {doing}: the engine gave no answer in time; {RESTART}")
    said = _innermost(error)
    return EngineDown(f"cannot {doing}: {said}{_mending(said, _UNREACHABLE)}")


def is_no_way(error: DriverError) -> bool:
    """Whether the engine knows no such way of asking for a GPU."""
    said = error.message.lower()
    return any(part in said for part in _NO_WAY)


def is_too_large(error: DriverError) -> bool:
    """Whether it takes more already than it is now to be limited to (cgroup v1; under version 2
    the kernel itself ends it)."""
    said = error.message.lower()
    return "unable to set memory limit" in said or "device or resource busy" in said


def speaks_another_version(error: Exception) -> bool:
    """Whether the engine refused the version of its API that it was spoken to in."""
    said = error.message if isinstance(error, DriverError) else str(error)
    return "client version" in said and "supported API version" in said


def is_gone(error: Exception) -> bool:
    """Whether what was asked for does not exist."""
    return isinstance(error, NotFound)


def is_conflict(error: Exception) -> bool:
    """Whether the state of what was asked for forbids it: it does not run, or is being removed."""
    return isinstance(error, APIError) and error.status_code == requests.codes.conflict


ENGINE_ERRORS: Final = (DockerException, requests.exceptions.RequestException)
"""All that docker-py raises for what the engine does."""


def _mending(said: str, meanings: tuple[tuple[str, str], ...]) -> str:
    text = said.lower()
    return next((f"; {todo}" for part, todo in meanings if part in text), "")


def _innermost(error: BaseException) -> str:
    """What the system itself said, below the layers that only pass it on."""
    seen = error
    while True:
        below = seen.__cause__ or seen.__context__
        if below is None:
            break
        seen = below
    return str(seen) or type(seen).__name__
