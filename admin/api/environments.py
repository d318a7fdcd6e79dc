"""Routes that list, show and remove the environments of Python functions."""

from __future__ import annotations

import msgspec
from aiohttp import web

from admin.api.answers import json_answer
from admin.deploy.environments import EnvironmentView, match
from admin.deploy.python import PythonPackages
from admin.documents.functions import Items
from admin.documents.server import (
    EnvironmentDetail,
    EnvironmentPackage,
    EnvironmentRow,
    PrunedEnvironments,
    RemovedEnvironment,
)
from pool_manager.manager import Manager
from registry.errors import Unknown


class EnvironmentRoutes:
    """Handlers for environments."""

    def __init__(self, manager: Manager, packages: PythonPackages | None) -> None:
        """`packages` is None for a server that has no Python functions."""
        self._manager = manager
        self._packages = packages

    async def list_environments(self, _request: web.Request) -> web.Response:
        """Return every environment: those that are there, being built, and missing ones that a
        revision names."""
        items = [_row(one) for one in await self._views()]
        return json_answer(Items(items, None))

    async def get_environment(self, request: web.Request) -> web.Response:
        """Return an environment with its packages, by the beginning of its id."""
        views = {one.name: one for one in await self._views()}
        return json_answer(_detail(views[match(views, request.match_info["id"])]))

    async def remove_environment(self, request: web.Request) -> web.Response:
        """Remove an environment that no revision with the traffic or with a replica names. Other
        revisions get it again when they get the traffic."""
        id = request.match_info["id"]
        if self._packages is None:
            raise Unknown(f"no environment {id[:80]!r}")
        return json_answer(_removed(await self._packages.remove(id, self._running())))

    async def prune(self, _request: web.Request) -> web.Response:
        """Remove all environments that no revision names."""
        removed = await self._packages.prune() if self._packages is not None else []
        return json_answer(PrunedEnvironments([_removed(one) for one in removed]))

    async def _views(self) -> list[EnvironmentView]:
        return await self._packages.views(self._running()) if self._packages is not None else []

    def _running(self) -> set[str]:
        """Return the keys of the revisions with a replica, also one that is being released."""
        return {one.pool for one in self._manager.replicas()}


def _row(one: EnvironmentView) -> EnvironmentRow:
    found = one.found
    return EnvironmentRow(
        id=one.name,
        state=one.state,
        python=one.lock.python,
        package_count=len(one.lock.packages),
        size_bytes=found.own + found.shared if found else None,
        own_bytes=found.own if found else None,
        functions=one.naming.revisions,
        live=one.naming.live,
        started_s=found.started_s if found else None,
        needed_s=found.used_s if found else None,
    )


def _detail(one: EnvironmentView) -> EnvironmentDetail:
    return EnvironmentDetail(
        **msgspec.structs.asdict(_row(one)),
        interpreter=one.found.built_with if one.found else "",
        platform=one.lock.platform,
        libc=one.lock.libc,
        files=one.found.files if one.found else None,
        packages=[
            EnvironmentPackage(each.name, each.version, each.size, each.bundled)
            for each in one.lock.packages
        ],
    )


def _removed(one: EnvironmentView) -> RemovedEnvironment:
    own_bytes = one.found.own if one.found else 0
    return RemovedEnvironment(one.name, own_bytes, one.naming.revisions)
