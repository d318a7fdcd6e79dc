"""Tests of uploads, deploys and operations over the admin API."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest

from admin.api.deploys import PROGRESS_BYTES, PROGRESS_S, STALLED_S, Slot, UploadSlots
from registry.errors import BodyTimeout, QueueFull
from tests.support.nouns import sha256
from tests.support.operator import MODEL, until
from tests.support.server import Answer, ServingServer

CONTENT = b"weights" * 1000
DIGEST = sha256(CONTENT)
REQUEST = {"files": [{"path": "m.onnx", "size": len(MODEL), "sha256": sha256(MODEL)}]}


def incoming(server: ServingServer) -> list[str]:
    """Return the files of unfinished uploads."""
    return [path.name for path in (server.server.store.settings.blobs / "incoming").iterdir()]


async def put(server: ServingServer, digest: str, content: bytes) -> Answer:
    """Upload one blob."""
    return await server.admin("PUT", f"/blobs/{digest}", content)


async def raw(
    server: ServingServer, digest: str, *heads: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send the head of an upload over a connection of its own."""
    parts = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    lines = [
        f"PUT /admin/v1/blobs/{digest} HTTP/1.1",
        f"Host: {parts.netloc}",
        f"Authorization: Bearer {server.token}",
        *heads,
    ]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    return reader, writer


async def test_a_blob_may_be_sent_again(server: ServingServer) -> None:
    """A second upload of the same blob changes nothing."""
    assert (await server.admin("HEAD", f"/blobs/{DIGEST}")).status == 404

    for _ in range(2):
        answer = await put(server, DIGEST, CONTENT)
        assert (answer.status, answer.json()) == (201, {"sha256": DIGEST, "size": len(CONTENT)})

    assert (await server.admin("HEAD", f"/blobs/{DIGEST}")).status == 200
    assert incoming(server) == []


async def test_another_content_than_announced_is_refused(server: ServingServer) -> None:
    """Content that does not match its hash is refused with both hashes, and nothing is kept."""
    answer = await put(server, DIGEST, b"else")

    assert (answer.status, answer.problem["code"]) == (422, "bad_bundle")
    assert answer.problem["detail"] == f"expected sha256 {DIGEST}, got {sha256(b'else')}"
    assert (await server.admin("HEAD", f"/blobs/{DIGEST}")).status == 404
    assert incoming(server) == []


async def test_a_damaged_blob_is_asked_for_again(server: ServingServer) -> None:
    """A blob of another size than the client names is reported as missing, so that it is sent
    again."""
    await put(server, DIGEST, CONTENT)
    path = server.server.store.blobs.path(DIGEST)
    path.unlink()
    path.write_bytes(CONTENT[:-1])

    async def head(size: object) -> int:
        return (await server.admin("HEAD", f"/blobs/{DIGEST}?size={size}")).status

    assert (await head(len(CONTENT)), await head("many"), await head("9" * 20)) == (404, 400, 400)
    assert (await put(server, DIGEST, CONTENT)).status == 201
    assert await head(len(CONTENT)) == 200
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("digest", ["abc", "G" * 64])
async def test_a_name_that_is_no_hash_is_refused(server: ServingServer, digest: str) -> None:
    """A blob name that is not 64 hex digits is refused."""
    answer = await put(server, digest, CONTENT)

    assert (answer.status, answer.problem["code"]) == (422, "bad_bundle")


async def test_a_blob_over_the_limit_is_refused_before_it_is_read(server: ServingServer) -> None:
    """A blob over the limit is refused by its announced length, before it is read."""
    size = server.server.store.settings.blob_max_bytes + 1
    reader, writer = await raw(server, DIGEST, f"Content-Length: {size}")

    status = await reader.readline()

    writer.close()
    assert b" 413 " in status
    assert incoming(server) == []


async def test_an_upload_without_a_length_is_refused(server: ServingServer) -> None:
    """An upload without Content-Length is refused."""
    reader, writer = await raw(server, DIGEST, "Transfer-Encoding: chunked")
    writer.write(b"0\r\n\r\n")

    status = await reader.readline()

    writer.close()
    assert b" 400 " in status


