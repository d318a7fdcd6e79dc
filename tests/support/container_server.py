"""Whole servers over containers, and the engine's view of their containers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any

import docker

from pool_manager.drivers.docker.spec import HOLDER, OWNER, owner_name
from pool_manager.drivers.environment import MODEL_TARGET
from pool_manager.image_names import PINNED, PULLED
from tests.support.engine import connected
from tests.support.process_server import FNCTL, ServerProcess

UNTIL_S = 90.0
LOOK_S = 0.05


class ContainerServer(ServerProcess):
    """`fnctl serve --driver docker` and the engine's view of its containers.

    `name`: the owner label of this data folder's containers. `image`: the runtime image.
    """

    def __init__(
        self,
        data: Path,
        url: str,
        image: str,
        *,
        program: Sequence[str] = (FNCTL,),
        **environment: str,
    ) -> None:
        variables = {"FN_DRIVER": "docker", "FN_DOCKER_HOST": url, "FN_IMAGE_CPU": image}
        super().__init__(data, environment={**variables, **environment}, program=program)
        self._engine = url
        self.image = image
        self.name = owner_name(data)

    def everything(self) -> list[dict[str, Any]]:
        """Return all remaining containers in any state, as `docker inspect` shows them."""
        found = []
        filters = {"label": f"{OWNER}={self.name}"}
        with connected(self._engine) as client:
            for listed in client.api.containers(all=True, filters=filters):
                with suppress(docker.errors.NotFound):
                    found.append(client.api.inspect_container(listed["Id"]))
        return found

    def containers(self, function: str = "") -> dict[str, dict[str, Any]]:
        """Return replica containers by name: all, or those of one function ("standby" =
        unassigned)."""
        found = {
            one["Name"].removeprefix("/"): one
            for one in self.everything()
            if HOLDER not in one["Config"]["Labels"]
        }
        return {n: one for n, one in found.items() if n.startswith(f"fngate-{function}")}

    def run(self, container: dict[str, Any], *command: str) -> str:
        """Run a command in a container as the container's user; return its output."""
        with connected(self._engine) as client:
            made = client.api.exec_create(container["Id"], list(command))
            output: bytes = client.api.exec_start(made["Id"])
        return output.decode()

    def models(self, container: dict[str, Any]) -> list[str]:
        """Return the file names in its model folder."""
        return sorted(self.run(container, "ls", "-A", MODEL_TARGET).split())

    def remove_all(self) -> None:
        """Remove what a killed server left on the engine, and the tags of its images: it keeps
        those of its functions, since it does not know that its folder goes."""
        with connected(self._engine) as client:
            for one in self.everything():
                with suppress(docker.errors.APIError):
                    client.api.remove_container(one["Id"], force=True, v=True)
            for listed in (*client.api.images(PINNED), *client.api.images(PULLED)):
                for tag in listed["RepoTags"] or ():
                    if tag.endswith(f".{self.name}"):
                        with suppress(docker.errors.APIError):
                            client.api.remove_image(tag, noprune=True)


@contextmanager
def container_server(
    data: Path, url: str, image: str, *, program: Sequence[str] = (FNCTL,), **environment: str
) -> Iterator[ContainerServer]:
    """Start a server over containers. After the block the server and its containers are gone."""
    server = ContainerServer(data, url, image, program=program, **environment)
    try:
        server.start()
        yield server
    finally:
        try:
            if server.process is not None:
                server.stop()
        finally:
            server.remove_all()


def until(condition: Callable[[], bool], what: str) -> None:
    """Poll a condition that no event reports; fail with `what` after the timeout."""
    end, pause = time.monotonic() + UNTIL_S, Event()
    while not condition():
        assert time.monotonic() < end, what
        pause.wait(LOOK_S)
