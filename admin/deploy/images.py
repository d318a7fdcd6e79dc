"""Images of servers: found or pulled by deploys, and pinned as long as a revision needs them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import aclosing
from dataclasses import replace
from typing import Final

import structlog

from admin.deploy.image_rules import (
    UNKNOWN_USER,
    ImageRules,
    NamedImages,
    ReservedIds,
    Source,
    check_user,
    user_of,
)
from admin.deploy.operations import Phase
from admin.store import Store
from admin.text import size
from pool_manager.image_names import pinned_by
from pool_manager.images import FoundImage, Images, PullProgress, RemovedImage
from registry.catalog import Deployed
from registry.errors import DriverError, NoRoom, Refused, WrongScope
from registry.model.operations import Operation
from registry.model.revisions import Revision
from registry.model.servers import ServerImage, ServerSettings
from registry.tasks import Tasks

log = structlog.get_logger()

FIND: Final = "image"
PULL: Final = "pull"
"""Phases of a deploy: the engine is asked for the image, and pulls it."""
STEP: Final = 5
"""Percent between two published phases of a pull."""
RETRY_S: Final = 5.0
SHOWN_MAX: Final = 10
"""Max ports of an image that a refusal names."""
NEEDS_DOCKER: Final = "server.image: expected the driver docker, which runs images"


class ImagePins:
    """Pins of the images of all revisions and of running deploys. `images` is None under drivers
    without images."""

    def __init__(self, store: Store, images: Images | None, rules: ImageRules) -> None:
        self._store = store
        self._images = images
        self._rules = rules
        self._tasks = Tasks("images")
        self._tagging = asyncio.Lock()
        """Guards the tags: an image that becomes needed while unneeded ones are untagged would
        lose its pin."""
        self._held: dict[str, str] = {}
        """Ids of the images of running deploys, by operation."""
        self._restoring: dict[str, asyncio.Task[DriverError | None]] = {}
        """Pulls of lost images, by id."""
        self._users: dict[str, str] = {}
        """Users of the images of earlier releases' deploys, by id."""

    async def close(self) -> None:
        """Cancel the pulls that no operation waits for."""
        await self._tasks.close()

    async def source(self, image: ServerImage, scopes: Collection[str]) -> Source:
        """Return where a deploy with these scopes gets an image. Raises WrongScope, and asks the
        engine nothing."""
        built = await asyncio.to_thread(self._rules.built)
        return NamedImages(self._rules.patterns, built).source(image.reference, scopes)

    async def pinned(
        self, server: ServerSettings, operation: Operation, phase: Phase, *, pull: bool = False
    ) -> ServerSettings:
        """Return the settings with their image as the engine has it now, pinned until `release` at
        least, and with the port that it exposes.

        An image that the engine lacks is pulled; with `pull` also one that it has. `phase` gets the
        progress. Raises Refused with the reason, WrongScope if the operation's scopes do not allow
        the image; a cancelled caller cancels the pull.
        """
        image, images = server.image, self._images
        if image is None:
            return server
        if images is None:
            raise Refused(NEEDS_DOCKER)
        source = await self.source(image, operation.scopes)
        try:
            await phase(FIND)
            before = await images.find(source.reference)
            if source.may_pull and (before is None or pull):
                await _pull(images, source.reference, phase)
            found = await self._hold(images, source.reference, operation.id, before)
        except DriverError as error:
            raise Refused(f"server.image: {error.message}") from error
        if source.id not in ("", found.id):
            raise WrongScope(
                f"server.image: expected {image.reference} as fnctl image build made it, got"
                " another image of that name: this needs the scope admin, or build it again"
            )
        pinned = replace(
            server, image=ServerImage(image.reference, found.id, found.digest, found.user)
        )
        # Of what was pinned: a tag may have moved since.
        check_user(pinned, self._reserved(), operation.scopes)
        return replace(pinned, port=server.port or _only_port(found, image.reference))

    async def given(
        self, server: ServerSettings, operation: Operation, known: Deployed | None
    ) -> ServerSettings:
        """Return the settings with their image as the manifest names it, for hosts that pull it
        themselves. `known` is the function as it is deployed, unless its image is to be pulled
        again: the digest by which that has the same image stays. Raises Refused without a port,
        WrongScope if the operation's scopes do not allow the image, or the user that it is to have:
        one that was built here is another one in a registry."""
        image = server.image
        assert image is not None
        source = await self.source(image, operation.scopes)
        if not source.may_pull:
            raise WrongScope(
                f"server.image: expected an image of FN_IMAGES, got {image.reference}, which was"
                " built on the server's machine, while its hosts pull it from a registry: this"
                f" needs the scope admin, the key has {', '.join(operation.scopes)}"
            )
        if server.user:
            check_user(server, self._rules.ids, operation.scopes)
        if not server.port:
            raise Refused(
                f"server.port: expected a port, as the hosts of {image.reference} pull it"
                " themselves, so that it is not looked at; name one: --port N"
            )
        before = known.revision.server.image if known and known.revision.server else None
        is_same = before is not None and (before.reference, before.id) == (image.reference, "")
        digest = before.digest if before is not None and is_same else ""
        digest = pinned_by(source.reference, source.reference) or digest
        return replace(server, image=ServerImage(image.reference, "", digest))

    def _reserved(self) -> ReservedIds:
        is_mapped = self._images is not None and self._images.maps_users
        return replace(self._rules.ids, is_mapped=is_mapped)

    def reserved_user(self, revision: Revision) -> str:
        """Return which reserved user id the server of a revision may have, "" if none, or if it
        runs no image."""
        server = revision.server
        if server is None or server.image is None or not server.image.id:
            return ""
        user = user_of(server)
        user = self._users.get(server.image.id) if user is None else user
        return UNKNOWN_USER if user is None else self._reserved().problem(user)

    async def _learn_users(self, images: Images) -> None:
        """Ask the engine for the users of images that earlier releases have pinned."""
        for one in self._store.catalog.every():
            server = one.revision.server
            if server is None or server.image is None or user_of(server) is not None:
                continue
            id = server.image.id
            if id and id not in self._users and (found := await images.find(id)):
                self._users[id] = found.user

    async def _hold(
        self, images: Images, reference: str, operation: str, before: FoundImage | None
    ) -> FoundImage:
        """Pin an image for an operation, as pulled by it unless it was there `before`; return it.
        Raises DriverError.

        A cancelled caller waits until the engine has answered: a tag that comes later would have
        no owner.
        """
        task = self._tasks.spawn(
            f"pin {reference}", self._tag(images, reference, operation, before)
        )
        try:
            found: FoundImage | DriverError = await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            raise
        if isinstance(found, DriverError):
            raise found
        return found

    async def _tag(
        self, images: Images, reference: str, operation: str, before: FoundImage | None
    ) -> FoundImage | DriverError:
        """As `_hold`, but return the error."""
        try:
            async with self._tagging:
                found = await images.find(reference)
                if found is None:
                    return DriverError(
                        f"the engine has no image {reference} any more: deploy again"
                    )
                self._held[operation] = found.id
                is_pulled = before is None or before.id != found.id
                await images.pin(found.id, is_pulled=is_pulled)
        except DriverError as error:
            return error
        return found

    async def hidden(self, server: ServerSettings) -> list[str]:
        """Return the folders that the image declares as volumes and that no mount covers: whatever
        the image holds there, an empty folder in memory hides it."""
        if server.image is None or self._images is None:
            return []
        found = await self._images.find(server.image.id)
        targets = {mount.target.rstrip("/") for mount in server.mounts}
        volumes = found.volumes if found else ()
        return [one for one in volumes if one.rstrip("/") not in targets]

    def release(self, operation: str) -> None:
        """Hold the image of an ended deploy no longer: from now on only revisions do."""
        self._held.pop(operation, None)

    async def restore(self, deployed: Deployed, seconds: float) -> bool:
        """Pull the image of a revision again if the engine has lost it; wait up to `seconds`.
        Return whether it was lost.

        Raises NoRoom if it takes longer, and then the pull goes on; DriverError, which says what to
        do by hand.
        """
        server, images = deployed.revision.server, self._images
        if server is None or server.image is None or images is None or not server.image.id:
            return False
        image = server.image
        if await images.find(image.id) is not None:
            # Somebody may have pulled it by hand, without its pin.
            await images.pin(image.id)
            return False
        if not image.digest:
            return False
        if image.id not in self._restoring:
            log.info("an image is pulled again", image=image.digest)
            work = self._restored(images, image)
            began = self._tasks.spawn(f"pull {image.digest}", work)
            began.add_done_callback(lambda _: self._restoring.pop(image.id, None))
            self._restoring[image.id] = began
        task = self._restoring[image.id]
        await asyncio.wait([task], timeout=seconds)
        if task.done() and task.cancelled():
            raise DriverError(f"the pull of {image.digest} was cancelled")
        if not task.done():
            raise NoRoom(
                f"the pull of {image.digest} takes more than {seconds:g} s, and goes on",
                retry_after_s=RETRY_S,
            )
        if error := task.result():
            raise error
        return True

    async def _restored(self, images: Images, image: ServerImage) -> DriverError | None:
        """Pull a lost image; return the error, which is then every waiter's."""
        try:
            await _pull(images, image.digest, _unseen)
            async with self._tagging:
                found = await images.find(image.digest)
                if found is None or found.id != image.id:
                    return DriverError(
                        f"{image.digest} has the id {found and found.id}, expected {image.id}: the"
                        " engine stores images in another way than at the deploy; deploy the"
                        " function anew"
                    )
                await images.pin(found.id, is_pulled=True)
        except DriverError as error:
            return error
        return None

    async def sweep(self) -> None:
        """Pin the images that revisions and running deploys need, and no others; cancel pulls of
        others. Never raises: what cannot be done now is done next time."""
        if self._images is None:
            return
        for id in self._restoring.keys() - self._needed():
            self._restoring[id].cancel()
        try:
            async with self._tagging:
                await self._images.unpin_others(self._needed())
            await self._learn_users(self._images)
        except DriverError as error:
            log.warning("unused images stay pinned for now", reason=error.message)

    async def prune(self) -> list[RemovedImage]:
        """Remove the images that deploys have pulled and that nothing needs any more. Raises
        Refused under a driver without images, DriverError."""
        if self._images is None:
            raise Refused(NEEDS_DOCKER)
        async with self._tagging:
            return await self._images.prune(self._needed())

    def _needed(self) -> set[str]:
        servers = (one.revision.server for one in self._store.catalog.every())
        images = (server.image.id for server in servers if server and server.image)
        return {*filter(None, images), *self._held.values()}