async def test_an_upload_that_is_cut_off_leaves_nothing(server: ServingServer) -> None:
    """A client that disconnects during an upload leaves no partial file."""
    _, writer = await raw(server, DIGEST, f"Content-Length: {len(CONTENT)}")
    writer.write(CONTENT[:100])
    await until(lambda: len(incoming(server)) == 1)

    writer.transport.abort()

    await until(lambda: not incoming(server))
    assert (await server.admin("HEAD", f"/blobs/{DIGEST}")).status == 404


async def test_a_deploy_is_accepted_with_where_to_follow_it(server: ServingServer) -> None:
    """An accepted deploy is answered 202 with the operation and its address."""
    answer = await server.admin("POST", "/functions/more/revisions", {**REQUEST, "model": "m.onnx"})

    operation = answer.json()
    assert (answer.status, operation["state"]) == (202, "running")
    assert answer.headers["Location"] == f"/admin/v1/operations/{operation['id']}"
    ended = (await server.ended(operation)).json()
    assert (ended["state"], ended["result"]["revision"]) == ("done", "more@1")
    listed = (await server.admin("GET", "/operations")).json()["items"]
    assert [one["name"] for one in listed] == ["more", "digits"]
    assert "request" not in listed[0]


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/functions/Bad/revisions", {}, 400, "expected a name"),
        ("/functions/more/revisions", {}, 400, "missing required field `files`"),
        ("/functions/more/revisions", {"files": []}, 422, "expected 1 to 5000 files, got 0"),
    ],
)
async def test_a_deploy_that_cannot_be_is_refused_at_once(
    server: ServingServer, path: str, body: dict[str, object], status: int, text: str
) -> None:
    """An impossible deploy is refused at once, without an operation."""
    answer = await server.admin("POST", path, body)

    assert answer.status == status
    assert text in answer.problem["detail"]
    assert len((await server.admin("GET", "/operations")).json()["items"]) == 1


async def test_an_operation_that_never_was_is_unknown(server: ServingServer) -> None:
    """An unknown operation can be neither followed nor cancelled."""
    for method in ("GET", "DELETE"):
        answer = await server.admin(method, "/operations/nothing")
        assert (answer.status, answer.problem["code"]) == (404, "unknown")


@pytest.mark.parametrize("wait", ["soon", "-1", "1.5", "99999"])
async def test_a_wait_is_whole_seconds(server: ServingServer, wait: str) -> None:
    """`wait` must be a whole number of seconds; other values are refused by name."""
    answer = await server.admin("GET", f"/operations/nothing?wait={wait}")

    assert answer.status == 400
    assert answer.problem["detail"].startswith("wait: expected whole seconds")


class Loop(asyncio.SelectorEventLoop):
    """Event loop whose clock the test advances."""

    passed_s = 0.0

    def time(self) -> float:
        return super().time() + self.passed_s


class Uploads:
    """Uploads that hold a slot until `end` is set."""

    def __init__(self, places: int) -> None:
        self.slots = UploadSlots(places)
        self.end = asyncio.Event()
        self.held: list[str] = []
        self._slots: dict[str, Slot] = {}
        self._tasks: dict[str, asyncio.Task[str]] = {}

    async def begin(self, *names: str) -> None:
        """Begin uploads, whose key is the first letter of their name."""
        for name in names:
            self._tasks[name] = asyncio.create_task(self._run(name))
            await turns()

    def received(self, name: str, count: int = PROGRESS_BYTES) -> None:
        self._slots[name].received(count)

    def whole(self, name: str) -> None:
        self._slots[name].whole()

    def outcome(self, name: str) -> str:
        """Return how an upload ended, "" if it is running."""
        return self._tasks[name].result() if self._tasks[name].done() else ""

    async def ended(self) -> None:
        self.end.set()
        await asyncio.gather(*self._tasks.values())

    async def _run(self, name: str) -> str:
        try:
            async with self.slots.take(name[0]) as slot:
                self._slots[name] = slot
                self.held.append(name)
                await self.end.wait()
                slot.whole()
        except (BodyTimeout, QueueFull) as error:
            return str(error)
        return "whole"


