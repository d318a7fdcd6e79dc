"""Images on another host: sent by this server's engine, as the engine API streams them
(Docker Engine API, "Export an image", "Import images").

Both engines are asked on the event loop, so that a transfer that is given up closes its streams.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final
from urllib.parse import quote

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout, UnixConnector

from pool_manager.hosts.transfers import Progress
from pool_manager.image_names import PINNED
from registry.errors import DriverError, EngineDown

RUNTIME: Final = "fngate/runtime"
"""Repository of the tags of runtime images that this server has sent: KIND.OWNER."""
PACK_S: Final = 600.0
"""Max seconds until the first byte of an image: its engine writes all layers to a file before."""
SILENT_S: Final = 60.0
"""Max seconds of a transfer in which nothing moves; the other engine unpacks at the end."""
UNPACK_S: Final = 600.0
"""Max seconds from the last byte of an image to its import."""
CALL_S: Final = 30.0
CONNECT_S: Final = 10.0
PIECE: Final = 64 * 1024
SAID_MAX: Final = 500
OK: Final = 200
CREATED: Final = 201
NOT_FOUND: Final = 404


class HostImages:
    """Sends images of the engine at `source` to that of a host at `target`, one at a time."""

    def __init__(self, host: str, source: str, target: str, owner: str) -> None:
        self._host = host
        self._source, self._target = source, target
        self._owner = owner
        self._lock = asyncio.Lock()

    async def provide_runtime(self, kind: str, reference: str, progress: Progress) -> str:
        """Return the id of a runtime image on the host; it is sent if it is missing there. Without
        such an image on this machine, that of the host is used. Raises DriverError."""
        try:
            own = await self._inspect_own(reference)
            lack = f"the engine of this machine has no image {reference}"
        except DriverError as error:
            own, lack = None, error.message
        if own is None:
            there = await self._inspect(self._target, reference)
            if there is None:
                target = "gpu" if kind == "cuda" else kind
                raise DriverError(
                    f"host {self._host} lacks the runtime image {reference}, and this server has"
                    f" none to send: {lack}; build it on this machine: fnctl image build {target}"
                )
            return str(there["Id"])
        id = str(own["Id"])
        await self.send(id, progress)
        tag = f"{kind}.{self._owner}"
        former = await self._inspect(self._target, f"{RUNTIME}:{tag}")
        if former is None or former["Id"] != id:
            await self._tag(id, RUNTIME, tag)
        if former is not None and former["Id"] != id:
            await self._remove(str(former["Id"]))
        return id

    async def has_runtime(self, reference: str) -> bool:
        """Return whether the host has the runtime image that this machine would send."""
        try:
            own = await self._inspect_own(reference)
        except DriverError:
            own = None
        return await self.has(str(own["Id"]) if own is not None else reference)

    async def pin(self, id: str) -> None:
        """Pin an image that the host has. Raises DriverError."""
        await self._tag(id, PINNED, f"{id.removeprefix('sha256:')}.{self._owner}")

    async def has(self, id: str) -> bool:
        """Return whether the host has an image. Raises DriverError."""
        return await self._inspect(self._target, id) is not None

    async def send(self, id: str, progress: Progress) -> None:
        """Send an image unless the host has it. Raises DriverError; EngineDown if an engine does
        not answer."""
        async with self._lock:
            if await self.has(id):
                return
            own = await self._inspect_own(id)
            if own is None:
                raise DriverError(f"the engine of this machine has no image {id[:19]}")
            await self._check_processors(own)
            await self._stream(id, int(own.get("Size") or 0), progress)
            if not await self.has(id):
                raise DriverError(
                    f"host {self._host} stores the image {id[:19]} under another id: its engine"
                    " and that of this machine must keep images in the same way"
                )

    async def _check_processors(self, image: dict[str, Any]) -> None:
        async with _session(self._target) as session:
            info = await _ask(session, "GET", "/info", f"ask the engine of host {self._host}")
        there, needs = _PROCESSORS.get(str(info.get("Architecture"))), image.get("Architecture")
        if there and needs and there != needs:
            raise DriverError(f"host {self._host} is {there}, the image is for {needs}")

    async def _stream(self, id: str, size: int, progress: Progress) -> None:
        now_s = asyncio.get_running_loop().time
        sent = 0
        try:
            async with AsyncExitStack() as stack:
                limit = await stack.enter_async_context(asyncio.timeout(PACK_S))
                source = await stack.enter_async_context(_session(self._source, total_s=None))
                target = await stack.enter_async_context(_session(self._target, total_s=None))
                url = f"http://engine/images/{quote(id, safe=':')}/get"
                export = await stack.enter_async_context(source.get(url))
                if export.status != OK:
                    raise DriverError(f"the engine of this machine does not export {id[:19]}")

                async def pieces() -> AsyncIterator[bytes]:
                    nonlocal sent
                    async for piece in export.content.iter_chunked(PIECE):
                        limit.reschedule(now_s() + SILENT_S)
                        yield piece
                        sent += len(piece)
                        progress(sent, size)
                    limit.reschedule(now_s() + UNPACK_S)

                await _load(target, pieces(), self._host)
        except TimeoutError:
            who = f"host {self._host} takes" if sent else "the engine of this machine sends"
            raise DriverError(f"{who} no more of the image {id[:19]}") from None
        except (ClientError, OSError) as error:
            raise DriverError(
                f"the engine of this machine does not export {id[:19]}: {error}"
            ) from error

    async def _inspect_own(self, reference: str) -> dict[str, Any] | None:
        """Return an image of this machine. Raises DriverError: that its engine does not answer says
        nothing about the host's."""
        try:
            return await self._inspect(self._source, reference)
        except EngineDown as error:
            raise DriverError(error.message) from error

    async def _inspect(self, url: str, reference: str) -> dict[str, Any] | None:
        async with _session(url) as session:
            path = f"/images/{quote(reference, safe=':/@')}/json"
            found: dict[str, Any] | None = await _ask(
                session, "GET", path, f"ask the engine at {url}", may_lack=True
            )
            return found

    async def _remove(self, id: str) -> None:
        """Remove an image of the host, unless it has another tag or a container uses it."""
        async with _session(self._target) as session:
            with contextlib.suppress(DriverError):
                await _ask(session, "DELETE", f"/images/{quote(id, safe=':')}", "remove an image")

    async def _tag(self, id: str, repository: str, tag: str) -> None:
        async with _session(self._target) as session:
            path = f"/images/{quote(id, safe=':')}/tag"
            params = {"repo": repository, "tag": tag}
            await _ask(session, "POST", path, f"tag an image on host {self._host}", params=params)


