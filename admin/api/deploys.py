"""Routes for deploys: blob uploads (limited in number and stall time), deploys and operations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import hdrs, web

from admin.deploy.deploys import Deploys
from admin.deploy.plan import parse_request
from admin.views import operation_json
from gateway.access import Access
from gateway.http.bodies import read_body, send_continue
from gateway.http.decompression import encoding_of
from gateway.problems import ACCEPTED, CREATED, json_answer
from registry.bundles.blobs import UPLOADS_MAX, BlobStore
from registry.errors import BadRequest, BodyTimeout, StoreUnavailable, Unknown
from registry.names import check_name

SLOTS_MAX: Final = UPLOADS_MAX * 3 // 4
"""Max concurrent uploads of clients. The store accepts more, for files that replicas prepare."""
PROGRESS_BYTES: Final = 64 * 1024
PROGRESS_S: Final = 30.0
"""An upload must deliver `PROGRESS_BYTES` per `PROGRESS_S`, or its last byte; else it times out."""
STALLED_S: Final = 2.0
"""An upload without `PROGRESS_BYTES` for this long loses its slot to one that waits for a slot."""

REQUEST_MAX = 4 * 2**20
READ_S = 30.0
WAIT_MAX_S = 60.0
SIZE_DIGITS_MAX = 19


class Slot:
    """Slot of one upload. `since_s` is the event loop's time of its last progress."""

    def __init__(self, now: float) -> None:
        self.since_s = now
        self.is_stalled = False
        self._missing = PROGRESS_BYTES
        self._limit = asyncio.timeout_at(now + PROGRESS_S)

    async def __aenter__(self) -> Slot:
        await self._limit.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            await self._limit.__aexit__(*exc)  # type: ignore[arg-type] # typeshed splits the three
        except TimeoutError:
            text = f"received fewer than {PROGRESS_BYTES} bytes in {PROGRESS_S:g} s"
            if self.is_stalled:
                text = f"not {PROGRESS_BYTES} bytes in {STALLED_S:g} s, and other uploads wait"
            raise BodyTimeout(text) from None

    def received(self, count: int) -> None:
        """Record that `count` bytes arrived."""
        self._missing -= count
        if self._missing <= 0:
            self._missing = PROGRESS_BYTES
            self.since_s = asyncio.get_running_loop().time()
            self._limit.reschedule(self.since_s + PROGRESS_S)

    def whole(self) -> None:
        """Lift the time limit: all bytes arrived, and only the store's work remains."""
        self._limit.reschedule(None)

    def give_up(self) -> None:
        """Abort the stalled upload because another upload needs its slot."""
        self.is_stalled = True
        if not self._limit.expired():
            self._limit.reschedule(0.0)


class UploadSlots:
    """Upload slots of one server, at most `most` at once."""

    def __init__(self, most: int = SLOTS_MAX) -> None:
        self._most = most
        self._taken: set[Slot] = set()

    @asynccontextmanager
    async def take(self) -> AsyncIterator[Slot]:
        """Hold a slot while the block runs. If all are taken, abort the upload that has been
        without progress for longest. Raises StoreUnavailable if every upload makes progress, and
        BodyTimeout if this upload stalls."""
        now = asyncio.get_running_loop().time()
        if len(self._taken) >= self._most:
            slowest = min(self._taken, key=lambda slot: slot.since_s)
            if now - slowest.since_s < STALLED_S:
                text = f"{len(self._taken)} uploads are running already"
                raise StoreUnavailable(text, retry_after_s=STALLED_S)
            self._taken.discard(slowest)
            slowest.give_up()
        slot = Slot(now)
        self._taken.add(slot)
        try:
            async with slot:
                yield slot
        finally:
            self._taken.discard(slot)


class UploadRoutes:
    """Handlers for the three steps of a deploy: blobs, request, operation."""

    def __init__(self, blobs: BlobStore, deploys: Deploys, access: Access) -> None:
        self._blobs = blobs
        self._deploys = deploys
        self._access = access
        self._slots = UploadSlots()

    async def head_blob(self, request: web.Request) -> web.Response:
        """Answer 200 if the blob is stored (with `size` bytes, if the query has it), and claim it
        for the deploy that follows, so that it is not removed meanwhile."""
        sha256, size = request.match_info["sha256"], request.query.get("size")
        if size is not None and not (size.isdecimal() and len(size) <= SIZE_DIGITS_MAX):
            raise BadRequest(f"size: expected bytes, got {size[:40]!r}")
        if not self._blobs.claim(sha256, None if size is None else int(size)):
            raise Unknown(f"no blob {sha256}")
        return web.Response()

    async def put_blob(self, request: web.Request) -> web.Response:
        """Receive a blob. It becomes visible only when it is complete and its hash matches."""
        sha256, size = request.match_info["sha256"], request.content_length
        if size is None:
            raise BadRequest("an upload needs the header Content-Length")
        if encoding_of(request.headers.getall(hdrs.CONTENT_ENCODING, [])):
            raise BadRequest("an upload must be sent without Content-Encoding")
        async with self._slots.take() as slot, self._blobs.receive(sha256, size) as upload:
            await send_continue(request)
            while chunk := await request.content.readany():
                slot.received(len(chunk))
                await upload.write(chunk)
            slot.whole()
        return json_answer({"sha256": sha256, "size": size}, CREATED)

    async def post_revision(self, request: web.Request) -> web.Response:
        """Start a deploy: 202 with the operation to follow."""
        name = check_name(request.match_info["name"])
        body = await read_body(request, REQUEST_MAX, READ_S)
        scopes = self._access.scopes(request.headers.get("Authorization"))
        operation = await self._deploys.start(name, parse_request(body), scopes)
        location = {"Location": f"/admin/v1/operations/{operation.id}"}
        return json_answer(operation_json(operation), ACCEPTED, location)

    async def list_operations(self, _request: web.Request) -> web.Response:
        """The newest operations, newest first."""
        items = [operation_json(operation) for operation in await self._deploys.runner.newest()]
        return json_answer({"items": items, "next": None})

    async def get_operation(self, request: web.Request) -> web.Response:
        """Return one operation. With `wait`, answer once its phase differs from `phase`."""
        id = request.match_info["id"]
        wait = request.query.get("wait", "0")
        if not wait.isdecimal() or len(wait) > 4:
            raise BadRequest(f"wait: expected whole seconds, got {wait[:40]!r}")
        seconds = min(float(wait), WAIT_MAX_S)
        operation = await self._deploys.runner.wait(id, request.query.get("phase", ""), seconds)
        return json_answer(operation_json(operation))

    async def cancel_operation(self, request: web.Request) -> web.Response:
        """Cancel a running operation, without any change. Operations that ended or are in their
        phase `switch` stay as they are."""
        return json_answer(
            operation_json(await self._deploys.runner.cancel(request.match_info["id"]))
        )
