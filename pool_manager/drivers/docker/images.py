"""Images of the engine: inspection, pins, pulls one at a time, prunes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from typing import Any, Final

import docker
from docker.errors import APIError, NotFound

from pool_manager.drivers.docker.engine import ENGINE_ERRORS, Engine, is_conflict, is_gone
from pool_manager.drivers.docker.pulls import SILENT_S, pull
from pool_manager.image_names import PINNED, PULLED, Reference
from pool_manager.images import FoundImage, PullProgress, RemovedImage
from registry.errors import DriverError

CONFIG_MAX: Final = 1024 * 1024
"""Max characters of an image's configuration. The engine repeats parts of it, such as labels, in
each list and event of containers."""
PORTS_MAX: Final = 100
"""Max ports of an image that are remembered."""
PORT_MAX: Final = 65535
_PORT: Final = re.compile(r"([1-9][0-9]{0,4})(?:/tcp)?")
_ID: Final = "sha256:"


class DockerImages:
    """Images of the engine at `url`. `owner` is the name of this server in its tags.

    `Engine` makes the short calls; pulls have a connection of their own.
    """

    def __init__(
        self,
        engine: Engine,
        url: str,
        owner: str,
        *,
        maps_users: bool = False,
        silent_s: float = SILENT_S,
    ) -> None:
        self.maps_users = maps_users
        self._engine = engine
        self._socket = url.removeprefix("unix://")
        self._owner = owner
        self._silent_s = silent_s
        self._pulling = asyncio.Lock()

    async def find(self, reference: str) -> FoundImage | None:
        """Return an image by reference or id, None if the engine lacks it."""
        return await self._engine.call(f"use image {reference}", lambda c: _find(c, reference))

    async def pull(self, reference: str) -> AsyncGenerator[PullProgress, None]:
        """Pull an image; the progress changes with each layer's."""
        if self._pulling.locked():
            yield PullProgress(is_waiting=True)
        async with (
            self._pulling,
            aclosing(pull(self._socket, reference, silent_s=self._silent_s)) as running,
        ):
            async for progress in running:
                yield progress

    async def pin(self, id: str, *, is_pulled: bool = False) -> None:
        """Tag an image for this server."""
        tag = f"{id.removeprefix(_ID)}.{self._owner}"
        names = (PINNED, PULLED) if is_pulled else (PINNED,)

        def work(client: docker.APIClient) -> None:
            for name in names:
                client.tag(id, name, tag)

        await self._engine.call("tag an image", work)

    async def pinned(self) -> frozenset[str]:
        """Return the ids of the images that this server has pinned."""
        found = await self._engine.call("list images", lambda c: self._own(c, PINNED))
        return frozenset(id for id, _ in found)

    async def unpin_others(self, ids: Collection[str]) -> None:
        """Remove this server's pins from all images except those with these ids. One of these that
        was removed by hand and pulled again gets its pin again."""
        keep = set(ids)

        def work(client: docker.APIClient) -> None:
            pinned = self._own(client, PINNED)
            for id, name in pinned:
                if id not in keep:
                    _untag(client, name)
            for id in keep.difference(id for id, _ in pinned):
                with contextlib.suppress(NotFound):
                    client.tag(id, PINNED, f"{id.removeprefix(_ID)}.{self._owner}")

        await self._engine.call("remove tags of images", work)

    async def prune(self, ids: Collection[str]) -> list[RemovedImage]:
        """Remove images that deploys have pulled, with the names of their registries. Images that
        a container or another server needs keep all of their names."""
        keep = set(ids)

        def work(client: docker.APIClient) -> list[RemovedImage]:
            keep.update(id for id, _, _ in _tags(client, PINNED))
            keep.update(str(one["ImageID"]) for one in client.containers(all=True))
            found = []
            for id, name in self._own(client, PULLED):
                inspected = _inspect(client, id) if id not in keep else None
                if inspected is not None and (gone := _remove(client, inspected, name)):
                    found.append(gone)
            return found

        await self.unpin_others(ids)
        return await self._engine.call("remove images", work)

    def _own(self, client: docker.APIClient, repository: str) -> list[tuple[str, str]]:
        """Return id and name of the tags of this server. Blocking."""
        return [(id, tag) for id, owner, tag in _tags(client, repository) if owner == self._owner]


def _tags(client: docker.APIClient, repository: str) -> list[tuple[str, str, str]]:
    """Return image id, owner and name of the tags of all servers in PINNED or PULLED. Blocking."""
    names = [tag for one in client.images(name=repository) for tag in one.get("RepoTags") or ()]
    found = []
    for tag in names:
        id, _, owner = tag.removeprefix(f"{repository}:").partition(".")
        if tag.startswith(f"{repository}:") and owner:
            found.append((_ID + id, owner, tag))
    return found


def _find(client: docker.APIClient, reference: str) -> FoundImage | None:
    found = _inspect(client, reference)
    return found_image(found, reference) if found is not None else None


def found_image(inspected: dict[str, Any], reference: str) -> FoundImage:
    """Return an image from the answer of GET /images/NAME/json, with the digest of the reference's
    repository. Raises DriverError for an image whose configuration is too large."""
    config = inspected.get("Config") or {}
    if (length := len(json.dumps(config))) > CONFIG_MAX:
        raise DriverError(
            f"the configuration of {reference} has {length} characters (labels, variables, ports),"
            f" expected at most {CONFIG_MAX}"
        )
    exposed = map(_PORT.fullmatch, config.get("ExposedPorts") or {})
    tcp = sorted(port for one in exposed if one and (port := int(one[1])) <= PORT_MAX)
    return FoundImage(
        str(inspected["Id"]),
        _digest(list(inspected.get("RepoDigests") or ()), reference),
        tuple(tcp[:PORTS_MAX]),
        tuple(sorted(config.get("Volumes") or {})),
        int(inspected.get("Size") or 0),
        str(config.get("User") or ""),
    )


def _digest(digests: list[str], reference: str) -> str:
    """Return the digest under which a registry has the image: the reference's own, else one of its
    repository."""
    repository, version = Reference.parse(reference)
    if version.startswith(_ID):
        return f"{repository}@{version}"
    if reference.startswith(_ID):
        return digests[0] if digests else ""
    wanted = Reference.parse(reference).resolved()
    return next((one for one in digests if Reference.parse(one).resolved() == wanted), "")


def _inspect(client: docker.APIClient, reference: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = client.inspect_image(reference)
    except APIError as error:
        if is_gone(error):
            return None
        raise
    return found


def _untag(client: docker.APIClient, name: str) -> bool:
    """Remove one name of an image; False if a container needs it, or if it is gone."""
    try:
        client.remove_image(name)
    except ENGINE_ERRORS as error:
        if is_conflict(error) or is_gone(error):
            return False
        raise
    return True


def _remove(
    client: docker.APIClient, inspected: dict[str, Any], pulled: str
) -> RemovedImage | None:
    """Remove the names that an image has from registries, and with the last one the image; None if
    the image stays: a container uses it, or it has other names."""
    digests = list(inspected.get("RepoDigests") or ())
    tags = list(inspected.get("RepoTags") or ())
    registries = {one.partition("@")[0] for one in digests}
    names = [one for one in tags if Reference.parse(one).repository in registries]
    for name in (*names, *digests, pulled):
        _untag(client, name)
    if _inspect(client, inspected["Id"]) is not None:
        return None
    return RemovedImage(str(inspected["Id"]), tuple(names or digests), int(inspected["Size"]))
