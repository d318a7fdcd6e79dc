"""Creates and starts one container, or leaves nothing. All of it blocks."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import docker

from pool_manager.drivers.docker import shape
from pool_manager.drivers.docker.containers import remove
from pool_manager.drivers.docker.failures import (
    ENGINE_ERRORS,
    is_conflict,
    is_gone,
    is_no_way,
    translate,
)
from pool_manager.drivers.docker.gpu import Way
from registry.errors import DriverError


@dataclass(frozen=True, slots=True)
class Start:
    """What is to be started. `holder` is the container whose network it joins, `gpu` the UUID it
    sees, to be asked for in one of `ways`, the first that the engine knows."""

    name: str
    config: dict[str, Any]
    holder: str | None
    gpu: str
    ways: Sequence[Way]


@dataclass(frozen=True, slots=True)
class Started:
    """A container that runs; `way` is how its GPU was asked for."""

    container: str
    way: Way | None


def begin(client: docker.APIClient, start: Start) -> Started:
    """Raises DriverError; nothing is left then, unless the engine went away."""
    if not start.gpu:
        return Started(_in_network(client, start, start.config), None)
    refused: list[str] = []
    for way in start.ways:
        try:
            return Started(_in_network(client, start, way(start.config, start.gpu)), way)
        except DriverError as error:
            if not is_no_way(error):
                raise
            refused.append(error.message)
    raise DriverError(f"GPU {start.gpu} cannot be had: {'; '.join(refused)}")


def _in_network(client: docker.APIClient, start: Start, config: dict[str, Any]) -> str:
    """In the holder's network if it still runs, else in one of its own."""
    if start.holder is not None:
        with contextlib.suppress(_HolderEnded):
            return _start(client, start.name, shape.join(config, start.holder), is_joining=True)
    return _start(client, start.name, config)


class _HolderEnded(Exception):
    """The network to join is not there any more."""


def _start(
    client: docker.APIClient, name: str, config: dict[str, Any], *, is_joining: bool = False
) -> str:
    container: str = ""
    try:
        container = client.create_container_from_config(config, name)["Id"]
        client.start(container)
    except ENGINE_ERRORS as error:
        if container:
            with contextlib.suppress(DriverError, *ENGINE_ERRORS):
                remove(client, container)
        if is_joining and (is_conflict(error) or is_gone(error)):
            raise _HolderEnded from error
        raise translate(error, "start a container") from error
    return container
