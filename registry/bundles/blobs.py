"""Content-addressed storage of bundle files, and their uploads.

A blob is `ROOT/ab/<sha256>`, has mode 0444 and never changes. Bundles are laid out as hard links to
blobs, because ONNX Runtime refuses external data behind symbolic links, and as copies where it
refuses hard links (`own_copies`). Uploads are asynchronous and work in threads. All other methods
are short file operations without fsync; call them in a thread for folders of hundreds of files.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import structlog

from registry.bundles.own_copies import OwnCopies, copy
from registry.bundles.paths import check_path, check_sha256
from registry.bundles.unneeded import UnneededBlobs
from registry.errors import BadBundle, BodyTooLarge, Conflict, StoreUnavailable
from registry.files import free_bytes, fsync_folder, make_private, unavailable
from registry.model.bundles import Bundle, BundleFile

log = structlog.get_logger()

T = TypeVar("T")

INCOMING: Final = "incoming"
UPLOADS_MAX: Final = 16
BUFFER_BYTES: Final = 1024 * 1024
"""Chunks are collected up to this size: one switch to a thread per mebibyte."""


def is_blob(path: Path, sha256: str, size: int | None = None) -> bool:
    """Return whether the file at `path` has that hash and, if given, that size in bytes.

    Reads the whole file if the size matches. Raises OSError.
    """
    if size is not None and path.stat().st_size != size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sha256


def check_free(path: Path, size: int, free_min: int) -> None:
    """Raise StoreUnavailable unless `free_min` bytes of the disk stay free after `size` more.

    `path` is on that disk.
    """
    if not free_min:
        return
    with _filesystem():
        free = free_bytes(path)
    if free - size < free_min:
        text = f"expected {free_min >> 20} MiB that stay free beside {size} bytes of a file"
        raise StoreUnavailable(f"disk full: {text}, got {free >> 20} MiB that are free")


class Upload:
    """Upload of a file with announced size and, if known, announced hash.

    Created and ended by `BlobStore.receive` or `BlobStore.take`. One caller at a time. Each step
    runs in a thread, because hashing, writing and fsync would block the event loop.
    """

    def __init__(self, incoming: Path, sha256: str, size: int, free_min: int = 0) -> None:
        """Create the temporary file. Raises StoreUnavailable.

        `sha256` is "" if the content determines it. `free_min`: bytes of the disk that stay free.
        """
        self._free_min = free_min
        self._path = incoming / secrets.token_hex(16)
        self._sha256 = sha256
        self._size = size
        self._hash = hashlib.sha256()
        self._buffer = bytearray()
        self._received = 0
        self._step: asyncio.Future[object] | None = None
        try:
            self._file = self._path.open("xb", buffering=0)
        except OSError as error:
            raise unavailable(error) from error

    @property
    def sha256(self) -> str:
        """The announced hash, or the one computed at the end; "" before that."""
        return self._sha256

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Append the next bytes. Raises BodyTooLarge beyond the announced size."""
        self._check_idle()
        self._received += len(chunk)
        if self._received > self._size:
            raise BodyTooLarge(f"expected {self._size} bytes as announced, got more")
        self._buffer += chunk
        if len(self._buffer) >= BUFFER_BYTES:
            await self._in_thread(self._flush)

    async def commit(self, place: Callable[[str], Path]) -> None:
        """Verify the content and move it to its final path, which `place` returns for a hash.

        Raises BadBundle on a wrong size or hash.
        """
        if self._received != self._size:
            raise BadBundle(f"expected {self._size} bytes as announced, got {self._received}")
        await self._in_thread(lambda: self._finish(place))

    async def close(self) -> None:
        """Remove the temporary file; a committed blob remains."""
        step = self._step
        if step is None or step.done():
            self._discard()
            return
        # After a cancellation the step still runs, and the descriptor may only be closed after it.
        # A callback ensures this even if the wait below is cancelled, too.
        step.add_done_callback(lambda _: self._discard())
        await asyncio.wait([step])

    def _discard(self) -> None:
        self._file.close()
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        self._check_idle()
        self._step = asyncio.get_running_loop().run_in_executor(None, work)
        try:
            await asyncio.shield(self._step)
        except OSError as error:
            raise unavailable(error) from error

    def _check_idle(self) -> None:
        if self._step is not None and not self._step.done():
            raise Conflict("one upload takes one chunk at a time")

    def _flush(self) -> None:
        data, self._buffer = self._buffer, bytearray()
        check_free(self._path, len(data), self._free_min)
        self._hash.update(data)
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]

    def _finish(self, place: Callable[[str], Path]) -> None:
        self._flush()
        found = self._hash.hexdigest()
        if self._sha256 not in ("", found):
            raise BadBundle(f"expected sha256 {self._sha256}, got {found}")
        self._sha256, target = found, place(found)
        os.fchmod(self._file.fileno(), 0o444)
        os.fsync(self._file.fileno())
        target.parent.mkdir(mode=0o755, exist_ok=True)
        try:
            os.link(self._path, target)
        except FileExistsError:
            # An intact blob is kept: a replacement would not share its data with the folders that
            # link to it. Existing folders keep a damaged file until they are removed.
            if not is_blob(target, found, self._size):
                log.warning("a damaged blob is replaced", sha256=found)
                self._path.replace(target)
        fsync_folder(target.parent)
        fsync_folder(target.parent.parent)
        os.utime(target)