async def _unseen(_phase: str) -> None:
    """Publish nothing: no operation follows this pull."""


async def _pull(images: Images, reference: str, phase: Phase) -> None:
    """Pull an image, and publish its progress. Raises DriverError."""
    shown = _Shown()
    await phase(PULL)
    async with aclosing(images.pull(reference)) as pull:
        async for progress in pull:
            if text := shown.next(progress):
                await phase(text)


class _Shown:
    """The phases that a pull publishes: one for each STEP percent."""

    def __init__(self) -> None:
        self._last = ""
        self._percent = -STEP

    def next(self, progress: PullProgress) -> str:
        """Return the phase to publish now, "" for none."""
        if progress.is_waiting:
            return self._changed(f"{PULL} waits for another one")
        if not progress.total_bytes:
            return self._changed(PULL)
        percent = progress.done_bytes * 100 // progress.total_bytes // STEP * STEP
        # The total grows while the engine learns of layers: the share never falls.
        self._percent = max(self._percent, percent)
        if self._percent == percent:
            text = f"{PULL} {percent} % of {size(progress.total_bytes)}"
            is_new = not self._last.startswith(f"{PULL} {percent} %")
            return self._changed(text) if is_new else ""
        return ""

    def _changed(self, text: str) -> str:
        if text == self._last:
            return ""
        self._last = text
        return text


def _only_port(found: FoundImage, reference: str) -> int:
    """Return the port that an image exposes. Raises Refused unless it is exactly one."""
    if len(found.ports) == 1:
        return found.ports[0]
    more = f" and {len(found.ports) - SHOWN_MAX} more" if len(found.ports) > SHOWN_MAX else ""
    ports = ", ".join(map(str, found.ports[:SHOWN_MAX])) + more or "none"
    raise Refused(
        f"server.port: expected a port, as {reference} exposes {ports}; name one: --port N"
    )
