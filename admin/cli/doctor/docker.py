"""Checks of a Docker engine in order of dependency: reachable, facts, GPUs, runtime images."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from admin.cli.doctor import engine_checks, gpu_libraries, machine
from admin.cli.doctor.machine import softened
from admin.cli.options import DEFAULT_ENGINE
from hosts.checks import Check
from pool_manager.drivers.docker.spec import LINK
from registry.errors import FnError
from runtime_image.contract.link import VERSION

ANSWER_S: Final = 5.0
"""Max seconds per answer of the engine."""
TCP_PORT: Final = 2375
REPLICAS_MAX: Final = 16
"""Max replicas checked."""
ENGINE_CHECK: Final = "docker engine"
INSTALL: Final = "install Docker Engine, on Debian: sudo apt-get install docker.io"
SOURCE_LABEL: Final = "fngate.source"
SHOWN: Final = 12
"""Characters of a digest that are shown."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Answers of the engine at `url`: GET /version, GET /info, images by tag, and the process ids
    of replicas on its machine."""

    url: str
    version: dict[str, Any]
    info: dict[str, Any]
    images: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    pids: tuple[int, ...] = ()

    @property
    def is_local(self) -> bool:
        """Return whether the engine runs on this machine, so that its files can be read."""
        return self.url.startswith("unix://")


def has_socket(url: str) -> bool:
    """Return whether an engine's socket exists at `url`, whether it answers or not."""
    parts = urlsplit(url)
    try:
        return parts.scheme == "unix" and Path(parts.path).exists()
    except PermissionError:  # it exists in a folder that this user cannot read
        return True


def query_engine(url: str, tags: Sequence[str]) -> EngineFacts | Check:
    """Return the facts of the engine and of the images `tags`; a failed check if unreachable."""
    try:
        _connect(url)
    except (OSError, ValueError) as error:
        return unreachable_check(url, error, has_daemon=shutil.which("dockerd") is not None)
    # Lazy: docker imports requests, which takes longer than all of fnctl.
    from docker import DockerClient
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        client = DockerClient(base_url=url, timeout=int(ANSWER_S))
    except DockerException as error:
        return unreachable_check(url, error)
    try:
        images = {tag: _image(client, tag) for tag in tags}
        return EngineFacts(url, client.version(), client.info(), images, _replicas(client))
    except (DockerException, RequestException, OSError) as error:
        return unreachable_check(url, error)
    finally:
        client.close()


def unreachable_check(url: str, error: Exception, has_daemon: bool = True) -> Check:
    """Return the failed check for an unreachable engine. `has_daemon`: one is installed here."""
    local = url.startswith("unix://")
    if isinstance(error, ValueError):
        todo = f"name it with --engine or FN_DOCKER_HOST, like {DEFAULT_ENGINE}"
        return Check("fail", ENGINE_CHECK, str(error), todo)
    if isinstance(error, FileNotFoundError):
        todo = "sudo systemctl start docker" if has_daemon else INSTALL
        return Check("fail", ENGINE_CHECK, f"{url} does not exist", todo)
    if isinstance(error, PermissionError):
        todo = "sudo usermod -aG docker $USER, then log in again"
        return Check("fail", ENGINE_CHECK, f"this user has no access to {url}", todo)
    if isinstance(error, ConnectionRefusedError):
        todo = "sudo systemctl restart docker" if local else "start it there, or correct --engine"
        return Check("fail", ENGINE_CHECK, f"nothing listens on {url}", todo)
    if isinstance(error, TimeoutError):
        todo = "see its log: sudo journalctl -u docker -n 50"
        return Check("fail", ENGINE_CHECK, f"{url} does not answer within {ANSWER_S:g} s", todo)
    todo = "see its log: sudo journalctl -u docker -n 50"
    return Check("fail", ENGINE_CHECK, f"{url}: {str(error) or type(error).__name__}", todo)


def _connect(url: str) -> None:
    """Connect and ping. docker-py distinguishes the reasons of a failure only in its texts.

    Raises OSError, or ValueError for an invalid address.
    """
    parts = urlsplit(url)
    if parts.scheme == "unix" and parts.path:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(ANSWER_S)
            probe.connect(parts.path)
            _ping(probe)
    elif parts.scheme == "tcp" and parts.hostname:
        address = (parts.hostname, parts.port or TCP_PORT)
        with socket.create_connection(address, ANSWER_S) as probe:
            _ping(probe)
    else:
        raise ValueError(f"--engine: expected unix:///PATH or tcp://HOST:PORT, got {url!r}")


