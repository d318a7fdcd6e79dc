"""Routes for deploys: blob uploads (limited in number and stall time), deploys and operations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import hdrs, web

from admin.api.answers import json_answer
from admin.api.context import CALLER
from admin.deploy.deploys import Deploys
from admin.deploy.plan import parse_request
from admin.documents.deploys import Blob
from admin.documents.functions import Items
from admin.views import operation_row
from gateway.http.bodies import read_body, send_continue
from gateway.http.decompression import encoding_of
from gateway.statuses import ACCEPTED, CREATED
from registry.bundles.blobs import UPLOADS_MAX, BlobStore
from registry.errors import BadRequest, BodyTimeout, Unknown
from registry.names import check_name
from registry.shares import Shares

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
    """Slot of one upload of a key, `party`. `began_s` and `since_s` are the event loop's times of
    its begin and of its last progress."""

    def __init__(self, party: str, now: float) -> None:
        self.party = party
        self.began_s = self.since_s = now
        self.is_whole = False
        self._received = 0
        self._why = ""
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
            raise BodyTimeout(self._why or text) from None

    def received(self, count: int) -> None:
        """Record that `count` bytes arrived."""
        self._received += count
        self._missing -= count
        if self._missing <= 0:
            self._missing = PROGRESS_BYTES
            self.since_s = asyncio.get_running_loop().time()
            self._limit.reschedule(self.since_s + PROGRESS_S)

    def rate(self, now: float) -> float:
        """Return the bytes per second since the upload began."""
        return self._received / max(now - self.began_s, 1e-9)

    def whole(self) -> None:
        """Lift the time limit: all bytes arrived, and only the store's work remains. The upload
        gives way to no other one any more."""
        self.is_whole = True
        self._limit.reschedule(None)

    def give_up(self, why: str) -> None:
        """Abort the upload because another upload needs its slot."""
        self._why = why
        if not self._limit.expired():
            self._limit.reschedule(0.0)


class UploadSlots:
    """Upload slots of one server, at most `most` at once, shared by keys as in `Shares`."""

    def __init__(self, most: int = SLOTS_MAX) -> None:
        self._shares = Shares("uploads are running", most)
        self._taken: dict[Slot, None] = {}

    @asynccontextmanager
    async def take(self, party: str) -> AsyncIterator[Slot]:
        """Hold a slot while the block runs, perhaps one that another upload has to give up.

        Raises QueueFull if there is none for the party, and BodyTimeout if this upload stalls or
        has to give up its slot.
        """
        now = asyncio.get_running_loop().time()
        if self._shares.has_room(party):
            self._shares.take(party)
        elif (one := self._stalled(party, now)) is not None:
            self._exchange(one, party, f"not {PROGRESS_BYTES} bytes in {STALLED_S:g} s")
        elif (one := self._slowest(party, now)) is not None:
            count = self._shares.taken(one.party)
            self._exchange(one, party, f"the slowest of {count} uploads of this key")
        else:
            self._shares.take(party)  # raises
        slot = Slot(party, now)
        self._taken[slot] = None
        try:
            async with slot:
                yield slot
        finally:
            self._leave(slot)

    def _stalled(self, party: str, now: float) -> Slot | None:
        """Return the upload that has been without progress for longest: of the party itself, or of
        all for a party without an upload if no slot is free."""
        others = self._shares.free <= 0 and not self._shares.taken(party)
        found = (
            one
            for one in self._taken
            if now - one.since_s >= STALLED_S
            and not one.is_whole
            and (others or one.party == party)
        )
        return min(found, key=lambda one: one.since_s, default=None)

    def _slowest(self, party: str, now: float) -> Slot | None:
        """Return the slowest upload of the party with the most, if no slot is free and that one
        would not have fewer than `party` afterwards. It is slow, even if it always progresses; an
        upload that has just begun is not known to be."""
        taken, own = self._shares.taken, self._shares.taken(party)
        old = [one for one in self._taken if now - one.began_s >= STALLED_S and not one.is_whole]
        if self._shares.free > 0 or not old:
            return None
        most = max((one.party for one in old), key=taken)
        if taken(most) < own + 2:
            return None
        return min((one for one in old if one.party == most), key=lambda one: one.rate(now))

    def _exchange(self, slot: Slot, party: str, why: str) -> None:
        self._leave(slot)
        slot.give_up(f"{why}, and other uploads wait")
        self._shares.hold(party)

    def _leave(self, slot: Slot) -> None:
        """Take the slot from its upload, once."""
        if slot in self._taken:
            del self._taken[slot]
            self._shares.give_back(slot.party)


class UploadRoutes:
    """Handlers for the three steps of a deploy: blobs, request, operation."""

    def __init__(self, blobs: BlobStore, deploys: Deploys) -> None:
        self._blobs = blobs
        self._deploys = deploys
        self._slots = UploadSlots()

    async def head_blob(self, request: web.Request) -> web.Response:
        """Answer 200 if the blob is stored (with `size` bytes, if the query has it), and claim it
        for the deploy that follows, so that it is not removed meanwhile."""
        sha256, size = request.match_info["sha256"], request.query.get("size")
        now, party = asyncio.get_running_loop().time(), request[CALLER].id
        if size is not None and not (size.isdecimal() and len(size) <= SIZE_DIGITS_MAX):
            raise BadRequest(f"size: expected bytes, got {size[:40]!r}")
        if not self._blobs.has(sha256):
            raise Unknown(f"no blob {sha256}")
        if not self._blobs.unneeded.may_claim(party, sha256, self._blobs.size(sha256), now):
            raise Unknown(f"blob {sha256} was claimed for too long, and no function needs it")
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
        caller = request[CALLER]
        now = asyncio.get_running_loop().time()
        arriving = self._blobs.unneeded.arriving(
            caller.id, sha256, size, now, is_bounded="admin" not in caller.scopes
        )
        async with self._slots.take(caller.id) as slot:
            with arriving as arrival:
                async with self._blobs.receive(sha256, size) as upload:
                    await send_continue(request)
                    while chunk := await request.content.readany():
                        slot.received(len(chunk))
                        await upload.write(chunk)
                        arrival.received += len(chunk)
                    slot.whole()
        return json_answer(Blob(sha256, size), CREATED)

    async def post_revision(self, request: web.Request) -> web.Response:
        """Start a deploy: 202 with the operation to follow."""
        name = check_name(request.match_info["name"])
        body = await read_body(request, REQUEST_MAX, READ_S)
        operation = await self._deploys.start(name, parse_request(body), request[CALLER])
        location = {"Location": f"/admin/v1/operations/{operation.id}"}
        return json_answer(operation_row(operation), ACCEPTED, location)

    async def list_operations(self, _request: web.Request) -> web.Response:
        """The newest operations, newest first."""
        items = [operation_row(one) for one in await self._deploys.runner.newest()]
        return json_answer(Items(items, None))

    async def get_operation(self, request: web.Request) -> web.Response:
        """Return one operation. With `wait`, answer once its phase differs from `phase`."""
        id = request.match_info["id"]
        wait = request.query.get("wait", "0")
        if not wait.isdecimal() or len(wait) > 4:
            raise BadRequest(f"wait: expected whole seconds, got {wait[:40]!r}")
        seconds = min(float(wait), WAIT_MAX_S)
        operation = await self._deploys.runner.wait(id, request.query.get("phase", ""), seconds)
        return json_answer(operation_row(operation))

    async def cancel_operation(self, request: web.Request) -> web.Response:
        """Cancel a running operation, without any change. Operations that ended or are in their
        phase `switch` stay as they are."""
        operation = await self._deploys.runner.cancel(request.match_info["id"])
        return json_answer(operation_row(operation))
