"""Tests of the content-addressed blob store and its uploads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from pathlib import Path

import pytest

from registry.bundles.blobs import BUFFER_BYTES, BlobStore, Swept, Upload
from registry.bundles.paths import make_bundle
from registry.errors import BadBundle, BodyTooLarge, Conflict, StoreUnavailable
from registry.model.bundles import Bundle, BundleFile
from tests.support.nouns import bundle, bundle_file, sha256

CONTENT = b"weights"
HASH = sha256(CONTENT)


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    """Empty store for blobs of up to 1,000 bytes."""
    return BlobStore(tmp_path / "blobs", 1000)


async def put(store: BlobStore, content: bytes) -> str:
    async with store.receive(sha256(content), len(content)) as upload:
        await upload.write(content)
    return sha256(content)


async def leave(upload: Upload) -> None:
    await upload.write(CONTENT)
    raise RuntimeError("the client left")


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


async def test_a_received_blob_is_stored(store: BlobStore, tmp_path: Path) -> None:
    """A received blob is at its path, read-only, and `has` returns True."""
    assert not store.has(HASH)

    await put(store, CONTENT)

    assert store.path(HASH) == tmp_path / "blobs" / HASH[:2] / HASH
    assert store.path(HASH).read_bytes() == CONTENT
    assert store.path(HASH).stat().st_mode & 0o777 == 0o444
    assert store.has(HASH)
    assert store.size(HASH) == len(CONTENT)


async def test_an_empty_blob(store: BlobStore) -> None:
    """An empty file is a valid blob."""
    assert store.has(await put(store, b""))


async def test_a_failed_upload_leaves_nothing(store: BlobStore, tmp_path: Path) -> None:
    """A wrong size or hash and an aborted upload leave no file."""
    with pytest.raises(BadBundle, match="expected sha256"):
        async with store.receive(HASH, 3) as upload:
            await upload.write(b"abc")
    with pytest.raises(RuntimeError, match="the client left"):
        async with store.receive(HASH, len(CONTENT)) as upload:
            await leave(upload)

    assert not store.has(HASH)
    assert everything(tmp_path) == set()


async def test_a_blob_that_is_too_large(store: BlobStore) -> None:
    """A size over the limit is refused before any byte is read."""
    with pytest.raises(BodyTooLarge, match="at most 1000 bytes, got 1001"):
        async with store.receive(HASH, 1001):
            pytest.fail("it was let in")
    with pytest.raises(BadBundle, match="got -1"):
        async with store.receive(HASH, -1):
            pytest.fail("it was let in")


async def test_uploads_are_bounded(tmp_path: Path) -> None:
    """An upload beyond the limit is refused; a finished one makes room."""
    store = BlobStore(tmp_path / "blobs", 1000, uploads_max=1)

    async with store.receive(HASH, len(CONTENT)) as upload:
        with pytest.raises(StoreUnavailable, match="1 uploads are running"):
            async with store.receive(HASH, len(CONTENT)):
                pytest.fail("it was let in")
        await upload.write(CONTENT)

    assert await put(store, b"other")


async def test_the_same_blob_twice_at_once(store: BlobStore, tmp_path: Path) -> None:
    """Two concurrent uploads of one blob both succeed, and the first file stays."""
    async with store.receive(HASH, len(CONTENT)) as first:
        async with store.receive(HASH, len(CONTENT)) as second:
            await first.write(CONTENT)
            await second.write(CONTENT)
        before = store.path(HASH).stat().st_ino

    assert store.path(HASH).stat().st_ino == before
    assert len(everything(tmp_path)) == 1


async def test_many_uploads_at_once(store: BlobStore) -> None:
    """Different blobs can be uploaded concurrently."""
    contents = [bytes([n]) * 100 for n in range(8)]

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(put(store, content)) for content in contents]

    assert all(store.has(task.result()) for task in tasks)


def test_partial_uploads_are_removed_at_the_start(tmp_path: Path) -> None:
    """Files that a crash left in the incoming folder are removed."""
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    (incoming / "half").write_bytes(b"we")

    BlobStore(tmp_path, 1000)

    assert list(incoming.iterdir()) == []


@pytest.mark.parametrize("name", ["", "../" * 21 + "a", "A" * 64])
def test_only_hashes_name_blobs(store: BlobStore, name: str) -> None:
    """A string that is not a sha256 never becomes a path."""
    with pytest.raises(BadBundle, match="64 lower-case hex digits"):
        store.path(name)


def test_a_missing_blob(store: BlobStore) -> None:
    """The size of a missing blob raises; a claim returns False."""
    with pytest.raises(StoreUnavailable):
        store.size(HASH)
    assert not store.claim(HASH)


async def laid_out(store: BlobStore) -> Bundle:
    for content in (b"model", b"side"):
        await put(store, content)
    return make_bundle([bundle_file("m.onnx", b"model"), bundle_file("data/w.bin", b"side")])


async def test_a_bundle_is_laid_out_by_hard_links(store: BlobStore, tmp_path: Path) -> None:
    """Each file is at its path as a hard link to its blob, not a symbolic link."""
    whole = await laid_out(store)
    target = tmp_path / "replicas" / "r1"

    store.materialise(whole, target)

    assert everything(target) == {"m.onnx", "data/w.bin"}
    for file in whole.files:
        placed = target / file.path
        assert not placed.is_symlink()
        assert placed.stat().st_ino == store.path(file.sha256).stat().st_ino


async def test_other_users_can_read_a_materialised_bundle(store: BlobStore, tmp_path: Path) -> None:
    """Replicas in containers are not root: folders are readable whatever the server's umask."""
    whole = await laid_out(store)
    before = os.umask(0o077)
    try:
        store.materialise(whole, tmp_path / "r1")
    finally:
        os.umask(before)

    for folder in (tmp_path / "r1", tmp_path / "r1" / "data"):
        assert folder.stat().st_mode & 0o777 == 0o755


