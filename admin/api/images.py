"""Route for the images that deploys have pulled."""

from __future__ import annotations

from aiohttp import web

from admin.api.answers import json_answer
from admin.deploy.deploys import Deploys
from admin.documents.server import PrunedImages


class ImageRoutes:
    """Handler for images of servers."""

    def __init__(self, deploys: Deploys) -> None:
        self._deploys = deploys

    async def prune(self, _request: web.Request) -> web.Response:
        """Remove the images that deploys have pulled and that no function needs any more. Images
        that a container uses stay."""
        return json_answer(PrunedImages(await self._deploys.pins.prune()))
