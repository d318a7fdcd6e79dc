"""Files on a host by content: sent once, checked there, removed when they were used longest ago.

The folder BASE/files is the index: NAME is the sha256, `NAME.part` an upload that is not complete.
A file's link count says whether a replica uses it, its time of modification when it was used last.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import shlex
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final, cast

import asyncssh

from hosts.connection import HostConnection
from hosts.errors import ConnectionLost, NoSpace, shown
from hosts.link import FAR_S
from hosts.speed import Speed

SHA256: Final = re.compile(r"[0-9a-f]{64}")
PART: Final = ".part"
MIB: Final = 2**20
CHUNK: Final = MIB
"""Bytes sent before the next are read; a chunk is encrypted in few turns of the loop."""
FAR_CHUNK: Final = 4 * MIB
"""The same for a far host, where each chunk costs a round trip."""
SPARE: Final = 64 * MIB
"""Bytes that must stay free on the file system of a host."""
TRANSFERS_MAX: Final = 2
"""Transfers to one host at the same time."""
ENTRIES_MAX: Final = 100_000
"""Max files in the cache; a longer listing is an error."""
CALL_S: Final = 60.0
"""Max seconds of one SFTP request, and of sending one chunk."""
SUM_BYTES_PER_S: Final = 10e6
"""Slowest disk on which a sha256 is awaited."""


@dataclass(frozen=True, slots=True)
class Entry:
    """File in the cache. `links` is 0 if the host does not say how many names it has."""

    name: str
    size: int
    used_s: float
    links: int


class FileCache:
    """Files of `connection`'s host in the folder `base`/files.

    A relative `base` begins at the login's home folder. Methods raise OSError: ConnectionLost if
    the connection broke, NoSpace if the file system is full. `partial_bytes` is the size of uploads
    that are not complete, as last listed.
    """

    def __init__(self, connection: HostConnection, base: str) -> None:
        self.speed = Speed()
        self.partial_bytes = 0
        self._connection = connection
        self._base = PurePosixPath(base)
        self._folder = self._base / "files"
        self._models = self._base / "models"
        self._transfers = asyncio.Semaphore(TRANSFERS_MAX)
        self._shipping: dict[str, tuple[asyncio.Lock, int]] = {}

    async def stock(self) -> dict[str, int]:
        """Return the sizes in bytes of the complete files by their sha256."""
        entries = await self._entries()
        stock = {one.name: one.size for one in entries if SHA256.fullmatch(one.name)}
        self.partial_bytes = sum(one.size for one in entries) - sum(stock.values())
        return stock

    async def ship(
        self, sha256: str, size: int, source: Path, progress: Callable[[int], None]
    ) -> None:
        """Make the file `sha256` of `size` bytes present on the host; `source` is its copy here.

        `progress` gets the bytes that are there, from 0 to `size`. An upload that was interrupted
        goes on where it stopped. A second call for the same file waits for the first.
        """
        _check_name(sha256)
        async with self._alone(sha256):
            if await self._size(self._file(sha256)) != size:
                async with self._transfers:
                    await self._upload(sha256, size, source, progress)
            await self._touch(sha256)
        progress(size)

    async def link(self, sha256: str, target: str) -> None:
        """Give a file a second name below `base`/models, replacing another file of that name.

        Its folder must exist. Raises FileNotFoundError if the cache has no such file.
        """
        _check_name(sha256)
        path = self._below_models(target)
        async with self._sftp(f"linking {target}") as sftp:
            try:
                await sftp.link(str(self._file(sha256)), str(path))
            except asyncssh.SFTPFailure:  # "Failure" is also what a name in use gives
                await sftp.lstat(str(self._file(sha256)))
                with contextlib.suppress(asyncssh.SFTPNoSuchFile):
                    await sftp.remove(str(path))
                await sftp.link(str(self._file(sha256)), str(path))
        await self._touch(sha256)

    async def copy(self, sha256: str, size: int, target: str) -> None:
        """Copy a file of `size` bytes as `link` links it, with a command of the host."""
        _check_name(sha256)
        path = self._below_models(target)
        await self._check_space(size, path.name)
        source, copied = shlex.quote(str(self._file(sha256))), shlex.quote(str(path))
        command = f"rm -f {copied} && cp {source} {copied} && chmod 644 {copied}"
        limit_s = CALL_S + size / SUM_BYTES_PER_S
        done = await self._connection.run(command, timeout_s=limit_s)
        if done.exit_status:
            async with self._sftp(f"copying {target}") as sftp:
                await sftp.lstat(str(self._file(sha256)))
            reason = done.stderr[:300].decode("utf-8", "replace").strip()
            raise OSError(f"{self._connection.name}: copying {target}: {reason}")
        await self._touch(sha256)

    async def trim(self, limit_bytes: int, kept: Collection[str]) -> None:
        """Remove files until all take at most `limit_bytes`, or only `kept` ones and those in use
        are left. Uploads that no call awaits are removed first."""
        entries = await self._entries()
        spared = {*kept, *self._shipping, *(f"{name}{PART}" for name in self._shipping)}
        for one in superfluous(entries, limit_bytes, spared):
            if one.name.removesuffix(PART) in self._shipping:  # since a removal before
                continue
            async with self._sftp(f"removing {one.name}") as sftp:
                with contextlib.suppress(asyncssh.SFTPNoSuchFile):
                    await sftp.remove(str(self._folder / one.name))

    def _below_models(self, target: str) -> PurePosixPath:
        path = PurePosixPath(target)
        if ".." in path.parts or not path.is_relative_to(self._models) or path == self._models:
            raise ValueError(f"expected a path below {self._models}, got {target!r}")
        return path

    def _file(self, sha256: str) -> PurePosixPath:
        return self._folder / sha256

    def _part(self, sha256: str) -> PurePosixPath:
        return self._folder / f"{sha256}{PART}"

    @asynccontextmanager
    async def _alone(self, sha256: str) -> AsyncIterator[None]:
        """Let one block at a time work on a file."""
        lock, users = self._shipping.get(sha256, (asyncio.Lock(), 0))
        self._shipping[sha256] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            _, users = self._shipping[sha256]
            if users == 1:
                del self._shipping[sha256]
            else:
                self._shipping[sha256] = lock, users - 1

    @asynccontextmanager
    async def _sftp(
        self, doing: str, limit_s: float = CALL_S
    ) -> AsyncIterator[asyncssh.SFTPClient]:
        """Yield SFTP for one request or a few; all errors become an OSError."""
        name = self._connection.name
        try:
            async with asyncio.timeout(limit_s):
                yield await self._connection.sftp()
        except asyncssh.SFTPNoSuchFile as error:
            raise FileNotFoundError(f"{name}: {doing}: {shown(error)}") from error
        except asyncssh.Error as error:
            if not self._connection.is_up:
                raise ConnectionLost(f"{name}: {doing}: {self._connection.why_down}") from error
            raise OSError(f"{name}: {doing}: {shown(error)}") from error
        except TimeoutError as error:
            raise TimeoutError(f"{name}: {doing}: no answer within {limit_s:g} s") from error

    async def _entries(self) -> list[Entry]:
        entries: list[Entry] = []
        try:
            async with self._sftp("listing files") as sftp:
                async for found in sftp.scandir(str(self._folder)):
                    if SHA256.fullmatch(str(found.filename).removesuffix(PART)):
                        entries.append(_entry(found))
                    if len(entries) > ENTRIES_MAX:
                        raise OSError(
                            f"{self._connection.name}: expected at most {ENTRIES_MAX} files in"
                            f" {self._folder}, got more"
                        )
        except FileNotFoundError:
            return []
        return entries

    async def _size(self, path: PurePosixPath) -> int | None:
        """Return a file's size, None if it does not exist."""
        try:
            async with self._sftp(f"looking at {path.name}") as sftp:
                return (await sftp.lstat(str(path))).size or 0
        except FileNotFoundError:
            return None

    async def _touch(self, sha256: str) -> None:
        """Mark a file as used now, by this machine's clock."""
        async with self._sftp(f"touching {sha256}") as sftp:
            await sftp.utime(str(self._file(sha256)))

    async def _upload(
        self, sha256: str, size: int, source: Path, progress: Callable[[int], None]
    ) -> None:
        async with self._sftp("making the folder of files") as sftp:
            await sftp.makedirs(str(self._folder), asyncssh.SFTPAttrs(permissions=0o700), True)
        start = await self._size(self._part(sha256)) or 0
        if start > size:
            start = 0
        for offset in dict.fromkeys((start, 0)):
            await self._send(sha256, size, offset, source, progress)
            if await self._sum(sha256, size) == sha256:
                async with self._sftp(f"naming {sha256}") as sftp:
                    await sftp.posix_rename(str(self._part(sha256)), str(self._file(sha256)))
                return
        async with self._sftp(f"removing {sha256}") as sftp:
            await sftp.remove(str(self._part(sha256)))
        raise OSError(
            f"{self._connection.name}: {source} arrived with another sha256 than {sha256}: its"
            " content changed on this machine, or a disk is faulty"
        )

    async def _send(
        self, sha256: str, size: int, offset: int, source: Path, progress: Callable[[int], None]
    ) -> None:
        """Append the bytes from `offset` on to the partial file, and measure the speed."""
        await self._check_space(size - offset, source.name)
        begun_s = time.monotonic()
        local = await asyncio.to_thread(source.open, "rb")
        try:
            await asyncio.to_thread(local.seek, offset)
            part = await self._open_part(sha256, is_new=not offset)
            try:
                await self._write(local, part, range(offset, size), progress)
            finally:
                await self._close(part)
        except (ConnectionLost, TimeoutError):
            raise
        except OSError as error:
            # SFTP says no more than "Failure" for a full disk.
            left = size - (await self._size(self._part(sha256)) or 0)
            await self._check_space(left, source.name, error)
            raise
        finally:
            await asyncio.to_thread(local.close)
        self.speed.add(size - offset, time.monotonic() - begun_s)

    async def _write(
        self, local: BinaryIO, part: Any, span: range, progress: Callable[[int], None]
    ) -> None:
        chunk = FAR_CHUNK if self._connection.rtt_s > FAR_S else CHUNK
        at = span.start
        progress(at)
        while data := await asyncio.to_thread(local.read, min(chunk, span.stop - at)):
            async with self._sftp("sending a file"):
                await part.write(data, at)
            at += len(data)
            progress(at)
        async with self._sftp("storing a file"):
            # Not all servers can; without it a crash of the host may leave a hole.
            with contextlib.suppress(asyncssh.SFTPOpUnsupported):
                await part.fsync()

    async def _open_part(self, sha256: str, *, is_new: bool) -> asyncssh.SFTPClientFile:
        async with self._sftp(f"opening {sha256}") as sftp:
            mode = "wb" if is_new else "r+b"
            attrs = asyncssh.SFTPAttrs(permissions=0o644)
            return await sftp.open(str(self._part(sha256)), mode, attrs, block_size=-1)

    async def _close(self, part: Any) -> None:
        with contextlib.suppress(OSError):
            async with self._sftp("closing a file"):
                await part.close()

    async def _check_space(self, needed: int, name: str, cause: Exception | None = None) -> None:
        """Raise NoSpace if the file system has no room for `needed` bytes more."""
        try:
            async with self._sftp("asking for free space") as sftp:
                found = await sftp.statvfs(str(self._folder))
        except (ConnectionLost, TimeoutError):
            raise
        except OSError:  # not all servers can
            return
        free = found.bavail * found.frsize
        if free < needed + SPARE:
            raise NoSpace(
                f"no space on {self._connection.name} for {name}: {self._folder} has"
                f" {free // MIB} MiB free, {(needed + SPARE) // MIB + 1} MiB are needed:"
                " remove files there, or lower the host's limit for cached files"
            ) from cause

    async def _sum(self, sha256: str, size: int) -> str:
        """Return the sha256 of the partial file, computed on the host if it can."""
        part = str(self._part(sha256))
        limit_s = CALL_S + size / SUM_BYTES_PER_S
        try:
            done = await self._connection.run(f"sha256sum < {shlex.quote(part)}", timeout_s=limit_s)
            found = done.stdout[:64].decode("ascii", "replace")
            if not done.exit_status and SHA256.fullmatch(found):
                return found
        except ConnectionRefusedError:  # no commands on this host
            pass
        return await self._read_sum(part, limit_s)

    async def _read_sum(self, part: str, limit_s: float) -> str:
        digest = hashlib.sha256()
        async with (
            self._sftp("reading a file back", limit_s) as sftp,
            sftp.open(part, "rb", block_size=-1) as file,
        ):
            while data := await file.read(CHUNK):
                await asyncio.to_thread(digest.update, cast(bytes, data))
        return digest.hexdigest()


