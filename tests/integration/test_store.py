"""Tests of the whole store on a real disk: deploy, restart, crash, sweep."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from registry.bundles.blobs import BlobStore
from registry.bundles.onnx_files import OnnxReader, check_external, external_paths
from registry.bundles.paths import make_bundle
from registry.catalog import Catalog
from registry.errors import BadBundle, UnknownFunction
from registry.files import DataDirectory
from registry.manifest import default_manifest, overrides
from registry.model.bundles import Bundle, BundleFile
from registry.model.functions import Function
from registry.model.operations import Operation
from registry.model.revisions import Revision
from registry.settings import StoreSettings
from registry.spec import model_spec, settings_equal
from registry.store.database import Database
from registry.store.functions import Functions
from registry.store.keys import KeyRing, Keys
from registry.store.operations import Operations
from tests.support import models, stored
from tests.support.nouns import SIGNATURE, profile, sha256

ROOT = Path(__file__).parents[2]

CRASH = """
import asyncio, os, signal, sys
from pathlib import Path
from registry.store.database import Database
from registry.store.functions import Functions
from tests.support.nouns import bundle, function, profile, revision

async def main() -> None:
    functions = Functions(await Database.open(Path(sys.argv[1])))
    for _ in range(3):
        _, stored = await functions.deploy(
            function("digits", 0), revision("digits", 0), bundle(), profile()
        )
        print(stored.number, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@dataclass
class Store:
    """All durable state of a server, open."""

    blobs: BlobStore
    functions: Functions
    keys: Keys
    operations: Operations

    async def load(self) -> Catalog:
        return Catalog(await self.functions.load_all())


@contextlib.asynccontextmanager
async def server(settings: StoreSettings) -> AsyncIterator[Store]:
    """Open the store as a server does, until the block ends."""
    with DataDirectory.open(settings.data):
        database = await Database.open(settings.database)
        try:
            yield Store(
                BlobStore(settings.blobs, settings.blob_max_bytes),
                Functions(database),
                Keys(database),
                Operations(database),
            )
        finally:
            await database.close()


async def upload(store: Store, folder: Path, paths: list[str]) -> Bundle:
    """Upload files as a client does: check first, then send the missing ones."""
    files = []
    for path in paths:
        content = await asyncio.to_thread((folder / path).read_bytes)
        name = sha256(content)
        files.append(BundleFile(path, len(content), name))
        if not store.blobs.claim(name):
            async with store.blobs.receive(name, len(content)) as receiving:
                for start in range(0, len(content), 65_536):
                    await receiving.write(content[start : start + 65_536])
    return make_bundle(files)


async def deploy(store: Store, whole: Bundle, model: str) -> tuple[Function, Revision]:
    """Deploy a model with an unusual setting."""
    manifest = overrides(default_manifest(model), name="digits", max=3)
    return await store.functions.deploy(
        Function(manifest.name, 0, manifest.scaling, manifest.limits),
        Revision(manifest.name, 0, whole.digest, SIGNATURE, model=manifest.model),
        whole,
        profile(bundle=whole.digest, model=manifest.model),
    )


async def test_a_deploy_survives_a_restart(tmp_path: Path) -> None:
    """A deploy of real files is served by the next server from the same bytes."""
    settings = StoreSettings(tmp_path / "data")
    model = models.external(tmp_path, 1)
    side = external_paths(model.name, OnnxReader().read(model).locations)
    async with server(settings) as store:
        whole = await upload(store, tmp_path, [model.name, *side])
        await deploy(store, whole, model.name)
        key, secret = await store.keys.add(["invoke"], now_s=1)

    async with server(settings) as store:
        found = (await store.load()).resolve("digits")
        assert await store.functions.load_bundles() == {found.revision.bundle: whole}
        store.blobs.materialise(whole, tmp_path / "replica")
        assert KeyRing(await store.keys.list()).find(secret) == key

    spec = model_spec(found)
    assert (spec.revision, spec.model, spec.batch_max) == ("digits@1", "external.onnx", 32)
    assert found.function.scaling.max == 3
    placed = tmp_path / "replica" / spec.model
    check_external(
        spec.model, OnnxReader().read(placed).locations, [file.path for file in whole.files]
    )


async def test_data_outside_the_bundle_is_refused(tmp_path: Path) -> None:
    """A model whose external data was not uploaded is refused before it is deployed."""
    model = models.external(tmp_path, 1)
    async with server(StoreSettings(tmp_path / "data")) as store:
        whole = await upload(store, tmp_path, [model.name])
        store.blobs.materialise(whole, tmp_path / "trial")

        with pytest.raises(BadBundle, match=r"external\.bin"):
            check_external(
                model.name,
                OnnxReader().read(tmp_path / "trial" / model.name).locations,
                [file.path for file in whole.files],
            )


async def test_the_same_again_is_no_new_revision(tmp_path: Path) -> None:
    """Unchanged files with unchanged settings are recognised as the existing revision."""
    model = models.add_one(tmp_path)
    async with server(StoreSettings(tmp_path / "data")) as store:
        whole = await upload(store, tmp_path, [model.name])
        _, first = await deploy(store, whole, model.name)

        again = await upload(store, tmp_path, [model.name])
        asked = Revision("digits", 0, again.digest, SIGNATURE, model=model.name)

        assert settings_equal((await store.load()).resolve("digits").revision, asked)
        assert not settings_equal(first, Revision("digits", 0, "0" * 64, SIGNATURE))


async def test_a_sweep_keeps_what_is_deployed(tmp_path: Path) -> None:
    """After a removal the next sweep deletes the function's blobs and no others."""
    for name, made in (("kept", models.add_one), ("gone", models.fixed_batch)):
        (tmp_path / name).mkdir()
        made(tmp_path / name).rename(tmp_path / name / "model.onnx")
    async with server(StoreSettings(tmp_path / "data")) as store:
        kept = await upload(store, tmp_path / "kept", ["model.onnx"])
        gone = await upload(store, tmp_path / "gone", ["model.onnx"])
        await deploy(store, gone, "model.onnx")
        await store.functions.remove_function("digits")
        await deploy(store, kept, "model.onnx")

        assert await store.functions.remove_orphans() == 1
        blobs = await store.functions.referenced_blobs()
        swept = store.blobs.sweep(blobs, older_than_s=-1, now_s=10.0**10)

        assert (swept.blobs, swept.bytes) == (1, gone.size)
        assert (store.blobs.missing(kept), len(store.blobs.missing(gone))) == ([], 1)


def test_a_killed_server_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    """After SIGKILL every acknowledged revision is present, and the next number is new."""
    died = subprocess.run(
        [sys.executable, "-c", CRASH, str(tmp_path / "db")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (died.returncode, died.stdout.split()) == (-signal.SIGKILL, ["1", "2", "3"]), died.stderr

    async def reopen() -> tuple[list[str], int]:
        database = await Database.open(tmp_path / "db")
        try:
            functions = Functions(database)
            loaded = Catalog(await functions.load_all())
            found = loaded.resolve("digits")
            added = await stored.add_revision(functions, found.revision)
            return [one.revision.ref for one in loaded.revisions("digits")], added.number
        finally:
            await database.close()

    assert asyncio.run(reopen()) == (["digits@1", "digits@2", "digits@3"], 4)


async def test_an_interrupted_deploy_is_found_again(tmp_path: Path) -> None:
    """After a crash the running operation is found again, and no partial deploy."""
    settings = StoreSettings(tmp_path / "data")
    operation = Operation("op1", "deploy", "digits", {"files": []}, phase="verify")
    async with server(settings) as store:
        await store.operations.put(operation)
        async with store.blobs.receive(sha256(b"ab"), 2) as receiving:
            await receiving.write(b"ab")
        # The partial upload that a crash leaves.
        await asyncio.to_thread((settings.blobs / "incoming" / "half").write_bytes, b"a")

    async with server(settings) as store:
        assert await store.operations.running() == [operation]
        assert await asyncio.to_thread(os.listdir, settings.blobs / "incoming") == []
        with pytest.raises(UnknownFunction):
            (await store.load()).resolve("digits")
