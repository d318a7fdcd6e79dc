"""Uploads, deploys and operations."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest

from admin.api.deploys import PROGRESS_BYTES, PROGRESS_S, STALLED_S, UploadSlots
from registry.errors import BodyTimeout, StoreUnavailable
from tests.support.nouns import sha256
from tests.support.operator import MODEL, until
from tests.support.server import Answer, ServingServer

CONTENT = b"weights" * 1000
DIGEST = sha256(CONTENT)
REQUEST = {"files": [{"path": "m.onnx", "size": len(MODEL), "sha256": sha256(MODEL)}]}


def incoming(server: ServingServer) -> list[str]:
    """Uploads that are not whole yet."""
    return [path.name for path in (server.server.store.settings.blobs / "incoming").iterdir()]


async def put(server: ServingServer, digest: str, content: bytes) -> Answer:
    """One upload."""
    return await server.admin("PUT", f"/blobs/{digest}", content)


async def raw(
    server: ServingServer, digest: str, *heads: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The head of an upload, on a connection of its own."""
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
    """It is not there before, there afterwards, and a second upload changes nothing."""
    assert (await server.admin("HEAD", f"/blobs/{DIGEST}")).status == 404

    for _ in range(2):
        answer = await put(server, DIGEST, CONTENT)
        assert (answer.status, answer.json()) == (201, {"sha256": DIGEST, "size": len(CONTENT)})

    assert (await server.admin("HEAD", f"/blobs/{DIGEST}")).status == 200
    assert incoming(server) == []


async def test_another_content_than_announced_is_refused(server: ServingServer) -> None:
    """The text names both hashes, and nothing stays."""
    answer = await put(server, DIGEST, b"else")

    assert (answer.status, answer.problem["code"]) == (422, "bad_bundle")
    assert answer.problem["detail"] == f"expected sha256 {DIGEST}, got {sha256(b'else')}"
    assert (await server.admin("HEAD", f"/blobs/{DIGEST}")).status == 404
    assert incoming(server) == []


async def test_a_damaged_blob_is_asked_for_again(server: ServingServer) -> None:
    """A client that says the size is told that a blob of another size is not there."""
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
    """A blob's name is 64 hex digits and no path."""
    answer = await put(server, digest, CONTENT)

    assert (answer.status, answer.problem["code"]) == (422, "bad_bundle")


async def test_a_blob_over_the_limit_is_refused_before_it_is_read(server: ServingServer) -> None:
    """The announced length is enough to know."""
    size = server.server.store.settings.blob_max_bytes + 1
    reader, writer = await raw(server, DIGEST, f"Content-Length: {size}")

    status = await reader.readline()

    writer.close()
    assert b" 413 " in status
    assert incoming(server) == []


async def test_an_upload_without_a_length_is_refused(server: ServingServer) -> None:
    """Its size must be known before it is taken."""
    reader, writer = await raw(server, DIGEST, "Transfer-Encoding: chunked")
    writer.write(b"0\r\n\r\n")

    status = await reader.readline()

    writer.close()
    assert b" 400 " in status


async def test_an_upload_that_is_cut_off_leaves_nothing(server: ServingServer) -> None:
    """A client that goes in the middle takes its half file with it."""
    _, writer = await raw(server, DIGEST, f"Content-Length: {len(CONTENT)}")
    writer.write(CONTENT[:100])
    await until(lambda: len(incoming(server)) == 1)

    writer.transport.abort()

    await until(lambda: not incoming(server))
    assert (await server.admin("HEAD", f"/blobs/{DIGEST}")).status == 404


async def test_a_deploy_is_accepted_with_where_to_follow_it(server: ServingServer) -> None:
    """202, the operation and its address."""
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
        ("/functions/more/revisions", {"files": []}, 422, "expected 1 to 1000 files, got 0"),
    ],
)
async def test_a_deploy_that_cannot_be_is_refused_at_once(
    server: ServingServer, path: str, body: dict[str, object], status: int, text: str
) -> None:
    """No operation is made of it."""
    answer = await server.admin("POST", path, body)

    assert answer.status == status
    assert text in answer.problem["detail"]
    assert len((await server.admin("GET", "/operations")).json()["items"]) == 1


async def test_an_operation_that_never_was_is_unknown(server: ServingServer) -> None:
    """Neither followed nor cancelled."""
    for method in ("GET", "DELETE"):
        answer = await server.admin(method, "/operations/nothing")
        assert (answer.status, answer.problem["code"]) == (404, "unknown")


@pytest.mark.parametrize("wait", ["soon", "-1", "1.5", "99999"])
async def test_a_wait_is_whole_seconds(server: ServingServer, wait: str) -> None:
    """Anything else is refused by name."""
    answer = await server.admin("GET", f"/operations/nothing?wait={wait}")

    assert answer.status == 400
    assert answer.problem["detail"].startswith("wait: expected whole seconds")


class Loop(asyncio.SelectorEventLoop):
    """A loop whose time is a test's to pass."""

    passed_s = 0.0

    def time(self) -> float:
        return super().time() + self.passed_s


async def upload(slots: UploadSlots, taken: list[int], number: int, end: asyncio.Event) -> str:
    """Take a slot until `end`; how it ended."""
    try:
        async with slots.take() as slot:
            taken.append(number)
            await end.wait()
            slot.whole()
    except (BodyTimeout, StoreUnavailable) as error:
        return str(error)
    return "whole"


def run(steps: object) -> None:
    """In a loop of that kind."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(steps)  # type: ignore[arg-type] # a coroutine


async def turns() -> None:
    """Let all tasks go on."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_stalled_uploads_lock_nobody_out() -> None:
    """With every slot taken a newcomer has to wait for no more than two seconds."""

    async def steps() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        slots, taken, end = UploadSlots(2), list[int](), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            first = group.create_task(upload(slots, taken, 1, end))
            await turns()
            loop.passed_s += 0.5
            second = group.create_task(upload(slots, taken, 2, end))
            await turns()
            third = group.create_task(upload(slots, taken, 3, end))
            await turns()
            assert "2 uploads are running already" in third.result()
            loop.passed_s += STALLED_S
            fourth = group.create_task(upload(slots, taken, 4, end))
            await turns()
            assert "other uploads wait" in first.result()
            assert not second.done()
            end.set()
        assert (second.result(), fourth.result(), taken) == ("whole", "whole", [1, 2, 4])

    run(steps())


def test_an_upload_without_progress_is_given_up() -> None:
    """A byte now and then is none."""

    async def steps() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        slots = UploadSlots(1)

        async def drip() -> None:
            async with slots.take() as slot:
                for _ in range(3):
                    slot.received(PROGRESS_BYTES)
                    loop.passed_s += PROGRESS_S - 1
                    await turns()
                slot.received(1)
                loop.passed_s += 2
                await asyncio.Event().wait()

        with pytest.raises(BodyTimeout, match="fewer than"):
            await drip()
        async with slots.take():
            """The slot is free again."""

    run(steps())
