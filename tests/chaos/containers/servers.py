"""Servers whose replicas are containers: how they start, what they may complain of and leave."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path

from tests.chaos import footprint
from tests.support.own_engine import OwnEngine
from tests.support.process_server import ServerProcess, server_process

PING_S = 1.0
EXCUSED = ("the engine does not answer", "a replica cannot be released")
"""What a log may complain of: the engine was away."""


def container_server(
    data: Path, engine: OwnEngine, image: str, slots: int
) -> AbstractContextManager[ServerProcess]:
    """A running server over `data`, whose replicas have that image on that engine."""
    environment = {
        **footprint.PROBE,
        "FN_DRIVER": "docker",
        "FN_DOCKER_HOST": engine.url,
        "FN_IMAGE_CPU": image,
        "FN_PING_S": str(PING_S),
    }
    return server_process(data, "--cpu-slots", str(slots), environment=environment)


def complaints(server: ServerProcess) -> list[str]:
    """What its log complains of, but for the engine's absence."""
    return [line.rstrip() for line in server.complaints if not _is_excused(line)]


def _is_excused(line: str) -> bool:
    return line.startswith("{") and json.loads(line)["event"] in EXCUSED


def leftovers(server: ServerProcess) -> list[str]:
    """Folders of replicas that are gone."""
    places = (server.data / "replicas", server.data / "run")
    return [str(path) for place in places if place.exists() for path in place.iterdir()]
