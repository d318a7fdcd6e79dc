"""One blob on its way in."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from registry.bundles.blobs import BUFFER_BYTES, Upload
from registry.errors import BadBundle, BodyTooLarge, Conflict, StoreUnavailable
from tests.support.nouns import sha256


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_chunks_become_a_file(tmp_path: Path) -> None:
    """What was written in pieces is committed as a whole, read-only."""
    content = b"0123456789" * (BUFFER_BYTES // 5)
    upload = Upload(tmp_path, sha256(content), len(content))

    for start in range(0, len(content), 300_000):
        await upload.write(memoryview(content)[start : start + 300_000])
    await upload.commit(lambda _sha256: tmp_path / "ab" / "blob")
    await upload.close()

    assert upload.received == len(content)
    assert (tmp_path / "ab" / "blob").read_bytes() == content
    assert (tmp_path / "ab" / "blob").stat().st_mode & 0o777 == 0o444
    assert (tmp_path / "ab" / "blob").stat().st_nlink == 1
    assert names(tmp_path) == ["ab"]


async def test_more_than_announced_is_refused_at_once(tmp_path: Path) -> None:
    """The byte that is too many is not stored."""
    upload = Upload(tmp_path, sha256(b"12"), 2)

    with pytest.raises(BodyTooLarge, match="expected 2 bytes as announced, got more"):
        await upload.write(b"123")

    await upload.close()
    assert names(tmp_path) == []


async def test_less_than_announced_is_refused(tmp_path: Path) -> None:
    """A body that ended early is not committed."""
    upload = Upload(tmp_path, sha256(b"12"), 2)
    await upload.write(b"1")

    with pytest.raises(BadBundle, match="expected 2 bytes as announced, got 1"):
        await upload.commit(lambda _sha256: tmp_path / "ab" / "blob")

    await upload.close()
    assert names(tmp_path) == []


async def test_other_content_is_refused(tmp_path: Path) -> None:
    """Bytes of another hash are not committed."""
    upload = Upload(tmp_path, sha256(b"12"), 2)
    await upload.write(b"21")

    with pytest.raises(BadBundle, match="expected sha256 6b51d431"):
        await upload.commit(lambda _sha256: tmp_path / "ab" / "blob")

    await upload.close()
    assert names(tmp_path) == []


async def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    """Where no file can be made the reason is told."""
    with pytest.raises(StoreUnavailable, match="disk error: No such file"):
        Upload(tmp_path / "missing", sha256(b""), 0)


async def test_a_cancelled_step_is_waited_for(tmp_path: Path) -> None:
    """Closing after a cancelled write leaves neither file nor descriptor behind."""
    content = bytes(BUFFER_BYTES)
    upload = Upload(tmp_path, sha256(content), len(content))
    writing = asyncio.create_task(upload.write(content))
    await asyncio.sleep(0)

    writing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await writing
    await upload.close()

    assert names(tmp_path) == []


async def test_one_chunk_at_a_time(tmp_path: Path) -> None:
    """A second writer during a write is refused, instead of mixing up the bytes."""
    content = bytes(2 * BUFFER_BYTES)
    upload = Upload(tmp_path, sha256(content), len(content))
    writing = asyncio.create_task(upload.write(content[:BUFFER_BYTES]))
    await asyncio.sleep(0)

    # Whether the thread is still writing by now is a matter of luck; both outcomes are in order.
    with contextlib.suppress(Conflict):
        await upload.write(content[BUFFER_BYTES:])
        await upload.commit(lambda _sha256: tmp_path / "ab" / "blob")
        assert (tmp_path / "ab" / "blob").read_bytes() == content
    await writing
    await upload.close()
