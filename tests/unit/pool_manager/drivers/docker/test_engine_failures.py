"""Translation of the engine's errors."""

from __future__ import annotations

import pytest
import requests
from docker.errors import APIError, DockerException, NotFound

from pool_manager.drivers.docker.engine import (
    RESTART,
    SAID_MAX,
    is_conflict,
    is_gone,
    is_no_way,
    is_too_large,
    speaks_another_version,
    translate,
)
from pool_manager.drivers.docker.spec import CONFIGURE
from registry.errors import DriverError, EngineDown
from tests.support.containers import refusal

NO_DRIVER = 'could not select device driver "nvidia" with capabilities: [[gpu compute utility]]'
TOO_LARGE = (
    "Cannot update container 2eff33d7c17f: runc did not terminate successfully: exit status 1:"
    " unable to set memory limit to 104857600 (current usage: 134811648, peak usage: 242532352)"
    "\n: unknown"
)
SAID = [
    (404, "No such image: fngate:1", "build it: fnctl image build cpu, or gpu"),
    (400, "Unknown runtime specified nvidia", CONFIGURE),
    (500, NO_DRIVER, CONFIGURE),
    (
        500,
        "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=GPU-1",
        "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    ),
    (
        500,
        "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown",
        "load the NVIDIA driver: sudo modprobe nvidia, or reboot",
    ),
    (
        500,
        "mkdir /var/lib/docker/tmp: no space left on device",
        "free disk space: docker system prune",
    ),
    (
        500,
        'exec: "docker-init": executable file not found in $PATH',
        "install it: sudo apt-get install tini, or docker-ce of Docker itself",
    ),
    (
        400,
        'invalid mount config for type "bind": bind source path does not exist: /nope',
        "the engine must see the files of the server's machine",
    ),
    (
        400,
        "Minimum memory limit allowed is 6MB",
        "give the function more memory: --memory MIB",
    ),
    (
        400,
        "Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs available",
        "raise FN_CPU_SLOTS: each slot has its share of the cores",
    ),
]
"""What engines were seen to say, and what mends it."""


@pytest.mark.parametrize(("code", "said", "todo"), SAID)
def test_a_refusal_names_what_mends_it(code: int, said: str, todo: str) -> None:
    """The error has the engine's message and the command that helps."""
    error = translate(refusal(code, said), "start a container")

    assert type(error) is DriverError
    assert error.message == f"cannot start a container: the engine says: {said}; {todo}"


def test_a_refusal_without_end_is_shortened() -> None:
    """Its beginning, its end and the remedy stay, which may depend on its middle."""
    said = f"begun {'x' * 100_000} No such image {'x' * 100_000} ended"

    told = translate(refusal(404, said), "start a container").message

    assert len(told) < SAID_MAX + 200
    assert told.startswith("cannot start a container: the engine says: begun xx")
    assert "xx ended; build it: fnctl image build cpu" in told


def test_an_unknown_refusal_is_passed_on() -> None:
    """An unknown refusal is passed on without advice."""
    error = translate(refusal(500, "something else"), "limit a container")

    assert error.message == "cannot limit a container: the engine says: something else"


@pytest.mark.parametrize(
    ("cause", "todo"),
    [
        (ConnectionRefusedError(111, "Connection refused"), RESTART),
        (
            FileNotFoundError(2, "No such file or directory"),
            "sudo systemctl start docker, or name its socket: FN_DOCKER_HOST",
        ),
        (
            PermissionError(13, "Permission denied"),
            "sudo usermod -aG docker $USER, then log in again",
        ),
    ],
)
def test_an_engine_out_of_reach(cause: OSError, todo: str) -> None:
    """An unreachable engine is reported with the innermost message and the command that helps."""
    layer = requests.exceptions.ConnectionError("Connection aborted.")
    layer.__context__ = cause
    outer = DockerException("Error while fetching server API version")
    outer.__cause__ = layer

    error = translate(outer, "list containers")

    assert isinstance(error, EngineDown)
    assert error.message == f"cannot list containers: {cause}; {todo}"


def test_an_engine_that_gives_no_answer() -> None:
    """A timeout raises EngineDown, which blames no function."""
    error = translate(requests.exceptions.ReadTimeout("read timed out"), "list containers")

    assert isinstance(error, EngineDown)
    assert error.message == f"cannot list containers: the engine gave no answer in time; {RESTART}"


def test_an_error_without_words() -> None:
    """An error without a message is reported by its type."""
    error = translate(requests.exceptions.ConnectionError(), "list containers")

    assert error.message == "cannot list containers: ConnectionError"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (NO_DRIVER, True),
        ("Unknown runtime specified nvidia", True),
        ("unresolvable CDI devices nvidia.com/gpu=GPU-1", True),
        ("No such image: fngate:1", False),
    ],
)
def test_another_way_may_work(said: str, expected: bool) -> None:
    """Another way to a GPU is tried only if the engine does not know this one."""
    assert is_no_way(translate(refusal(500, said), "start")) is expected


def test_a_limit_below_what_is_taken() -> None:
    """A limit below the memory in use is recognised."""
    assert is_too_large(translate(refusal(500, TOO_LARGE), "limit a container"))
    assert is_too_large(DriverError("write memory.limit_in_bytes: device or resource busy"))
    assert not is_too_large(DriverError("No such container: c1"))


def test_another_version_of_the_api() -> None:
    """A version that is too new or too old is recognised, in docker-py's errors and in ours."""
    said = "client version 1.44 is too new. Maximum supported API version is 1.41"
    old = "client version 1.24 is too old. Minimum supported API version is 1.44, please upgrade"

    assert speaks_another_version(refusal(400, said))
    assert speaks_another_version(translate(refusal(400, old), "start a container"))
    assert not speaks_another_version(refusal(400, "invalid reference format"))


def test_states_of_what_was_asked_for() -> None:
    """ "Not found" and "conflict" are recognised; a lost connection is neither."""
    gone, busy = refusal(404, "No such container: c1"), refusal(409, "is not running")
    lost = requests.exceptions.ConnectionError()

    assert isinstance(gone, NotFound)
    assert isinstance(busy, APIError)
    assert [is_gone(error) for error in (gone, busy, lost)] == [True, False, False]
    assert [is_conflict(error) for error in (gone, busy, lost)] == [False, True, False]