def run(steps: object) -> None:
    """Run a coroutine in such a loop."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(steps)  # type: ignore[arg-type] # a coroutine


async def turns() -> None:
    """Let every task run."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_stalled_upload_gives_up_its_slot() -> None:
    """With every slot taken by stalled uploads, the upload of a new key waits at most two seconds;
    one of the same key takes the place of its own."""

    async def steps() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        some = Uploads(2)
        await some.begin("a1")
        loop.passed_s += 0.5
        await some.begin("b1", "c1")
        assert "2 uploads are running, 0 of them of this caller" in some.outcome("c1")
        loop.passed_s += STALLED_S
        await some.begin("c2")
        assert "not 65536 bytes in 2 s, and other uploads wait" in some.outcome("a1")
        await some.begin("b2")
        assert "not 65536 bytes" in some.outcome("b1")
        assert (some.outcome("b2"), some.outcome("c2")) == ("", "")
        await some.ended()
        assert some.held == ["a1", "b1", "c2", "b2"]

    run(steps())


def test_an_upload_that_has_arrived_gives_no_way() -> None:
    """An upload of which only the store's work remains keeps its slot, however long that takes."""

    async def steps() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        some = Uploads(4)
        await some.begin("a1", "a2", "b1", "c1")
        some.whole("a1")
        some.whole("a2")
        loop.passed_s += 2 * PROGRESS_S
        for name in ("b1", "c1"):
            some.received(name)
        await some.begin("d1")
        assert "at most 4 are possible" in some.outcome("d1")
        await some.ended()
        assert (some.outcome("a1"), some.outcome("a2")) == ("whole", "whole")

    run(steps())


def test_a_key_has_no_more_slots_than_are_free() -> None:
    """One key with as many uploads as it can leaves slots to others, however fast they are."""

    async def steps() -> None:
        some = Uploads(12)
        await some.begin(*(f"a{number}" for number in range(12)))
        await some.begin(*(f"b{number}" for number in range(12)))
        assert [name[0] for name in some.held] == [*"aaaaaabbb"]
        assert "at most 12 are possible" in some.outcome("a6")
        await some.begin("c1")
        assert some.outcome("c1") == ""
        await some.ended()

    run(steps())


def test_slow_uploads_that_progress_give_way_to_other_keys() -> None:
    """Uploads of a few keys that never stall, but never end, hold no slot that a further key needs:
    the slowest of the key with the most gives way, until each has as many."""

    async def steps() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        some = Uploads(4)
        await some.begin("a1", "a2", "b1", "c1")
        some.received("a1", 2 * PROGRESS_BYTES)
        await some.begin("d1")
        assert "at most 4 are possible" in some.outcome("d1")  # who has just begun is not slow
        loop.passed_s += STALLED_S
        for name in ("a1", "a2", "b1", "c1"):
            some.received(name)
        await some.begin("d2", "e1", "a3")
        assert "the slowest of 2 uploads of this key" in some.outcome("a2")
        assert [some.outcome(name) for name in ("a1", "b1", "c1", "d2")] == [""] * 4
        assert "at most 4" in some.outcome("e1")
        assert "at most 4" in some.outcome("a3")
        await some.ended()

    run(steps())


def test_an_upload_without_progress_is_given_up() -> None:
    """An upload without progress is given up; an occasional byte is no progress."""

    async def steps() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        slots = UploadSlots(1)

        async def drip() -> None:
            async with slots.take("a") as slot:
                for _ in range(3):
                    slot.received(PROGRESS_BYTES)
                    loop.passed_s += PROGRESS_S - 1
                    await turns()
                slot.received(1)
                loop.passed_s += 2
                await asyncio.Event().wait()

        with pytest.raises(BodyTimeout, match="fewer than"):
            await drip()
        async with slots.take("a"):
            """The slot is free again."""

    run(steps())