def superfluous(entries: Sequence[Entry], limit_bytes: int, spared: Collection[str]) -> list[Entry]:
    """Return the files to remove, oldest first, so that the rest takes at most `limit_bytes`.

    Partial uploads go first. A file with several names, or whose number of names is not known, is
    in use.
    """
    left = sum(one.size for one in entries)
    gone = []
    for one in sorted(entries, key=lambda one: (not one.name.endswith(PART), one.used_s)):
        is_part = one.name.endswith(PART)
        if one.name in spared or (one.links != 1 and not is_part):
            continue
        if left <= limit_bytes and not is_part:
            break
        gone.append(one)
        left -= one.size
    return gone


def _entry(found: asyncssh.SFTPName) -> Entry:
    """Return an entry of a listing. The link count is only in the long form, which is that of `ls
    -l` (draft-ietf-secsh-filexfer-02, 7)."""
    fields = str(found.longname or "").split()
    links = int(fields[1]) if len(fields) > 1 and fields[1].isdecimal() else 0
    attrs = found.attrs
    return Entry(str(found.filename), attrs.size or 0, float(attrs.mtime or 0), links)


def _check_name(sha256: str) -> None:
    if not SHA256.fullmatch(sha256):
        raise ValueError(f"expected 64 hexadecimal digits, got {sha256[:80]!r}")
