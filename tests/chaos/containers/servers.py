"""Servers whose replicas are containers: start, log checks and leftovers."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path

from tests.chaos import footprint
from tests.support.own_engine import OwnEngine
from tests.support.process_server import ServerProcess, server_process

PING_S = 1.0
EXCUSED = ("the engine does not answer", "a replica cannot be released")
"""Log events that are expected while the engine is away."""


def container_server(
    data: Path, engine: OwnEngine, image: str, slots: int
) -> AbstractContextManager[ServerProcess]:
    """Return a server over `data` whose replicas run this image on this engine."""
    environment = {
        **footprint.PROBE,
        "FN_DRIVER": "docker",
        "FN_DOCKER_HOST": engine.url,
        "FN_IMAGE_CPU": image,
        "FN_PING_S": str(PING_S),
    }
    return server_process(data, "--cpu-slots", str(slots), environment=environment)


def complaints(server: ServerProcess) -> list[str]:
    """Return the errors in the server's log, except those expected while the engine is away."""
    return [line.rstrip() for line in server.complaints if not _is_excused(line)]


def _is_excused(line: str) -> bool:
    return line.startswith("{") and json.loads(line)["event"] in EXCUSED


def leftovers(server: ServerProcess) -> list[str]:
    """Return the replica folders that the server left behind."""
    places = (server.data / "replicas", server.data / "run")
    return [str(path) for place in places if place.exists() for path in place.iterdir()]
