"""Route for the images that deploys have pulled."""

from __future__ import annotations

from dataclasses import asdict

from aiohttp import web

from admin.deploy.deploys import Deploys
from gateway.problems import json_answer


class ImageRoutes:
    """Handler for images of servers."""

    def __init__(self, deploys: Deploys) -> None:
        self._deploys = deploys

    async def prune(self, _request: web.Request) -> web.Response:
        """Remove the images that deploys have pulled and that no function needs any more. Images
        that a container uses stay."""
        removed = [asdict(one) for one in await self._deploys.pins.prune()]
        return json_answer({"removed": removed})
