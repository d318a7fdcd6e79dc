"""What the server of a revision needs from this host before it can be tried: secrets and mounts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

from admin.deploy.plan import Plan, are_images_given
from admin.deploy.upstream_keys import upstream_secret
from admin.store import Store
from pool_manager.host import HostView
from pool_manager.mounts import MountRules
from registry.errors import Conflict, DriverError, Refused, Unknown
from registry.model.revisions import Revision
from registry.model.servers import ServerSettings
from registry.upstream_keys import key_of


class HostNeeds:
    """Checks of this host for deploys and rollbacks. They start nothing."""

    def __init__(
        self, store: Store, mounts: MountRules, hosts: Callable[[], Iterable[HostView]]
    ) -> None:
        """`hosts` returns all hosts as they are now."""
        self._store = store
        self._mounts = mounts
        self._hosts = hosts

    async def check(self, revision: Revision) -> None:
        """Raise Refused if a revision needs a secret that is missing or unreadable, or a mount that
        is not allowed; StoreUnavailable."""
        if revision.server is not None:
            await self._check_secrets(revision.server)
            await self._resolved(revision, revision.server)

    async def resolved(self, draft: Plan) -> Plan:
        """Return the draft with canonical sources of its mounts. Raises as `check`."""
        server = draft.revision.server
        if server is None:
            return draft
        await self._check_secrets(server)
        revision = replace(draft.revision, server=await self._resolved(draft.revision, server))
        return replace(draft, revision=revision)

    async def _check_secrets(self, server: ServerSettings) -> None:
        upstream = upstream_secret(server)
        for key, names in (
            ("server.secrets", set(server.secrets.values())),
            ("openai.upstream_key", {upstream} if upstream else set()),
        ):
            try:
                found = await self._store.secrets.values(names)
            except (Unknown, Conflict) as error:
                raise Refused(f"{key}: {error.message}") from error
            if upstream in found and (problem := key_of(upstream, found[upstream]).problem):
                raise Refused(f"openai.upstream_key: {problem}")

    async def _resolved(self, revision: Revision, server: ServerSettings) -> ServerSettings:
        """Return the settings with canonical sources of mounts. On hosts of a cluster a mount is a
        volume claim by its name, and there is no source."""
        if are_images_given(revision, self._hosts()):
            return server
        try:
            mounts = [
                replace(one, source=await asyncio.to_thread(self._mounts.resolve, one))
                for one in server.mounts
            ]
        except DriverError as error:
            raise Refused(error.message) from error
        return replace(server, mounts=tuple(mounts))