def _ping(probe: socket.socket) -> None:
    """Wait for an answer: a hanging engine still accepts connections."""
    probe.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
    if not probe.recv(1):
        raise ConnectionResetError("the engine closed the connection without an answer")


def _replicas(client: Any) -> tuple[int, ...]:
    """Return the process ids of some replicas, of any server."""
    from pool_manager.drivers.docker import containers
    from pool_manager.drivers.docker.spec import REPLICA

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


def docker_checks(
    url: str, is_chosen: bool, tags: Mapping[str, str], found: engine_checks.Driver
) -> list[Check]:
    """Return the checks of the engine at `url`; none if it is not chosen and does not exist.

    `tags` are the runtime images by kind; "gpu" is checked only if `found`, the NVIDIA driver of
    this machine, has GPUs. Unless Docker is
    the driver (`is_chosen`), failures are only warnings.
    """
    if not is_chosen and not has_socket(url):
        return []
    needed = {kind: tag for kind, tag in tags.items() if kind != "gpu" or found.gpus}
    facts = query_engine(url, list(needed.values()))
    if isinstance(facts, Check):
        checks = [facts]
    else:
        checks = [*_engine(facts), *_gpu(facts, found), *_images(facts, needed)]
        checks += machine.system_calls(facts.pids) if facts.is_local else []
        if "gpu" in needed and facts.images.get(needed["gpu"]) is not None:
            checks += gpu_libraries.container_checks(url, needed["gpu"])
    return checks if is_chosen else softened(checks)


def _engine(facts: EngineFacts) -> list[Check]:
    from docker.constants import DEFAULT_DOCKER_API_VERSION

    major, _, minor = DEFAULT_DOCKER_API_VERSION.partition(".")
    return [
        Check("ok", ENGINE_CHECK, f"{facts.url} answers"),
        engine_checks.api(facts.version, (int(major), int(minor))),
        engine_checks.live_restore(facts.info),
        engine_checks.init(facts.info),
        engine_checks.storage(facts.info, _free(facts)),
        engine_checks.uids(facts.info),
        engine_checks.seccomp(facts.info),
    ]


def _gpu(facts: EngineFacts, found: engine_checks.Driver) -> list[Check]:
    """Check that containers get the GPUs of this machine; those of a remote engine are unknown."""
    if facts.is_local and not found.gpus:
        return []
    toolkit = engine_checks.find_toolkit() if facts.is_local else engine_checks.Toolkit()
    ways = [
        engine_checks.containers(facts.info, toolkit),
        engine_checks.reload(facts.info, toolkit),
    ]
    return ways if facts.is_local else softened(ways)


def _images(facts: EngineFacts, tags: Mapping[str, str]) -> list[Check]:
    source = expected_source()
    return [image(kind, tag, facts.images.get(tag), source) for kind, tag in tags.items()]


def _free(facts: EngineFacts) -> int | None:
    root = facts.info.get("DockerRootDir")
    if not facts.is_local or not root:
        return None
    try:
        return shutil.disk_usage(Path(root)).free
    except OSError:
        return None


def image(kind: str, tag: str, inspected: dict[str, Any] | None, source: str) -> Check:
    """Check that the image for replicas of a kind (cpu or gpu) exists and matches this fngate.

    `inspected` is the engine's answer for `tag`, or None; `source` is the digest of the sources, ""
    if unknown.
    """
    name, todo = f"{kind} image", f"fnctl image build {kind}"
    if inspected is None:
        return Check("fail", name, f"{tag} does not exist", todo)
    labels = (inspected.get("Config") or {}).get("Labels") or {}
    link = labels.get(LINK)
    if link is None:
        found = f"{tag} has no label {LINK}: it was not built by fnctl image build"
        return Check("fail", name, found, todo)
    if link != str(VERSION):
        found = f"{tag} has version {link} of the link protocol, expected {VERSION}"
        return Check("fail", name, found, todo)
    built = str(labels.get(SOURCE_LABEL) or "")
    if source and built != source:
        found = f"{tag} was built from other sources ({_short(built) or 'unknown'})"
        return Check("warn", name, f"{found}, expected {_short(source)}", todo)
    return Check("ok", name, f"{tag}, link {link}, {str(inspected.get('Id', ''))[:19]}")


def expected_source() -> str:
    """Return the digest of the runtime's sources, the image's label; "" if unknown."""
    from admin.image.context import own_digest

    try:
        return own_digest()
    except (FnError, OSError):
        return ""


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:SHOWN]
