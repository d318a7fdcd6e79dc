"""Model files on another host: sent once by content, linked or copied for each replica."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from pathlib import Path, PurePosixPath
from typing import TypeVar

from hosts.errors import ConnectionLost
from hosts.files import FileCache
from pool_manager.hosts.folders import HostFolders
from pool_manager.hosts.transfers import MIB, Progress, Transfers
from registry.bundles.own_copies import OwnCopies
from registry.errors import DriverError, HostDown
from registry.model.bundles import BundleFile

T = TypeVar("T")


class RemoteFiles:
    """The cache of files on one host, and the model folders that are linked to it.

    `path` returns where this machine keeps a file by its sha256. Methods raise DriverError, or
    HostDown if the connection to the host is lost.
    """

    def __init__(
        self,
        host: str,
        cache: FileCache,
        folders: HostFolders,
        path: Callable[[str], Path],
        transfers: Transfers,
    ) -> None:
        self._host = host
        self._cache = cache
        self._folders = folders
        self._path = path
        self._transfers = transfers
        self._own_copies = OwnCopies(path)
        self._placing: dict[str, int] = {}
        self.stock: dict[str, int] = {}
        """Bytes of each file in the cache by sha256, as last known."""

    @property
    def bytes_per_s(self) -> float:
        """Speed of transfers, as measured lately."""
        return self._cache.speed.bytes_per_s

    async def refresh(self) -> None:
        """Read what the cache has."""
        self.stock = await self._do("list files", self._cache.stock())

    async def place(self, id: str, files: Collection[BundleFile]) -> None:
        """Send missing files, then make them a replica's model folder."""
        await self._link(id, files, self._folders.empty_models)

    async def add(self, id: str, files: Collection[BundleFile]) -> None:
        """Send missing files, then add them to the model folder of a replica that runs."""
        await self._link(id, files, self._folders.extend_models)

    async def _link(
        self,
        id: str,
        files: Collection[BundleFile],
        make: Callable[[str, Collection[PurePosixPath]], Awaitable[None]],
    ) -> None:
        """Send files and link them; `make` makes the replica's model folder and those below it."""
        for file in files:
            self._placing[file.sha256] = self._placing.get(file.sha256, 0) + 1
        try:
            await self.send(files)
            paths = [PurePosixPath(file.path) for file in files]
            below = {path.parent for path in paths if path.parent != PurePosixPath(".")}
            await make(id, below)
            target = self._folders.model_dir(id)
            own = await asyncio.to_thread(self._own_copies.of, files)
            for file in files:
                give = self._give(file, str(target / file.path), is_copy=file.path in own)
                await self._do("link files", give)
        finally:
            for file in files:
                self._placing[file.sha256] -= 1
                if not self._placing[file.sha256]:
                    del self._placing[file.sha256]

    async def _give(self, file: BundleFile, path: str, *, is_copy: bool) -> None:
        """Link or copy a file of the cache to `path`. One that is not there any more is sent
        again."""
        try:
            await self._placed(file, path, is_copy=is_copy)
        except FileNotFoundError:
            self.stock.pop(file.sha256, None)
            await self.send([file])
            await self._placed(file, path, is_copy=is_copy)

    async def _placed(self, file: BundleFile, path: str, *, is_copy: bool) -> None:
        if is_copy:
            await self._cache.copy(file.sha256, file.size, path)
        else:
            await self._cache.link(file.sha256, path)

    async def send(self, files: Iterable[BundleFile], what: str = "files") -> None:
        """Send the files that the cache lacks."""
        missing = {one.sha256: one for one in files if one.sha256 not in self.stock}
        if not missing:
            return
        total = sum(one.size for one in missing.values())
        done = 0
        with self._transfers.of(what, total) as progress:
            for one in missing.values():
                advance = _Advance(progress, done)
                ship = self._cache.ship(one.sha256, one.size, self._path(one.sha256), advance)
                await self._do("send files", ship)
                done += one.size
                progress(done, total)
                self.stock[one.sha256] = one.size

    async def trim(self, limit_mib: int, kept: Collection[str]) -> None:
        """Remove the files used longest ago while the cache is larger than its limit, except those
        of replicas and those in `kept`."""
        if sum(self.stock.values()) + self._cache.partial_bytes <= limit_mib * MIB:
            return
        spared = {*kept, *self._placing}
        await self._do("trim the cache", self._cache.trim(limit_mib * MIB, spared))
        await self.refresh()

    async def _do(self, doing: str, work: Awaitable[T]) -> T:
        try:
            return await work
        except (ConnectionLost, TimeoutError) as error:
            raise HostDown(f"cannot {doing} on host {self._host}: {error}") from error
        except OSError as error:
            raise DriverError(f"cannot {doing} on host {self._host}: {error}") from error


class _Advance:
    """Progress of one file of a transfer, of which `before` bytes are done. Its first value counts
    bytes that were there before."""

    def __init__(self, progress: Progress, before: int) -> None:
        self._progress = progress
        self._before = before
        self._has_begun = False

    def __call__(self, there: int) -> None:
        self._progress(self._before + there, is_sent=self._has_begun)
        self._has_begun = True