async def test_a_missing_blob_leaves_no_folder(store: BlobStore, tmp_path: Path) -> None:
    """If one file cannot be linked, the error names it and the folder is removed."""
    await put(store, b"model")
    whole = bundle(a=b"model", b=b"lost")

    assert store.missing(whole) == [sha256(b"lost")]
    with pytest.raises(StoreUnavailable, match=f"b: its blob {sha256(b'lost')} is missing"):
        store.materialise(whole, tmp_path / "r1")

    assert not (tmp_path / "r1").exists()


async def test_a_blob_of_another_size_is_missing(store: BlobStore) -> None:
    """A blob whose size differs from the bundle's entry counts as missing."""
    await put(store, CONTENT)
    lie = Bundle("0" * 64, (BundleFile("a", 3, HASH),))

    assert store.missing(lie) == [HASH]


async def test_a_folder_that_exists_is_not_touched(store: BlobStore, tmp_path: Path) -> None:
    """An existing target is refused and stays unchanged."""
    target = tmp_path / "r1"
    target.mkdir()
    (target / "mine").touch()

    with pytest.raises(Conflict, match="exists already"):
        store.materialise(await laid_out(store), target)

    assert everything(target) == {"mine"}


async def test_a_target_below_a_file(store: BlobStore, tmp_path: Path) -> None:
    """A target below a file is reported as a disk error."""
    (tmp_path / "file").touch()

    with pytest.raises(StoreUnavailable, match="disk error"):
        store.materialise(await laid_out(store), tmp_path / "file" / "r1")


def test_materialise_checks_paths_again(store: BlobStore, tmp_path: Path) -> None:
    """An unchecked bundle cannot write outside its folder either."""
    outside = Bundle("0" * 64, (bundle_file("../outside"),))

    with pytest.raises(BadBundle, match=r"\.\."):
        store.materialise(outside, tmp_path / "r1")

    assert not (tmp_path / "r1").exists()


def age(store: BlobStore, name: str, at_s: float) -> None:
    os.utime(store.path(name), (at_s, at_s))


async def test_a_sweep_removes_old_unused_blobs(store: BlobStore) -> None:
    """Kept and young blobs stay; the others are removed and counted."""
    used, young, old = [await put(store, content) for content in (b"used", b"young", b"old!!")]
    age(store, used, 100)
    age(store, young, 950)
    age(store, old, 100)

    swept = store.sweep({used}, older_than_s=100, now_s=1000)

    assert swept == Swept(1, 5)
    assert [store.has(name) for name in (used, young, old)] == [True, True, False]


async def test_a_claimed_blob_survives_the_next_sweep(store: BlobStore) -> None:
    """A claim renews the age of a blob."""
    name = await put(store, CONTENT)
    age(store, name, 100)

    assert store.claim(name)
    store.sweep(set(), older_than_s=100, now_s=1000)

    assert store.has(name)


async def test_a_blob_uploaded_again_survives_the_next_sweep(store: BlobStore) -> None:
    """A repeated upload renews the age of a blob."""
    age(store, await put(store, CONTENT), 100)

    await put(store, CONTENT)
    store.sweep(set(), older_than_s=100, now_s=1000)

    assert store.has(HASH)


