"""Reads deploy requests and their files: small requests at once, the rest in a thread, in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from admin.deploy.plan import Asked, read_request
from admin.deploy.turns import Turns
from admin.documents.requests import DeployRequest

T = TypeVar("T")
SMALL_TEXT: Final = 4096
"""Max characters of a manifest, and of overrides as JSON, that are read at once, in some 4 ms."""
SMALL_FILES: Final = 64


class RequestReader:
    """Runs `read_request` and checks of files apart from the event loop, parties in turn. Several
    at once would delay the loop: each takes the interpreter for 5 ms before the loop has its
    turn."""

    def __init__(self) -> None:
        self._turns = Turns("deploy requests are being read", 1)

    async def read(self, party: str, name: str, request: DeployRequest) -> Asked:
        """Return the content of a request. Raises what `read_request` raises."""
        if _is_small(request):
            return read_request(name, request)
        return await self.run(party, lambda: read_request(name, request))

    async def run(self, party: str, work: Callable[[], T]) -> T:
        """Return what `work` returns, in a thread, when it is the party's turn."""
        async with self._turns.turn(party):
            return await asyncio.to_thread(work)


def _is_small(request: DeployRequest) -> bool:
    return (
        len(request.files) <= SMALL_FILES
        and len(request.manifest or "") <= SMALL_TEXT
        and len(msgspec.json.encode(request.overrides)) <= SMALL_TEXT
    )
