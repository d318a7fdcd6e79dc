"""Port of drivers whose replicas run container images that deploys name."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pool_manager.ports import ServerContainer


@dataclass(frozen=True, slots=True)
class FoundImage:
    """An image that the engine has.

    `id` is the engine's id of it, `digest` the registry's "REPOSITORY@sha256:...", "" for an image
    that no registry has. `ports` are its exposed TCP ports, `volumes` the folders that it declares
    as volumes, `user` its USER, "" if it names none.
    """

    id: str
    digest: str = ""
    ports: tuple[int, ...] = ()
    volumes: tuple[str, ...] = ()
    size_bytes: int = 0
    user: str = ""


@dataclass(frozen=True, slots=True)
class PullProgress:
    """Progress of a pull. `is_waiting`: another pull runs. `total_bytes` grows as the engine learns
    of layers."""

    done_bytes: int = 0
    total_bytes: int = 0
    is_waiting: bool = False


@dataclass(frozen=True, slots=True)
class RemovedImage:
    """An image that a prune removed, by its former names."""

    id: str
    names: tuple[str, ...]
    size_bytes: int


class Images(Protocol):
    """Images of one engine. Methods raise DriverError, or EngineDown if the engine does not
    answer. An image that is *pinned* has a tag of this server's own."""

    @property
    def maps_users(self) -> bool:
        """Whether user id 0 of a container is another one on each machine (userns-remap)."""

    async def find(self, reference: str) -> FoundImage | None:
        """Return an image by reference or id, None if the engine lacks it."""

    def pull(self, reference: str) -> AsyncGenerator[PullProgress, None]:
        """Pull an image, one pull at a time; yields at each change of the progress. Closing the
        generator cancels the pull."""

    async def pin(self, id: str, *, is_pulled: bool = False) -> None:
        """Keep an image from being pruned. `is_pulled`: a deploy has pulled it, so that `prune` may
        remove it later."""

    async def pinned(self) -> frozenset[str]:
        """Return the ids of the images that this server has pinned."""

    async def unpin_others(self, ids: Collection[str]) -> None:
        """Remove this server's pins from all images except those with these ids, which get theirs
        again if they have lost it."""

    async def prune(self, ids: Collection[str]) -> list[RemovedImage]:
        """Remove the images that deploys have pulled, except those with these ids and those that a
        container uses."""


def missing_image(function: str, container: ServerContainer) -> str:
    """Return what to do about a pinned image that the engine has lost."""
    if container.digest:
        return (
            f"its image {container.digest} is not on this machine any more; pull it: docker pull"
            f" {container.digest}, or fnctl warm {function}"
        )
    return (
        f"its image {container.reference} was built on this machine and is gone; build it again and"
        f" deploy {function} anew"
    )
