"""Model files on another host: which errors are the host's, and what is sent and kept."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path, PurePosixPath
from typing import cast

import onnx
import pytest
from onnx import helper

from hosts.commands import Completed
from hosts.errors import ConnectionLost, NoSpace
from hosts.files import FileCache
from pool_manager.hosts.files import RemoteFiles
from pool_manager.hosts.folders import HostFolders
from pool_manager.hosts.transfers import MIB, Transfers
from registry.errors import DriverError, HostDown
from registry.model.bundles import BundleFile

A, B = BundleFile("m.onnx", 3 * MIB, "a" * 64), BundleFile("w/x.bin", 2 * MIB, "b" * 64)


class Cache:
    """Stand-in for the cache on the host."""

    bytes_per_s = 1e6
    partial_bytes = 0

    def __init__(self, blobs: Path) -> None:
        self._blobs = blobs
        self.stored: dict[str, int] = {}
        self.partial: dict[str, int] = {}
        self.shipped: list[str] = []
        self.links: list[tuple[str, str]] = []
        self.copies: list[tuple[str, int, str]] = []
        self.spared: set[str] = set()
        self.error: Exception | None = None
        self.during: Callable[[], object] = lambda: None

    async def stock(self) -> dict[str, int]:
        return dict(self.stored)

    async def ship(
        self, sha256: str, size: int, source: Path, progress: Callable[[int], None]
    ) -> None:
        assert source == self._blobs / sha256
        self.during()
        if self.error:
            raise self.error
        progress(self.partial.get(sha256, 0))
        progress(size)
        self.shipped.append(sha256)
        self.stored[sha256] = size

    async def link(self, sha256: str, target: str) -> None:
        if sha256 not in self.stored:
            raise FileNotFoundError(sha256)
        self.links.append((sha256, target))

    async def copy(self, sha256: str, size: int, target: str) -> None:
        if sha256 not in self.stored:
            raise FileNotFoundError(sha256)
        self.copies.append((sha256, size, target))

    async def trim(self, limit_bytes: int, kept: Collection[str]) -> None:
        self.spared = set(kept)
        self.stored = {name: size for name, size in self.stored.items() if name in kept}


class Rig:
    """Files over a cache, and the commands that the host got."""

    def __init__(self, blobs: Path = Path("/blobs")) -> None:
        self.cache = Cache(blobs)
        self.commands: list[str] = []
        self.transfers = Transfers()
        folders = HostFolders("gpu2", self._run, PurePosixPath("/b"))
        cache = cast("FileCache", self.cache)
        self.files = RemoteFiles("gpu2", cache, folders, blobs.joinpath, self.transfers)

    async def _run(self, command: str, *, timeout_s: float, input: bytes = b"") -> Completed:
        self.commands.append(command)
        return Completed(0, b"", b"")


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_files_are_sent_once_and_linked_for_each_replica(rig: Rig) -> None:
    """What the cache has is not sent again; folders in the model folder are made before."""
    await rig.files.place("one", [A, B])
    await rig.files.place("two", [A])

    assert rig.cache.shipped == [A.sha256, B.sha256]
    assert rig.files.stock == {A.sha256: A.size, B.sha256: B.size}
    assert rig.cache.links == [
        (A.sha256, "/b/models/one/m.onnx"),
        (B.sha256, "/b/models/one/w/x.bin"),
        (A.sha256, "/b/models/two/m.onnx"),
    ]
    assert "mkdir -p /b/models/one/w" in rig.commands[0]
    assert rig.transfers.total_bytes == A.size + B.size
    assert rig.transfers.text == ""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionLost("broke"), HostDown),
        (TimeoutError("no answer"), HostDown),
        (NoSpace("no space on gpu2"), DriverError),
        (FileNotFoundError("gone here"), DriverError),
        (ConnectionRefusedError("no SFTP"), DriverError),
        (OSError("another sha256"), DriverError),
    ],
)
async def test_only_a_silent_host_is_down(
    rig: Rig, error: Exception, kind: type[Exception]
) -> None:
    """A full disk or a faulty file says nothing about the connection."""
    rig.cache.error = error

    with pytest.raises(DriverError, match="host gpu2: ") as raised:
        await rig.files.place("one", [A])

    assert type(raised.value) is kind
    assert rig.transfers.text == ""
    assert rig.files.stock == {}


async def test_files_that_are_being_placed_are_not_trimmed(rig: Rig) -> None:
    """A cache within its limit is not touched; over it, what is needed stays."""
    rig.cache.stored = {A.sha256: A.size, "c" * 64: MIB}
    await rig.files.refresh()
    await rig.files.trim(4, ())
    assert rig.cache.spared == set()

    rig.files.stock[A.sha256] = A.size
    await rig.files.place("one", [A])
    await rig.files.trim(3, ["d" * 64])
    assert rig.cache.spared == {"d" * 64}
    assert rig.files.stock == {}


async def test_files_are_added_to_a_replica_that_runs(rig: Rig) -> None:
    """Missing ones are sent; what the model folder has stays."""
    await rig.files.place("one", [A])
    await rig.files.add("one", [A, B])

    assert rig.cache.shipped == [A.sha256, B.sha256]
    assert rig.cache.links[1:] == [
        (A.sha256, "/b/models/one/m.onnx"),
        (B.sha256, "/b/models/one/w/x.bin"),
    ]
    assert "-delete" not in rig.commands[1]
    assert "mkdir -p /b/models/one/w" in rig.commands[1]


async def test_a_file_that_is_not_there_any_more_is_sent_again(rig: Rig) -> None:
    """A user may have emptied the cache, or a trim that began before the start."""
    await rig.files.place("one", [A, B])
    del rig.cache.stored[A.sha256]

    await rig.files.place("two", [A, B])

    assert rig.cache.shipped == [A.sha256, B.sha256, A.sha256]
    assert rig.cache.links[-2:] == [
        (A.sha256, "/b/models/two/m.onnx"),
        (B.sha256, "/b/models/two/w/x.bin"),
    ]


async def test_data_of_a_branch_is_copied(tmp_path: Path) -> None:
    """ONNX Runtime refuses it in a file with other names; one that the host lost is sent again."""
    weight = onnx.TensorProto(name="w", data_location=onnx.TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="w.bin")
    branch = helper.make_graph([], "b", [], [], [weight])
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch)
    model = helper.make_model(helper.make_graph([node], "g", [], []))
    (tmp_path / A.sha256).write_bytes(model.SerializeToString())
    rig = Rig(tmp_path)
    data = BundleFile("w.bin", B.size, B.sha256)
    await rig.files.place("one", [A, data])
    rig.cache.stored.clear()
    await rig.files.place("two", [A, data])

    assert rig.cache.copies == [
        (B.sha256, B.size, "/b/models/one/w.bin"),
        (B.sha256, B.size, "/b/models/two/w.bin"),
    ]
    assert [path for _, path in rig.cache.links] == [
        "/b/models/one/m.onnx",
        "/b/models/two/m.onnx",
    ]
    assert rig.cache.shipped == [A.sha256, B.sha256] * 2


async def test_uploads_that_broke_off_count_towards_the_limit(rig: Rig) -> None:
    """Nothing else would ever remove them."""
    await rig.files.send([A])
    await rig.files.trim(4, [A.sha256])
    assert rig.cache.spared == set()

    rig.cache.partial_bytes = 2 * MIB
    await rig.files.trim(4, [A.sha256])
    assert rig.cache.spared == {A.sha256}


async def test_bytes_that_were_there_are_not_counted_as_sent(rig: Rig) -> None:
    """An upload goes on where it broke off."""
    rig.cache.partial[A.sha256] = 2 * MIB

    await rig.files.send([A, B])

    assert rig.transfers.total_bytes == A.size + B.size - 2 * MIB