async def test_folders_outlive_a_sweep(store: BlobStore, tmp_path: Path) -> None:
    """A materialised bundle keeps its files when their blobs are swept."""
    whole = await laid_out(store)
    store.materialise(whole, tmp_path / "r1")

    store.sweep(set(), older_than_s=-1, now_s=10**12)

    assert (tmp_path / "r1" / "m.onnx").read_bytes() == b"model"
    assert store.missing(whole) == sorted(file.sha256 for file in whole.files)


DAMAGES = {"cut": b"weig", "nothing": b"", "other bytes": b"WEIGHTS"}


def damage(store: BlobStore, name: str, content: bytes) -> None:
    """Replace the content of a blob, as a disk error or a person may."""
    path = store.path(name)
    path.unlink()
    path.write_bytes(content)
    path.chmod(0o444)


@pytest.mark.parametrize("content", DAMAGES.values(), ids=DAMAGES)
async def test_an_upload_replaces_a_damaged_blob(
    store: BlobStore, tmp_path: Path, content: bytes
) -> None:
    """The new file takes the name; a folder materialised before keeps its content."""
    damage(store, await put(store, CONTENT), content)
    (tmp_path / "r1").mkdir()
    os.link(store.path(HASH), tmp_path / "r1" / "w")

    await put(store, CONTENT)

    assert store.path(HASH).read_bytes() == CONTENT
    assert store.path(HASH).stat().st_mode & 0o777 == 0o444
    assert (tmp_path / "r1" / "w").read_bytes() == content
    assert everything(tmp_path) == {f"blobs/{HASH[:2]}/{HASH}", "r1/w"}


async def test_a_damaged_blob_is_found(store: BlobStore, tmp_path: Path) -> None:
    """A blob of another size is not claimed, cannot be materialised, and is removed by
    `remove_damaged`; intact blobs stay."""
    whole = make_bundle([bundle_file("a", CONTENT), bundle_file("b", b"sound")])
    for content in (CONTENT, b"sound"):
        await put(store, content)
    assert store.claim(HASH, len(CONTENT))
    damage(store, HASH, b"weig")

    assert not store.claim(HASH, len(CONTENT))
    assert store.missing(whole) == [HASH]
    with pytest.raises(StoreUnavailable, match=f"a: its blob {HASH} is damaged: deploy"):
        store.materialise(whole, tmp_path / "r1")
    assert not (tmp_path / "r1").exists()

    assert store.remove_damaged(whole.files) == ["a"]
    assert (store.has(HASH), store.has(sha256(b"sound"))) == (False, True)


async def test_a_blob_that_is_a_link_is_damaged(store: BlobStore, tmp_path: Path) -> None:
    """Whatever it leads to: a replica opens regular files only."""
    whole = make_bundle([bundle_file("a", CONTENT)])
    await put(store, CONTENT)
    path = store.path(HASH)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")

    assert store.remove_damaged(whole.files) == ["a"]
    assert not store.has(HASH)
    assert (tmp_path / "elsewhere").read_bytes() == CONTENT


async def test_a_sweep_in_a_removed_store(store: BlobStore, tmp_path: Path) -> None:
    """A removed folder is reported as a disk error."""
    shutil.rmtree(tmp_path / "blobs")

    with pytest.raises(StoreUnavailable, match="disk error"):
        store.sweep(set(), 0, 0)


async def test_a_blob_may_be_uploaded_without_its_hash(store: BlobStore) -> None:
    """The hash follows from the content."""
    async with store.take(len(CONTENT)) as upload:
        assert upload.sha256 == ""
        await upload.write(CONTENT)

    assert upload.sha256 == HASH
    assert store.path(HASH).read_bytes() == CONTENT


async def test_a_short_upload_without_a_hash_is_refused(store: BlobStore, tmp_path: Path) -> None:
    """Without a hash the announced size must match, and no file remains."""
    with pytest.raises(BadBundle, match="expected 9 bytes"):
        async with store.take(9) as upload:
            await upload.write(b"less")
    with pytest.raises(BodyTooLarge):
        async with store.take(1001):
            pass

    assert everything(tmp_path / "blobs") == set()


PREPARED = (bundle_file(".prepared/graph.onnx", b"graph"), bundle_file(".prepared/w", b"weights"))


async def test_prepared_files_are_materialised_with_the_bundle(
    store: BlobStore, tmp_path: Path
) -> None:
    """Prepared files are hard links too, and other users can read them."""
    whole = await laid_out(store)
    for content in (b"graph", b"weights"):
        await put(store, content)

    store.materialise(whole, tmp_path / "r1", PREPARED)

    prepared = {file.path for file in PREPARED}
    assert everything(tmp_path / "r1") == {"m.onnx", "data/w.bin", *prepared}
    assert (tmp_path / "r1" / ".prepared").stat().st_mode & 0o777 == 0o755
    graph = tmp_path / "r1" / ".prepared" / "graph.onnx"
    assert graph.samefile(store.path(sha256(b"graph")))


