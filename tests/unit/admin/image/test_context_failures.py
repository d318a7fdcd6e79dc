"""Every failure of the engine says what happened and what mends it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from docker import APIClient
from docker.errors import APIError

from admin.image.context import ImageError, engine_errors, image_error, unreachable
from registry.errors import EngineDown

pytestmark = pytest.mark.filterwarnings(
    # docker-py leaves the socket of a connection that failed to the garbage collector.
    "ignore:unclosed <socket:ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)


def connect(url: str) -> EngineDown:
    """What comes of a real attempt to reach `url`."""
    with pytest.raises(EngineDown) as caught, engine_errors(url):
        APIClient(base_url=url, version="auto", timeout=0.2)
    return caught.value


def test_no_engine_is_told(tmp_path: Path) -> None:
    """No socket: the message names it, the note how to start or name another."""
    error = connect(f"unix://{tmp_path}/none.sock")

    assert error.message == f"there is no Docker engine at unix://{tmp_path}/none.sock"
    assert "systemctl start docker" in error.__notes__[0]
    assert "FN_DOCKER_HOST" in error.detail["next"]


def test_an_engine_that_stopped_is_told(tmp_path: Path) -> None:
    """Its socket is left, and nothing listens."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(f"{tmp_path}/left.sock")

        assert "the Docker engine is not running" in connect(f"unix://{tmp_path}/left.sock").message


def test_an_engine_that_hangs_is_told(tmp_path: Path) -> None:
    """It takes the connection and says nothing."""
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(f"{tmp_path}/mute.sock")
        mute.listen()

        assert "does not answer in time" in connect(f"unix://{tmp_path}/mute.sock").message


def test_a_bad_address_is_told() -> None:
    """docker-py's own words stand in the message."""
    assert "Invalid bind address" in connect("bad").message


def test_a_missing_right_is_told() -> None:
    """As a user who is not in the group meets it."""
    outer = OSError("connection aborted", PermissionError(13, "Permission denied"))

    error = unreachable("unix:///var/run/docker.sock", outer)

    assert error.message.startswith("permission denied at unix:///var/run/docker.sock")
    assert "usermod -aG docker" in error.__notes__[0]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("explanation", "reason"),
    [
        ("write /x: no space left on device", "the disk is full: write /x"),
        ("dockerfile parse error", "the engine refused: dockerfile parse error"),
    ],
)
def test_a_refusal_is_told(explanation: str, reason: str) -> None:
    """What the engine explains is the reason."""
    with pytest.raises(ImageError, match=reason), engine_errors("unix:///x"):
        raise APIError("500 Server Error", explanation=explanation)


def test_last_lines_are_few() -> None:
    """However much was written, the message stays readable."""
    error = image_error("it failed:", tail=[str(number) for number in range(100)])

    assert error.message.split("\n")[1] == "    88"
    assert error.message.endswith("    99")
