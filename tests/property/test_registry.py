"""Property tests of the registry."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from registry.bundles.blobs import BlobStore
from registry.bundles.onnx_files import OnnxReader
from registry.bundles.paths import check_path, digest, make_bundle
from registry.catalog import Catalog, Change
from registry.errors import BadBundle, BadManifest, BadRequest, UnknownFunction
from registry.manifest import parse_manifest
from registry.model.bundles import BundleFile
from registry.names import is_name, name_from_file
from registry.store.database import Database
from registry.store.functions import Functions
from tests.support import stored
from tests.support.nouns import bundle, bundle_file, deployed, function, revision, sha256

T = TypeVar("T")

TRICKY = st.text(alphabet="ab./\\~\x00\u202e\u0301é -:", max_size=12) | st.text(max_size=30)
NAMES = st.sampled_from(["a", "b"])
HASHES = st.binary(min_size=32, max_size=32).map(bytes.hex)
FILES = st.lists(
    st.builds(
        BundleFile,
        st.text(alphabet="abcdefgh", min_size=1, max_size=8),
        st.integers(0, 2**30),
        HASHES,
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda file: file.path,
)


def in_folder(work: Callable[[Path], Coroutine[Any, Any, T]]) -> T:
    """Run `work` in a new event loop with a new folder, as each example needs."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(work(Path(folder)))


@given(TRICKY)
def test_an_accepted_path_stays_inside(path: str) -> None:
    """An accepted path is below its folder and has a single spelling."""
    try:
        check_path(path)
    except BadBundle:
        return
    root = Path("/bundles/target")
    placed = root / path

    assert placed != root
    assert placed.is_relative_to(root)
    assert ".." not in placed.parts
    assert placed.relative_to(root).as_posix() == path


@settings(max_examples=30, deadline=None)
@given(st.lists(TRICKY, min_size=1, max_size=4))
def test_an_accepted_bundle_is_laid_out_inside(paths: list[str]) -> None:
    """Materialising an accepted bundle creates exactly its files."""

    async def work(folder: Path) -> None:
        try:
            whole = make_bundle(bundle_file(path, b"x") for path in paths)
        except BadBundle:
            return
        store = BlobStore(folder / "blobs", 10)
        async with store.receive(sha256(b"x"), 1) as upload:
            await upload.write(b"x")
        await asyncio.to_thread(store.materialise, whole, folder / "in" / "target")

        made = {
            file.relative_to(folder / "in" / "target").as_posix()
            for file in await asyncio.to_thread(lambda: list((folder / "in").rglob("*")))
            if not file.is_dir()
        }
        assert made == set(paths)

    in_folder(work)


@given(FILES, st.randoms(use_true_random=False))
def test_a_digest_does_not_depend_on_order(files: list[BundleFile], random: Any) -> None:
    """The same files in any order are the same bundle."""
    shuffled = random.sample(files, len(files))

    assert digest(shuffled) == digest(files)
    assert make_bundle(shuffled) == make_bundle(files)


@given(FILES, FILES)
def test_a_digest_tells_bundles_apart(a: list[BundleFile], b: list[BundleFile]) -> None:
    """Two bundles have the same digest only if they have the same files."""
    assert (digest(a) == digest(b)) == (set(a) == set(b))


