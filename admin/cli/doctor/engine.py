"""Reaching the Docker engine and asking it about itself."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from admin.cli.doctor.check import Check
from admin.cli.session import DEFAULT_ENGINE

ANSWER_S: Final = 5.0
"""Seconds for each answer of the engine."""
TCP_PORT: Final = 2375
REPLICAS_MAX: Final = 16
"""So many are looked at."""
NAME: Final = "docker engine"
INSTALL: Final = "install Docker Engine, on Debian: sudo apt-get install docker.io"


@dataclass(frozen=True, slots=True)
class Facts:
    """What an engine at `url` says: GET /version, GET /info, its images by their tags, and the
    processes of its replicas by their numbers on its machine."""

    url: str
    version: dict[str, Any]
    info: dict[str, Any]
    images: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    pids: tuple[int, ...] = ()

    @property
    def is_local(self) -> bool:
        """Whether it runs on this machine, so that its files can be looked at."""
        return self.url.startswith("unix://")


def is_there(url: str) -> bool:
    """Whether a socket of an engine lies at `url`, answering or not."""
    parts = urlsplit(url)
    try:
        return parts.scheme == "unix" and Path(parts.path).exists()
    except PermissionError:  # something is there, in a folder that this user may not see into
        return True


def ask(url: str, tags: Sequence[str]) -> Facts | Check:
    """What the engine says of itself and of the images `tags`, or why it says nothing."""
    try:
        _connect(url)
    except (OSError, ValueError) as error:
        return unreachable(url, error, has_daemon=shutil.which("dockerd") is not None)
    # It brings in requests, which costs more than all of fnctl.
    from docker import DockerClient
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        client = DockerClient(base_url=url, timeout=int(ANSWER_S))
    except DockerException as error:
        return unreachable(url, error)
    try:
        images = {tag: _image(client, tag) for tag in tags}
        return Facts(url, client.version(), client.info(), images, _replicas(client))
    except (DockerException, RequestException, OSError) as error:
        return unreachable(url, error)
    finally:
        client.close()


def unreachable(url: str, error: Exception, has_daemon: bool = True) -> Check:
    """Why the engine at `url` says nothing. `has_daemon`: whether one is installed here."""
    local = url.startswith("unix://")
    if isinstance(error, ValueError):
        todo = f"name it with --engine or FN_DOCKER_HOST, like {DEFAULT_ENGINE}"
        return Check("fail", NAME, str(error), todo)
    if isinstance(error, FileNotFoundError):
        todo = "sudo systemctl start docker" if has_daemon else INSTALL
        return Check("fail", NAME, f"{url} is not there", todo)
    if isinstance(error, PermissionError):
        todo = "sudo usermod -aG docker $USER, then log in again"
        return Check("fail", NAME, f"this user may not use {url}", todo)
    if isinstance(error, ConnectionRefusedError):
        todo = "sudo systemctl restart docker" if local else "start it there, or mend --engine"
        return Check("fail", NAME, f"nobody listens on {url}", todo)
    if isinstance(error, TimeoutError):
        todo = "see what it does: sudo journalctl -u docker -n 50"
        return Check("fail", NAME, f"{url} gives no answer in {ANSWER_S:g} s", todo)
    todo = "see its log: sudo journalctl -u docker -n 50"
    return Check("fail", NAME, f"{url}: {str(error) or type(error).__name__}", todo)


def _connect(url: str) -> None:
    """See whether somebody answers; docker-py tells the reasons apart only in its texts.

    Raises OSError, and ValueError for what is no address of an engine.
    """
    parts = urlsplit(url)
    if parts.scheme == "unix" and parts.path:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(ANSWER_S)
            probe.connect(parts.path)
            _ping(probe)
    elif parts.scheme == "tcp" and parts.hostname:
        place = (parts.hostname, parts.port or TCP_PORT)
        with socket.create_connection(place, ANSWER_S) as probe:
            _ping(probe)
    else:
        raise ValueError(f"--engine: expected unix:///PATH or tcp://HOST:PORT, got {url!r}")


def _ping(probe: socket.socket) -> None:
    """An engine that hangs still accepts connections: only an answer counts."""
    probe.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
    if not probe.recv(1):
        raise ConnectionResetError("the engine closed the connection without an answer")


def _replicas(client: Any) -> tuple[int, ...]:
    """The processes of some replicas, of whatever server."""
    from pool_manager.drivers.docker import containers
    from pool_manager.drivers.docker.shape import REPLICA

    running = client.api.containers(filters={"label": [REPLICA], "status": ["running"]})
    found = [containers.pids(client.api, one["Id"]) for one in running[:REPLICAS_MAX]]
    return tuple(sorted(pid for pids in found for pid in pids or ()))


def _image(client: Any, tag: str) -> dict[str, Any] | None:
    from docker.errors import ImageNotFound

    try:
        found: dict[str, Any] = client.api.inspect_image(tag)
    except ImageNotFound:
        return None
    return found
