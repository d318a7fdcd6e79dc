"""The content-addressed store and its uploads."""

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
from registry.model import Bundle, BundleFile
from tests.support.nouns import bundle, bundle_file, sha256

CONTENT = b"weights"
HASH = sha256(CONTENT)


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    """An empty store for blobs of up to 1,000 bytes."""
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


async def test_a_blob_comes_in(store: BlobStore, tmp_path: Path) -> None:
    """A received blob is in its place, read-only, and can be asked for."""
    assert not store.has(HASH)

    await put(store, CONTENT)

    assert store.path(HASH) == tmp_path / "blobs" / HASH[:2] / HASH
    assert store.path(HASH).read_bytes() == CONTENT
    assert store.path(HASH).stat().st_mode & 0o777 == 0o444
    assert store.has(HASH)
    assert store.size(HASH) == len(CONTENT)


async def test_an_empty_blob(store: BlobStore) -> None:
    """A file without bytes is a blob too."""
    assert store.has(await put(store, b""))


async def test_a_failed_upload_leaves_nothing(store: BlobStore, tmp_path: Path) -> None:
    """An error, a wrong hash or a client that left: nothing appears and nothing stays."""
    with pytest.raises(BadBundle, match="expected sha256"):
        async with store.receive(HASH, 3) as upload:
            await upload.write(b"abc")
    with pytest.raises(RuntimeError, match="the client left"):
        async with store.receive(HASH, len(CONTENT)) as upload:
            await leave(upload)

    assert not store.has(HASH)
    assert everything(tmp_path) == set()


async def test_a_blob_that_is_too_large(store: BlobStore) -> None:
    """A size over the limit is refused before a byte of it is taken."""
    with pytest.raises(BodyTooLarge, match="at most 1000 bytes, got 1001"):
        async with store.receive(HASH, 1001):
            pytest.fail("it was let in")
    with pytest.raises(BadBundle, match="got -1"):
        async with store.receive(HASH, -1):
            pytest.fail("it was let in")


async def test_uploads_are_bounded(tmp_path: Path) -> None:
    """One upload more than allowed is asked to come again; a finished one makes room."""
    store = BlobStore(tmp_path / "blobs", 1000, uploads_max=1)

    async with store.receive(HASH, len(CONTENT)) as upload:
        with pytest.raises(StoreUnavailable, match="1 uploads are running"):
            async with store.receive(HASH, len(CONTENT)):
                pytest.fail("it was let in")
        await upload.write(CONTENT)

    assert await put(store, b"other")


async def test_the_same_blob_twice_at_once(store: BlobStore, tmp_path: Path) -> None:
    """Two uploads of one blob both succeed, and the first name keeps its file."""
    async with store.receive(HASH, len(CONTENT)) as first:
        async with store.receive(HASH, len(CONTENT)) as second:
            await first.write(CONTENT)
            await second.write(CONTENT)
        before = store.path(HASH).stat().st_ino

    assert store.path(HASH).stat().st_ino == before
    assert len(everything(tmp_path)) == 1


async def test_many_uploads_at_once(store: BlobStore) -> None:
    """Different blobs may come in at the same time."""
    contents = [bytes([n]) * 100 for n in range(8)]

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(put(store, content)) for content in contents]

    assert all(store.has(task.result()) for task in tasks)


def test_half_received_files_go_at_the_start(tmp_path: Path) -> None:
    """What a crash left in the folder for incoming files is removed."""
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    (incoming / "half").write_bytes(b"we")

    BlobStore(tmp_path, 1000)

    assert list(incoming.iterdir()) == []


@pytest.mark.parametrize("name", ["", "../" * 21 + "a", "A" * 64])
def test_only_hashes_name_blobs(store: BlobStore, name: str) -> None:
    """What is no sha256 never becomes a path."""
    with pytest.raises(BadBundle, match="64 lower-case hex digits"):
        store.path(name)


def test_a_blob_that_is_not_here(store: BlobStore) -> None:
    """Asking the size of a missing blob is an error, claiming it is not."""
    with pytest.raises(StoreUnavailable):
        store.size(HASH)
    assert not store.claim(HASH)


