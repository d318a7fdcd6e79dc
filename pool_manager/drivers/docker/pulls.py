"""Pulls of images: a request over the engine's socket whose answer is a stream of JSON lines
(Docker Engine API, "Create an image").

It runs on the event loop, so that a cancelled deploy closes the stream, which makes the engine give
up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, UnixConnector

from pool_manager.drivers.docker.credentials import registry_header
from pool_manager.drivers.docker.engine import RESTART
from pool_manager.image_names import Reference
from pool_manager.images import PullProgress
from registry.errors import DriverError, EngineDown

SILENT_S: Final = 60.0
"""Max seconds of a pull without progress."""
CONNECT_S: Final = 10.0
LAYERS_MAX: Final = 10_000
"""Max layers of an image whose progress is followed."""
LINE_MAX: Final = 1024 * 1024
"""Max bytes of one line of a pull's answer."""
REFUSAL_MAX: Final = 64 * 1024
OK: Final = 200
_ENDED: Final = ("Download complete", "Already exists", "Pull complete", "Extracting")
_SAID: Final = (
    ("no basic auth credentials", "{login}"),
    ("unauthorized", "{login}"),
    ("denied", "{login}"),
    ("manifest unknown", "check the image's name and tag"),
    ("not found", "check the image's name and tag"),
    ("no matching manifest", "the image is not built for this machine's processor"),
    ("connection refused", "the engine must reach the registry {registry}"),
    ("lookup ", "the engine must reach the registry {registry}"),
    ("timeout", "the engine must reach the registry {registry}"),
    ("deadline exceeded", "the engine must reach the registry {registry}"),
    ("server gave http response", "list {registry} in the engine's insecure-registries"),
    ("no space left", "free disk space: docker system prune, fnctl image prune"),
    ("eof", "the registry {registry} broke off: try again later"),
    ("connection reset", "the registry {registry} broke off: try again later"),
    ("toomanyrequests", "try again later, or {login}"),
    ("certificate", "the engine must trust the certificate of {registry}"),
)
"""Substrings of the engine's messages about a pull, in lower case, and the remedy."""


async def pull(
    socket: str, reference: str, *, silent_s: float = SILENT_S
) -> AsyncGenerator[PullProgress, None]:
    """Pull an image by the engine at the Unix socket `socket`; yields at each progress.

    The credentials are those that the docker config of this user has for the registry. Closing the
    generator cancels the pull. Raises DriverError with a remedy, also after `silent_s` without
    progress, or EngineDown.
    """
    registry, _ = Reference.parse(reference).resolved()
    try:
        header = await registry_header(registry)
    except DriverError as error:
        raise DriverError(
            f"cannot pull {reference}: the credentials for {registry}: {error.message}"
        ) from None
    limits = ClientTimeout(total=None, sock_connect=CONNECT_S)
    async with (
        ClientSession(connector=UnixConnector(path=socket), timeout=limits) as session,
        aclosing(_stream(session, reference, header, silent_s)) as stream,
    ):
        async for progress in stream:
            yield progress


async def _stream(
    session: ClientSession, reference: str, header: dict[str, str], silent_s: float
) -> AsyncGenerator[PullProgress, None]:
    repository, version = Reference.parse(reference)
    query = {"fromImage": repository, "tag": version}
    progress = _Layers()
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + silent_s
    try:
        async with asyncio.timeout_at(deadline_s):
            response = await session.post(
                "http://engine/images/create", params=query, headers=header
            )
        async with response:
            if response.status != OK:
                raise _refusal(reference, await _message(response))
            lines = _Lines()
            while True:
                async with asyncio.timeout_at(deadline_s):
                    piece = await response.content.readany()
                if not piece:
                    break
                is_new = False
                for event in lines.feed(piece):
                    if "error" in event:
                        raise _refusal(reference, _error_of(event))
                    is_new |= progress.note(event)
                if is_new:
                    deadline_s = loop.time() + silent_s
                    yield progress.state()
    except TimeoutError:
        raise DriverError(
            f"cannot pull {reference}: no progress in {silent_s:g} s; try again later, or"
            f" pull it by hand: docker pull {reference}"
        ) from None
    except (ClientError, OSError) as error:
        raise EngineDown(f"cannot pull {reference}: {error}; {RESTART}") from error


def _refusal(reference: str, said: str) -> DriverError:
    """Return the error for a pull that the engine refused, with the remedy."""
    name = Reference.parse(reference)
    registry, _ = name.resolved()
    login = f"log in on this machine, as the user that runs fngate: docker login {registry}"
    text = said.lower().replace(name.repository, "")
    todo = next((remedy for part, remedy in _SAID if part in text), "")
    shown = todo.format(login=login, registry=registry)
    return DriverError(
        f"cannot pull {reference}: the engine says: {said[:500]}{'; ' if shown else ''}{shown}"
    )


async def _message(response: ClientResponse) -> str:
    """Return the engine's message in a refusal."""
    body = await response.content.read(REFUSAL_MAX)
    try:
        return str(msgspec.json.decode(body)["message"])
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        return f"status {response.status}"


def _error_of(event: dict[str, Any]) -> str:
    detail = event.get("errorDetail")
    said = detail.get("message") if isinstance(detail, dict) else ""
    return str(said or event["error"])


@dataclass(slots=True)
class _Lines:
    """Splits a stream into JSON objects, one a line."""

    rest: bytes = b""

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        """Return the objects that `piece` completes. Raises DriverError for anything else."""
        *lines, self.rest = (self.rest + piece).split(b"\n")
        if len(self.rest) > LINE_MAX:
            raise DriverError("cannot pull: the engine's answer has a line without end")
        try:
            found = [msgspec.json.decode(line) for line in lines if line.strip()]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DriverError(f"cannot pull: the engine's answer is no JSON: {error}") from error
        return [one for one in found if isinstance(one, dict)]


@dataclass(slots=True)
class _Layers:
    """Progress of a pull's layers."""

    seen: dict[str, tuple[str, int]] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)

    def note(self, event: dict[str, Any]) -> bool:
        """Record an event; return whether it shows progress."""
        id, status = str(event.get("id", "")), str(event.get("status", ""))
        detail = event.get("progressDetail") or {}
        current, total = detail.get("current"), detail.get("total")
        current = current if isinstance(current, int) else 0
        is_known = id in self.totals or len(self.totals) < LAYERS_MAX
        if status == "Downloading" and isinstance(total, int) and total > 0 and is_known:
            self.totals[id] = total
            self.done[id] = min(current, total)
        elif status in _ENDED and id in self.totals:
            self.done[id] = self.totals[id]
        is_new = self.seen.get(id) != (status, current)
        if len(self.seen) < LAYERS_MAX or id in self.seen:
            self.seen[id] = (status, current)
        return is_new

    def state(self) -> PullProgress:
        """Return the sum over all layers."""
        return PullProgress(sum(self.done.values()), sum(self.totals.values()))