async def _load(session: ClientSession, pieces: AsyncIterator[bytes], host: str) -> None:
    headers = {"Content-Type": "application/x-tar"}
    try:
        async with session.post(
            "http://engine/images/load?quiet=1", data=pieces, headers=headers
        ) as answer:
            said = await answer.content.read(SAID_MAX * 8)
            text = said.decode("utf-8", "replace")
            if answer.status != OK or '"error"' in text:
                raise DriverError(
                    f"the engine of host {host} refuses an image: {_reason(text)[:SAID_MAX]}"
                )
    except (ClientError, OSError) as error:
        raise EngineDown(f"an image could not be sent to host {host}: {error}") from error


def _reason(said: str) -> str:
    """Return the error of an engine's answer: the last line of JSON, or a message of another
    status."""
    with contextlib.suppress(msgspec.DecodeError, IndexError):
        last = msgspec.json.decode(said.splitlines()[-1])
        if isinstance(last, dict) and (found := last.get("error") or last.get("message")):
            return str(found)
    return said.strip()


def _session(url: str, *, total_s: float | None = CALL_S) -> ClientSession:
    limits = ClientTimeout(total=total_s, sock_connect=CONNECT_S)
    return ClientSession(connector=UnixConnector(path=url.removeprefix("unix://")), timeout=limits)


async def _ask(
    session: ClientSession,
    method: str,
    path: str,
    doing: str,
    *,
    params: Mapping[str, str] | None = None,
    may_lack: bool = False,
) -> Any:
    """Return the engine's answer; None for an empty one, and for something that the engine lacks,
    if it may. Raises DriverError, EngineDown."""
    try:
        async with session.request(method, f"http://engine{path}", params=params) as answer:
            if answer.status == NOT_FOUND and may_lack:
                return None
            body = await answer.read()
            if answer.status not in (OK, CREATED):
                raise DriverError(f"cannot {doing}: status {answer.status}")
            return msgspec.json.decode(body) if body else None
    except (ClientError, OSError, msgspec.DecodeError) as error:
        raise EngineDown(f"cannot {doing}: {error or type(error).__name__}") from error


_PROCESSORS: Final = {"x86_64": "amd64", "aarch64": "arm64", "amd64": "amd64", "arm64": "arm64"}
"""Names of GET /info and their names of images."""