@pytest.mark.parametrize("what", ["missing", "cut"])
async def test_a_bundle_is_materialised_without_damaged_prepared_files(
    store: BlobStore, tmp_path: Path, what: str
) -> None:
    """If one prepared file is missing or truncated, none is materialised."""
    whole = await laid_out(store)
    await put(store, b"graph")
    if what == "cut":
        path = store.path(await put(store, b"weights"))
        path.chmod(0o644)
        path.write_bytes(b"weigh")

    store.materialise(whole, tmp_path / "r1", PREPARED)

    assert everything(tmp_path / "r1") == {"m.onnx", "data/w.bin"}


async def test_files_are_added_to_a_folder_that_is_in_use(store: BlobStore, tmp_path: Path) -> None:
    """They replace files of the same paths; a process that has one of these open keeps it."""
    whole = await laid_out(store)
    for content in (b"graph", b"weights", b"other"):
        await put(store, content)
    target = tmp_path / "r1"
    store.materialise(whole, target, PREPARED)

    with (target / ".prepared" / "w").open("rb") as before:
        store.add([bundle_file(".prepared/w", b"other")], target)
        assert before.read() == b"weights"

    assert (target / ".prepared" / "w").read_bytes() == b"other"
    assert (target / ".prepared" / "graph.onnx").read_bytes() == b"graph"


@pytest.mark.parametrize("what", ["missing", "no folder"])
async def test_of_files_that_cannot_be_added_none_is_left(
    store: BlobStore, tmp_path: Path, what: str
) -> None:
    """A folder that was removed is not made again."""
    await put(store, b"graph")
    target = tmp_path / "r1"
    if what == "missing":
        target.mkdir()
        await put(store, b"weights")
        store.add(PREPARED, target)
        store.path(sha256(b"weights")).unlink()
    else:
        await put(store, b"weights")

    with pytest.raises(StoreUnavailable, match="No such file" if what == "missing" else "is gone"):
        store.add(PREPARED, target)

    assert everything(tmp_path / "r1") == set()
    assert target.exists() == (what == "missing")


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_chunks_form_a_file(tmp_path: Path) -> None:
    """Content written in chunks is committed as one read-only file."""
    content = b"0123456789" * (BUFFER_BYTES // 5)
    upload = Upload(tmp_path, sha256(content), len(content))

    for start in range(0, len(content), 300_000):
        await upload.write(memoryview(content)[start : start + 300_000])
    await upload.commit(lambda _sha256: tmp_path / "ab" / "blob")
    await upload.close()

    assert upload._received == len(content)
    assert (tmp_path / "ab" / "blob").read_bytes() == content
    assert (tmp_path / "ab" / "blob").stat().st_mode & 0o777 == 0o444
    assert (tmp_path / "ab" / "blob").stat().st_nlink == 1
    assert names(tmp_path) == ["ab"]


async def test_more_than_announced_is_refused_at_once(tmp_path: Path) -> None:
    """A byte beyond the announced size is not stored."""
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
    """Content with another hash is not committed."""
    upload = Upload(tmp_path, sha256(b"12"), 2)
    await upload.write(b"21")

    with pytest.raises(BadBundle, match="expected sha256 6b51d431"):
        await upload.commit(lambda _sha256: tmp_path / "ab" / "blob")

    await upload.close()
    assert names(tmp_path) == []


async def test_an_upload_into_a_missing_folder(tmp_path: Path) -> None:
    """The error has the filesystem's reason."""
    with pytest.raises(StoreUnavailable, match="disk error: No such file"):
        Upload(tmp_path / "missing", sha256(b""), 0)


async def test_close_waits_for_a_cancelled_write(tmp_path: Path) -> None:
    """Closing after a cancelled write leaves neither file nor descriptor."""
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
    """A concurrent second write is refused, so that bytes are never mixed."""
    content = bytes(2 * BUFFER_BYTES)
    upload = Upload(tmp_path, sha256(content), len(content))
    writing = asyncio.create_task(upload.write(content[:BUFFER_BYTES]))
    await asyncio.sleep(0)

    # The thread may or may not be writing by now; both outcomes are valid.
    with contextlib.suppress(Conflict):
        await upload.write(content[BUFFER_BYTES:])
        await upload.commit(lambda _sha256: tmp_path / "ab" / "blob")
        assert (tmp_path / "ab" / "blob").read_bytes() == content
    await writing
    await upload.close()