async def laid_out(store: BlobStore) -> Bundle:
    for content in (b"model", b"side"):
        await put(store, content)
    return make_bundle([bundle_file("m.onnx", b"model"), bundle_file("data/w.bin", b"side")])


async def test_a_bundle_is_laid_out_by_hard_links(store: BlobStore, tmp_path: Path) -> None:
    """Every file is there under its path and is the blob itself, no link to it."""
    whole = await laid_out(store)
    target = tmp_path / "replicas" / "r1"

    store.materialise(whole, target)

    assert everything(target) == {"m.onnx", "data/w.bin"}
    for file in whole.files:
        placed = target / file.path
        assert not placed.is_symlink()
        assert placed.stat().st_ino == store.path(file.sha256).stat().st_ino


async def test_other_users_can_read_what_is_laid_out(store: BlobStore, tmp_path: Path) -> None:
    """Replicas in containers are not root, whatever umask the server was started with."""
    whole = await laid_out(store)
    before = os.umask(0o077)
    try:
        store.materialise(whole, tmp_path / "r1")
    finally:
        os.umask(before)

    for folder in (tmp_path / "r1", tmp_path / "r1" / "data"):
        assert folder.stat().st_mode & 0o777 == 0o755


async def test_a_missing_blob_leaves_no_folder(store: BlobStore, tmp_path: Path) -> None:
    """Where one file cannot be laid out, the error names it and the folder is gone."""
    await put(store, b"model")
    whole = bundle(a=b"model", b=b"lost")

    assert store.missing(whole) == [sha256(b"lost")]
    with pytest.raises(StoreUnavailable, match=f"b: its blob {sha256(b'lost')} is missing"):
        store.materialise(whole, tmp_path / "r1")

    assert not (tmp_path / "r1").exists()


async def test_a_blob_of_another_size_is_missing(store: BlobStore) -> None:
    """A bundle that announces another size for a blob does not have it."""
    await put(store, CONTENT)
    lie = Bundle("0" * 64, (BundleFile("a", 3, HASH),))

    assert store.missing(lie) == [HASH]


async def test_a_folder_that_exists_is_not_touched(store: BlobStore, tmp_path: Path) -> None:
    """A target that is there already is refused, and stays as it is."""
    target = tmp_path / "r1"
    target.mkdir()
    (target / "mine").touch()

    with pytest.raises(Conflict, match="exists already"):
        store.materialise(await laid_out(store), target)

    assert everything(target) == {"mine"}


async def test_a_target_that_cannot_be(store: BlobStore, tmp_path: Path) -> None:
    """A target below a file is told as it is."""
    (tmp_path / "file").touch()

    with pytest.raises(StoreUnavailable, match="disk error"):
        store.materialise(await laid_out(store), tmp_path / "file" / "r1")


def test_bad_paths_are_refused_once_more(store: BlobStore, tmp_path: Path) -> None:
    """A bundle that was not checked cannot leave its folder either."""
    outside = Bundle("0" * 64, (bundle_file("../outside"),))

    with pytest.raises(BadBundle, match=r"\.\."):
        store.materialise(outside, tmp_path / "r1")

    assert not (tmp_path / "r1").exists()


def age(store: BlobStore, name: str, at_s: float) -> None:
    os.utime(store.path(name), (at_s, at_s))


async def test_a_sweep_removes_what_is_old_and_unused(store: BlobStore) -> None:
    """Blobs that are kept or young stay; the rest goes and is counted."""
    used, young, old = [await put(store, content) for content in (b"used", b"young", b"old!!")]
    age(store, used, 100)
    age(store, young, 950)
    age(store, old, 100)

    swept = store.sweep({used}, older_than_s=100, now_s=1000)

    assert swept == Swept(1, 5)
    assert [store.has(name) for name in (used, young, old)] == [True, True, False]


async def test_a_claim_makes_young(store: BlobStore) -> None:
    """A blob that a client was told about survives the next sweep."""
    name = await put(store, CONTENT)
    age(store, name, 100)

    assert store.claim(name)
    store.sweep(set(), older_than_s=100, now_s=1000)

    assert store.has(name)


