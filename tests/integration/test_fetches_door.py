"""The replica's fetcher and the server's door, with each other."""

from __future__ import annotations

import asyncio
import hashlib
from functools import partial
from pathlib import Path

import pytest

from runtime_image.contract.enrolment import FetchedFile, replica_name
from runtime_image.link.credentials import Credentials
from runtime_image.replica import fetching
from runtime_image.replica.fetching import Fetched, Fetcher, FetchFailed
from tests.support.link_door import Admitted, Scene

pytestmark = pytest.mark.slow
DIAL_S = 10.0


class Store:
    """Files in a folder, which an admitted replica may fetch."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self.paths: dict[str, Path] = {}

    def add(self, path: str, content: bytes) -> FetchedFile:
        sha256 = hashlib.sha256(content).hexdigest()
        self.paths[sha256] = self._folder / sha256
        self.paths[sha256].write_bytes(content)
        return {"path": path, "size": len(content), "sha256": sha256}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def fetcher(scene: Scene, folder: Path) -> Fetcher:
    """Return the fetcher of replica r1."""
    credentials = Credentials(scene.authority.pem)
    issued = scene.authority.issue(replica_name("r1"))
    credentials.replace({"certificate": issued.certificate, "key": issued.key})
    return Fetcher(partial(credentials.dial, scene.door.address, DIAL_S), folder)


def content(size: int, seed: int = 0) -> bytes:
    return hashlib.shake_128(seed.to_bytes(4)).digest(size)


async def test_all_files_come_through(tmp_path: Path, store: Store) -> None:
    """Large and small ones; the door has counted their bytes."""
    wanted = {"large": content(5 * fetching.RANGE + 1), "empty": b""}
    wanted |= {f"{n}/{n}": content(n, n) for n in range(1, 300)}
    files = [store.add(path, data) for path, data in wanted.items()]
    async with Scene(tmp_path) as scene:
        scene.admit(was_enrolled=True, files=store.paths)
        done = await asyncio.to_thread(fetcher(scene, tmp_path / "model").fetch, files)
        total = sum(map(len, wanted.values()))
        assert done[:2] == (len(files), total)
        assert scene.door.served_bytes("r1") == total
    for path, data in wanted.items():
        assert (tmp_path / "model" / path).read_bytes() == data


async def test_a_file_of_others_is_refused(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the door's reason."""
    monkeypatch.setattr(fetching, "REFUSED_S", 0.0)
    file = store.add("a", b"abc")
    async with Scene(tmp_path) as scene:
        scene.admit(was_enrolled=True)
        with pytest.raises(FetchFailed, match="expected one of the files of this replica's model"):
            await asyncio.to_thread(fetcher(scene, tmp_path / "model").fetch, [file])


class Watched(Admitted):
    """An admission that says when it was asked for a third range."""

    def __init__(self, id: str, files: dict[str, Path]) -> None:
        super().__init__(id)
        self.files, self.was_enrolled = files, True
        self.asked = 0
        self.third = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def file(self, sha256: str) -> Path | None:
        self.asked += 1
        if self.asked == 3:
            self._loop.call_soon_threadsafe(self.third.set)
        return super().file(sha256)


async def test_a_server_that_restarts_goes_on_where_it_was(tmp_path: Path, store: Store) -> None:
    """Its successor has a later epoch, and refuses the replica's files at first: it does not know
    them until it has sent BIND."""
    wanted = content(12 * fetching.RANGE)
    file = store.add("model", wanted)
    async with Scene(tmp_path) as scene:
        first = Watched("r1", store.paths)
        scene.door.admit("r1", first)
        fetch = fetcher(scene, tmp_path / "model").fetch
        work = asyncio.create_task(asyncio.to_thread(fetch, [file]))
        await first.third.wait()
        served = scene.door.served_bytes("r1")
    async with Scene(tmp_path, 2, scene.door.address.port) as successor:
        admitted = Watched("r1", {})
        successor.door.admit("r1", admitted)
        await admitted.third.wait()
        admitted.files = store.paths
        assert (await work)[:2] == Fetched(1, len(wanted), 0.0)[:2]
        assert served < len(wanted)
        assert 0 < successor.door.served_bytes("r1") <= len(wanted)
    assert (tmp_path / "model" / "model").read_bytes() == wanted