async def take_step(functions: Functions, verb: str, name: str) -> int | None:
    """Apply one step to a function; return the revision number that it assigned, if any."""
    number = None
    if verb == "remove":
        with contextlib.suppress(UnknownFunction):
            await functions.remove_function(name)
    elif verb == "trim":
        await functions.trim_revisions(name, 1)
    elif verb == "add":
        number = (await stored.add_revision(functions, revision(name, 0))).number
    else:
        _, now = await functions.deploy(function(name, 0), revision(name, 0), bundle(), None)
        number = now.number
    return number


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["deploy", "add", "remove", "trim"]), NAMES),
        min_size=1,
        max_size=12,
    )
)
def test_revision_numbers_are_never_reused(steps: list[tuple[str, str]]) -> None:
    """Revision numbers only rise, whatever is deployed, trimmed or removed, also after
    reopening."""

    async def work(folder: Path) -> None:
        given_out: dict[str, list[int]] = {"a": [], "b": []}
        for verb, name in steps:
            database = await Database.open(folder / "db")
            functions = Functions(database)
            try:
                await stored.put_bundle(functions, bundle())
                number = await take_step(functions, verb, name)
            finally:
                await database.close()
            if number is not None:
                given_out[name].append(number)
        for numbers in given_out.values():
            assert numbers == list(range(1, len(numbers) + 1))

    in_folder(work)


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5), st.booleans())
def test_a_committed_blob_reads_back(content: bytes, cuts: list[int], honest: bool) -> None:
    """However its upload is cut, a blob is stored whole under its hash, or not at all."""
    name = sha256(content) if honest else sha256(content + b"!")
    edges = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]

    async def work(folder: Path) -> None:
        store = BlobStore(folder, 1000)
        try:
            async with store.receive(name, len(content)) as upload:
                for start, end in itertools.pairwise(edges):
                    await upload.write(content[start:end])
        except BadBundle:
            assert not honest
            assert not store.has(name)
            return
        assert honest
        assert sha256(await asyncio.to_thread(store.path(name).read_bytes)) == name

    in_folder(work)


@given(st.text(max_size=100))
def test_a_name_from_a_file_is_valid(file: str) -> None:
    """Any file name yields a valid name or a refusal."""
    with contextlib.suppress(BadRequest):
        assert is_name(name_from_file(file))


KEYS = st.sampled_from(
    ["schema", "name", "model", "scaling", "min", "max", "input", "x", "kind", "size", "sample"]
)
VALUES = st.sampled_from(["1", "-1", "1.5", "'onnx'", "'@f'", "[8, 8]", "true", "{}", "nan"])
LINES = st.one_of(
    st.builds("{} = {}".format, KEYS, VALUES),
    st.builds("{}.{} = {}".format, KEYS, KEYS, VALUES),
    st.builds("[{}]".format, KEYS),
    st.builds("[{}.{}]".format, KEYS, KEYS),
    st.text(max_size=20),
)


@given(st.lists(LINES, max_size=6), st.lists(st.sampled_from(["a.onnx", "handler.py", "f"])))
def test_any_manifest_is_read_or_refused(lines: list[str], files: list[str]) -> None:
    """The parser raises only BadManifest, with a reason."""
    try:
        manifest = parse_manifest("\n".join(["schema = 1", *lines]), files)
    except BadManifest as error:
        refusal = error.message
    else:
        refusal = "function.toml: none"
        assert set(manifest.files) <= set(files)

    assert refusal.startswith("function.toml: ")


@given(st.binary(max_size=200) | st.binary(max_size=100).map(lambda data: b"\x3a\x50" + data))
def test_any_bytes_are_a_model_or_not(data: bytes) -> None:
    """Reading the external files of any bytes returns a list or raises ValueError."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        with contextlib.suppress(ValueError):
            assert all(isinstance(one, str) for one in OnnxReader().read(Path(file.name)).locations)


@given(st.lists(st.tuples(st.booleans(), NAMES, st.integers(1, 3), st.integers(1, 3)), max_size=15))
def test_changes_describe_the_whole_catalog(steps: list[tuple[bool, str, int, int]]) -> None:
    """A subscriber that only follows changes knows each current revision and all numbers."""
    catalog = Catalog()
    mirror: dict[str, Change] = {}
    catalog.subscribe(lambda change: mirror.update({change.name: change}))
    for put, name, number, current in steps:
        if put:
            catalog.put(deployed(name, number, current))
        elif catalog.revisions(name):
            catalog.remove(name)

    for name in ("a", "b"):
        numbers = tuple(one.revision.number for one in catalog.revisions(name))
        assert catalog.find(name) == (mirror[name].after if name in mirror else None)
        assert numbers == (mirror[name].revisions if name in mirror else ())
        assert len({repr(one.function) for one in catalog.revisions(name)}) <= 1