async def test_uploading_again_makes_young(store: BlobStore) -> None:
    """A blob that came in once more survives the next sweep."""
    age(store, await put(store, CONTENT), 100)

    await put(store, CONTENT)
    store.sweep(set(), older_than_s=100, now_s=1000)

    assert store.has(HASH)


async def test_folders_outlive_a_sweep(store: BlobStore, tmp_path: Path) -> None:
    """A bundle laid out before keeps its files when their blobs are swept."""
    whole = await laid_out(store)
    store.materialise(whole, tmp_path / "r1")

    store.sweep(set(), older_than_s=-1, now_s=10**12)

    assert (tmp_path / "r1" / "m.onnx").read_bytes() == b"model"
    assert store.missing(whole) == sorted(file.sha256 for file in whole.files)


DAMAGES = {"cut": b"weig", "nothing": b"", "other bytes": b"WEIGHTS"}


def damage(store: BlobStore, name: str, content: bytes) -> None:
    """Change what is under a blob's name, as a disk or a hand may do it."""
    path = store.path(name)
    path.unlink()
    path.write_bytes(content)
    path.chmod(0o444)


@pytest.mark.parametrize("content", DAMAGES.values(), ids=DAMAGES)
async def test_an_upload_heals_a_damaged_blob(
    store: BlobStore, tmp_path: Path, content: bytes
) -> None:
    """The new file takes its name; a folder that was laid out before keeps what it has."""
    damage(store, await put(store, CONTENT), content)
    (tmp_path / "r1").mkdir()
    os.link(store.path(HASH), tmp_path / "r1" / "w")

    await put(store, CONTENT)

    assert store.path(HASH).read_bytes() == CONTENT
    assert store.path(HASH).stat().st_mode & 0o777 == 0o444
    assert (tmp_path / "r1" / "w").read_bytes() == content
    assert everything(tmp_path) == {f"blobs/{HASH[:2]}/{HASH}", "r1/w"}


async def test_a_damaged_blob_is_found(store: BlobStore, tmp_path: Path) -> None:
    """One of another size is not claimed, makes no folder, and is removed where somebody asks;
    sound blobs stay."""
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


async def test_a_sweep_in_a_store_that_is_gone(store: BlobStore, tmp_path: Path) -> None:
    """A folder that somebody removed is told as it is."""
    shutil.rmtree(tmp_path / "blobs")

    with pytest.raises(StoreUnavailable, match="disk error"):
        store.sweep(set(), 0, 0)


async def test_a_blob_may_come_without_its_hash(store: BlobStore) -> None:
    """What came tells it; the blob is like any other then."""
    async with store.take(len(CONTENT)) as upload:
        assert upload.sha256 == ""
        await upload.write(CONTENT)

    assert upload.sha256 == HASH
    assert store.path(HASH).read_bytes() == CONTENT


async def test_less_than_announced_is_no_blob(store: BlobStore, tmp_path: Path) -> None:
    """Without a hash the size still counts, and nothing stays."""
    with pytest.raises(BadBundle, match="expected 9 bytes"):
        async with store.take(9) as upload:
            await upload.write(b"less")
    with pytest.raises(BodyTooLarge):
        async with store.take(1001):
            pass

    assert everything(tmp_path / "blobs") == set()


PREPARED = (bundle_file(".prepared/graph.onnx", b"graph"), bundle_file(".prepared/w", b"weights"))


async def test_prepared_files_lie_beside_the_bundles(store: BlobStore, tmp_path: Path) -> None:
    """By hard links too, and other users can read them."""
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
async def test_a_bundle_does_without_what_is_prepared(
    store: BlobStore, tmp_path: Path, what: str
) -> None:
    """Where one of its files is missing or has lost bytes none is laid out."""
    whole = await laid_out(store)
    await put(store, b"graph")
    if what == "cut":
        path = store.path(await put(store, b"weights"))
        path.chmod(0o644)
        path.write_bytes(b"weigh")

    store.materialise(whole, tmp_path / "r1", PREPARED)

    assert everything(tmp_path / "r1") == {"m.onnx", "data/w.bin"}


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