@dataclass(frozen=True, slots=True)
class Swept:
    """Number and total bytes of the blobs that a sweep removed."""

    blobs: int = 0
    bytes: int = 0


class BlobStore:
    """The blobs below `root`. `max_bytes` bounds one blob, `uploads_max` the concurrent uploads,
    which leave `free_min` bytes of the disk free. `unneeded` counts what clients upload.

    One server at a time: opening removes the incomplete uploads of an earlier server.
    """

    def __init__(
        self,
        root: Path,
        max_bytes: int,
        uploads_max: int = UPLOADS_MAX,
        free_min: int = 0,
    ) -> None:
        self._free_min = free_min
        self._root = root
        self._incoming = root / INCOMING
        self._max_bytes = max_bytes
        self._uploads_max = uploads_max
        self._uploads = 0
        self.unneeded = UnneededBlobs(self.free)
        self._own_copies = OwnCopies(self.path)
        with _filesystem():
            self._incoming.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Replicas get their own links; no other user has to read models here.
            make_private(root)
            for stale in self._incoming.iterdir():
                stale.unlink()

    def free(self) -> int:
        """Return the bytes of the disk that uploads may fill. Raises StoreUnavailable."""
        with _filesystem():
            return max(0, free_bytes(self._incoming) - self._free_min)

    def path(self, sha256: str) -> Path:
        """Return the path of that blob, stored or not. Raises BadBundle on a malformed sha256."""
        check_sha256(sha256)
        return self._root / sha256[:2] / sha256

    def has(self, sha256: str) -> bool:
        """Return whether that blob is stored, completely."""
        return self.path(sha256).is_file()

    def claim(self, sha256: str, size: int | None = None) -> bool:
        """Return like `has`, and protect a stored blob from the next sweeps by a new mtime.

        For a client that checks before it uploads: a blob reported as stored must still be stored
        at deploy. If its size differs from `size` (bytes), the blob is damaged; the result is then
        False, so that the client uploads it again.
        """
        path = self.path(sha256)
        try:
            if size is not None and path.stat().st_size != size:
                return False
            os.utime(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise unavailable(error) from error
        return True

    def is_stored(self, file: BundleFile) -> bool:
        """Return whether a file's blob is stored with its size. Raises StoreUnavailable."""
        return self.has(file.sha256) and self.size(file.sha256) == file.size

    def size(self, sha256: str) -> int:
        """Return the bytes of that blob. Raises StoreUnavailable if it is not stored."""
        with _filesystem():
            return self.path(sha256).stat().st_size

    def missing(self, bundle: Bundle) -> list[str]:
        """Return the sha256 of the bundle's files that are not stored with their size."""
        wanted = {file.sha256: file.size for file in bundle.files}
        return sorted(
            sha256
            for sha256, size in wanted.items()
            if not self.has(sha256) or self.size(sha256) != size
        )

    def remove_damaged(self, files: Collection[BundleFile]) -> list[str]:
        """Remove those blobs of these files whose content does not match their name, or that are
        links: replicas open none. Blocking.

        Returns their paths in the bundle; the next upload replaces the blobs. Reads all files.
        """
        damaged = []
        with _filesystem():
            for file in files:
                path = self.path(file.sha256)
                if path.is_symlink() or (path.is_file() and not is_blob(path, file.sha256)):
                    log.error("a damaged blob is removed", sha256=file.sha256, path=file.path)
                    path.unlink(missing_ok=True)
                    damaged.append(file.path)
        return damaged

    @contextlib.asynccontextmanager
    async def receive(self, sha256: str, size: int) -> AsyncIterator[Upload]:
        """Receive one blob: call `await upload.write(chunk)` until the upload is complete.

        At the end of the block, size and hash are verified and the blob appears atomically and
        durably. After an error nothing remains. The same blob may be received several times
        concurrently. Raises BodyTooLarge, BadBundle on a wrong size or hash, StoreUnavailable.
        """
        self.path(sha256)
        async with self._upload(sha256, size) as upload:
            yield upload

    @contextlib.asynccontextmanager
    async def take(self, size: int) -> AsyncIterator[Upload]:
        """Receive a blob of unknown hash, like `receive`; `upload.sha256` is set at the end."""
        async with self._upload("", size) as upload:
            yield upload

    @contextlib.asynccontextmanager
    async def _upload(self, sha256: str, size: int) -> AsyncIterator[Upload]:
        if size > self._max_bytes:
            raise BodyTooLarge(f"expected a file of at most {self._max_bytes} bytes, got {size}")
        if size < 0:
            raise BadBundle(f"expected a size of 0 bytes or more, got {size}")
        if self._uploads >= self._uploads_max:
            raise StoreUnavailable(
                f"{self._uploads} uploads are running already", retry_after_s=1.0
            )
        check_free(self._incoming, size, self._free_min)
        self._uploads += 1
        try:
            upload = Upload(self._incoming, sha256, size, self._free_min)
            try:
                yield upload
                await upload.commit(self.path)
            finally:
                await upload.close()
        finally:
            self._uploads -= 1

    def materialise(
        self, bundle: Bundle, target: Path, prepared: Collection[BundleFile] = ()
    ) -> None:
        """Lay `bundle` out below `target`, a new or empty folder: hard links, and a copy of each
        file that needs one (`OwnCopies`).

        `target` is on the blobs' filesystem. The `prepared` files are added beside the bundle's,
        either all of them or, if one is missing or has another size, none: the bundle works without
        them. Raises Conflict if `target` is not empty, and StoreUnavailable, naming a missing file;
        the folder is then removed.
        """
        try:
            target.mkdir(mode=0o755, parents=True, exist_ok=True)
            is_empty = next(target.iterdir(), None) is None
        except OSError as error:
            raise unavailable(error) from error
        if not is_empty:
            raise Conflict(f"{target} exists already and is not empty")
        try:
            own = self._own_copies.of(bundle.files)
            for file in bundle.files:
                self._place(target / check_path(file.path), file, is_copy=file.path in own)
                if self.size(file.sha256) != file.size:
                    raise StoreUnavailable(
                        f"{file.path}: its blob {file.sha256} is damaged: deploy the file again"
                    )
            _open_to_read(bundle.files, target)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
        if prepared:
            try:
                self.add(prepared, target)
            except StoreUnavailable as error:
                log.warning("a model starts without its prepared files", reason=error.message)

    def add(self, files: Collection[BundleFile], target: Path) -> None:
        """Add files to `target`, a folder that was laid out, as `materialise` does; they replace
        files of the same paths. A process that has one of these open keeps it.

        Raises StoreUnavailable if `target` is gone or if a file is missing or has another size;
        none of these paths is left then.
        """
        paths = [target / check_path(file.path) for file in files]
        try:
            for file in files:
                if self.size(file.sha256) != file.size:
                    raise StoreUnavailable(f"{file.path}: its blob has another size")
            if not target.is_dir():
                raise StoreUnavailable(f"{target} is gone")
            own = self._own_copies.of(files)
            for file, path in zip(files, paths, strict=True):
                with _filesystem():
                    path.unlink(missing_ok=True)
                self._place(path, file, is_copy=file.path in own)
            _open_to_read(files, target)
        except StoreUnavailable:
            for path in paths:
                path.unlink(missing_ok=True)
            raise

    def _place(self, path: Path, file: BundleFile, *, is_copy: bool) -> None:
        if is_copy:
            check_free(self._incoming, file.size, self._free_min)
        with _filesystem():
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            try:
                if is_copy:
                    copy(self.path(file.sha256), path)
                else:
                    os.link(self.path(file.sha256), path)
            except FileNotFoundError as error:
                raise StoreUnavailable(
                    f"{path.name}: its blob {file.sha256} is missing from the store"
                ) from error

    def sweep(self, keep: Collection[str], older_than_s: float, now_s: float) -> Swept:
        """Remove blobs that are not in `keep` and are older than `older_than_s`.

        `now_s` is the current time in Unix seconds. Folders that were laid out before keep their
        files, because hard links remain valid.
        """
        count = freed = 0
        with _filesystem():
            for path in self._blobs():
                if path.name in keep:
                    continue  # most are in `keep`: skipping stat() makes a sweep fast
                found = path.stat()
                if now_s - found.st_mtime > older_than_s:
                    path.unlink()
                    count, freed = count + 1, freed + found.st_size
        return Swept(count, freed)

    def _blobs(self) -> Iterator[Path]:
        for shard in self._root.iterdir():
            if shard != self._incoming and shard.is_dir():
                yield from shard.iterdir()


def _open_to_read(files: Collection[BundleFile], target: Path) -> None:
    """Let all users enter the folders, because a container may have another uid.

    The server's umask may forbid this otherwise.
    """
    parents = {parent for file in files for parent in Path(file.path).parents}
    with _filesystem():
        for parent in parents:
            (target / parent).chmod(0o755)


@contextlib.contextmanager
def _filesystem() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unavailable(error) from error
