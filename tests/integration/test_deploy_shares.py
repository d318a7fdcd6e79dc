"""Tests of a key that takes what it can get of deploys, and of another key that deploys beside."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from admin.deploy.deploys import CHECKED_MAX
from tests.support import models
from tests.support.process_server import ServerProcess
from tests.support.small_disk import DISK_MIB, server_on_a_small_disk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

MIB = 1024 * 1024


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server whose data folder is on a small disk, of which uploads leave 8 MiB free."""
    with server_on_a_small_disk(tmp_path) as server:
        yield server


class Deployer:
    """A key with the scope deploy."""

    def __init__(self, server: ServerProcess, session: ClientSession) -> None:
        secret = server.fnctl_json("key", "add", "--scope", "deploy")["secret"]
        self.bearer = {"Authorization": f"Bearer {secret}"}
        self._session = session

    async def ask(self, method: str, path: str, **more: Any) -> tuple[int, dict[str, Any]]:
        """Return status and document of an answer."""
        path = f"/admin/v1{path}"
        async with self._session.request(method, path, headers=self.bearer, **more) as answer:
            return answer.status, await answer.json(content_type=None)

    async def upload(self, content: bytes) -> tuple[int, dict[str, Any]]:
        """Upload a blob; return the answer."""
        return await self.ask("PUT", f"/blobs/{sha256(content).hexdigest()}", data=content)

    async def start(self, name: str, model: bytes) -> tuple[int, dict[str, Any]]:
        """Ask for the deploy of a model that was uploaded; return the answer."""
        file = {"path": "m.onnx", "size": len(model), "sha256": sha256(model).hexdigest()}
        body = {"files": [file], "model": "m.onnx"}
        return await self.ask("POST", f"/functions/{name}/revisions", json=body)

    async def deploy(self, name: str, model: bytes) -> str:
        """Upload and deploy a model; return the state of the ended operation."""
        assert (await self.upload(model))[0] == 201
        status, operation = await self.start(name, model)
        assert status == 202, operation
        while operation["state"] == "running":
            query = f"?wait=60&phase={operation['phase']}"
            _, operation = await self.ask("GET", f"/operations/{operation['id']}{query}")
        return str(operation["state"])


async def test_junk_of_one_key_leaves_half_of_the_disk(
    server: ServerProcess, tmp_path: Path
) -> None:
    """A key that fills the disk with files of no function is stopped while as many bytes are free,
    of which another key uploads and deploys."""
    async with server.session() as session:
        hostile, other = Deployer(server, session), Deployer(server, session)
        stored = 0
        for number in range(DISK_MIB):
            status, answer = await hostile.upload(number.to_bytes(1) * (MIB - 1))
            if status != 201:
                break
            stored += 1
        assert (status, answer["code"]) == (503, "store_unavailable")
        assert "than stay free for others" in answer["detail"]
        assert 10 <= stored <= 18, stored  # of the 48 MiB, database, ballast and reserve take some

        for number in range(4):
            assert (await other.upload(bytes([100 + number]) * (MIB - 1)))[0] == 201
        assert await other.deploy("model", models.add_one(tmp_path).read_bytes()) == "done"


async def test_slow_uploads_of_one_key_leave_slots(server: ServerProcess, tmp_path: Path) -> None:
    """Of twelve uploads of one key that send nothing half get a slot. Those of two more keys that
    take the rest give way to a fourth key."""
    async with server.session() as session:
        hostile = [Deployer(server, session) for _ in range(3)]
        other = Deployer(server, session)
        held = []
        for key in hostile:
            uploads = [await Slow.begin(server, key) for _ in range(12)]
            held.append([one for one in uploads if not await one.is_refused()])
        assert [len(slots) for slots in held] == [6, 3, 2]

        for number in range(3):
            model = models.affine(tmp_path, offset=number).read_bytes()
            assert await other.deploy(f"model{number}", model) == "done"
        for one in chain.from_iterable(held):
            one.writer.close()


class Slow:
    """An upload that has sent a part of what it announced."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def begin(cls, server: ServerProcess, key: Deployer) -> Slow:
        port = int(server.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"PUT /admin/v1/blobs/{'0' * 64} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in key.bearer.items())
        writer.write(f"{head}Content-Length: 4096\r\nExpect: 100-continue\r\n\r\n".encode())
        return cls(reader, writer)

    async def is_refused(self) -> bool:
        """Return whether there is no slot; closes the connection then."""
        status = (await self.reader.readline()).split()[1]
        assert status in (b"100", b"429")
        if status == b"429":
            self.writer.close()
        return status == b"429"


async def test_many_deploys_of_one_key_leave_turns(server: ServerProcess, tmp_path: Path) -> None:
    """Of two hundred deploys of one key at once those above its share get 429; the deploy of
    another key ends meanwhile."""
    model = models.add_one(tmp_path).read_bytes()
    async with server.session() as session:
        hostile, other = Deployer(server, session), Deployer(server, session)
        await hostile.upload(model)
        names = [f"f{number}" for number in range(200)]
        asked = [asyncio.create_task(hostile.start(name, model)) for name in names]
        assert await other.deploy("mine", models.affine(tmp_path).read_bytes()) == "done"
        statuses = Counter(status for status, _ in await asyncio.gather(*asked))
        assert set(statuses) <= {202, 429}
        assert statuses[202] >= CHECKED_MAX // 2
