"""Tests of models prepared by real trial replicas, from the deploy to a replica's folder."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from admin.settings import Settings
from pool_manager.drivers.process import ProcessDriver
from registry.model.profiles import Profile
from runtime_image.contract.model import FOLDER, GRAPH_FILE, WEIGHTS_FILE, SessionPlan
from runtime_image.engines.onnx import environment_key
from runtime_image.verification.measure import Bench
from tests.support.layered import WIDTH, layered
from tests.support.operator import Operator, operating

MIB = 40
KEY = "default/digits@1"
HANDLER = """
import os

from runtime_image.contract.link import Kind
from runtime_image.contract.model import Part
from runtime_image.link.frames import pack
from runtime_image.verification import transfer

honest = transfer._answer

def dies(*_):
    os._exit(1)

def dies_midway(sock, frame, described, scratch):
    if frame.aux != Part.WEIGHTS:
        return honest(sock, frame, described, scratch)
    transfer._send(sock, Kind.PART, frame.id, bytes(transfer.PART_MAX))
    os._exit(1)

def talks_rubbish(sock, frame, described, scratch):
    sock.sendall(bytes([255]) * 100000)

def never_ends(sock, frame, described, scratch):
    while True:
        transfer._send(sock, Kind.PART, frame.id, bytes(transfer.PART_MAX))

def load(ctx):
    evil = globals()["EVIL"]
    if evil is dies:
        transfer.prepare_and_serve = evil
    else:
        transfer._answer = evil

def predict(inputs, ctx):
    return ctx.run(inputs)
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Create a model of one row, so large that its gain exceeds the machine's noise."""
    return layered(tmp_path_factory.mktemp("model"), MIB, rows=1).read_bytes()


@asynccontextmanager
async def server(folder: Path, **settings: Any) -> AsyncIterator[Operator]:
    """Store, deploys and manager over real processes."""
    run_dir = Settings(data=folder / "data").pool().run_dir
    async with operating(folder, ProcessDriver(run_dir), **settings) as operator:
        yield operator


async def deployed(operator: Operator, name: str = "digits", **fields: Any) -> Profile:
    """Return the profile of a deploy that must succeed."""
    operation = await operator.deploy(name, **fields)
    assert operation.state == "done", operation.error
    profile = operator.store.catalog.resolve(name).profile
    assert profile is not None
    return profile


def left_behind(operator: Operator) -> list[Path]:
    """Return partial uploads, and files in run folders of ended replicas."""
    data = operator.store.settings.data
    replicas = {one.id for one in operator.manager.replicas()}
    run_dir = Settings(data=data).pool().run_dir
    stale = [path for path in run_dir.iterdir() if path.name not in replicas]
    return [*(data / "blobs" / "incoming").iterdir(), *stale]


async def test_a_deploy_prepares_its_model(tmp_path: Path) -> None:
    """The prepared files are stored as blobs under this machine's key, start sooner than the
    original model, and nothing else of the trial is left."""
    model = layered(tmp_path, MIB).read_bytes()
    async with server(tmp_path) as operator:
        profile = await deployed(operator, files={"m.onnx": model})

        prepared = profile.prepared
        assert prepared is not None, profile.why_not_prepared
        assert prepared.preparation.key == environment_key("cpu")
        assert [Path(file.path).name for file in prepared.files] == [GRAPH_FILE, WEIGHTS_FILE]
        for file in prepared.files:
            content = operator.store.blobs.path(file.sha256).read_bytes()
            assert hashlib.sha256(content).hexdigest() == file.sha256
            assert len(content) == file.size
        assert prepared.files[1].size >= MIB * 2**20
        original, quick = prepared.original, prepared.quick
        assert quick.load_ms + quick.first_ms < original.load_ms + original.first_ms
        assert left_behind(operator) == []


async def test_a_replica_finds_the_files_beside_its_model(tmp_path: Path, model: bytes) -> None:
    """A replica's model folder has links to the prepared blobs beside the original model, and its
    spec names them; both give the same outputs."""
    async with server(tmp_path) as operator:
        prepared = (await deployed(operator, files={"m.onnx": model})).prepared
        assert prepared is not None
        assert (await operator.manager.warm(KEY)).outcome == "ready"

        [replica] = [one for one in operator.manager.replicas() if one.role == "serve"]
        folder = operator.store.settings.data / "replicas" / replica.id
        for file in prepared.files:
            assert (folder / file.path).samefile(operator.store.blobs.path(file.sha256))
        assert (folder / "m.onnx").is_file()
        row = np.ones((1, WIDTH), np.float32)
        engines = [
            Bench({}, "cpu", 1).open(folder, plan)
            for plan in (prepared.preparation.quick, SessionPlan("m.onnx"))
        ]
        found, as_it_is = (one.run({"x": row}, one.ticket())["y"] for one in engines)
        np.testing.assert_allclose(found, as_it_is, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("how", ["missing", "cut"])
async def test_without_its_files_a_model_starts_as_it_is(
    how: str, tmp_path: Path, model: bytes
) -> None:
    """If a prepared blob is missing or damaged, the replica starts with the original model."""
    async with server(tmp_path) as operator:
        prepared = (await deployed(operator, files={"m.onnx": model})).prepared
        assert prepared is not None
        blob = operator.store.blobs.path(prepared.files[1].sha256)
        content = blob.read_bytes()
        blob.unlink()
        if how == "cut":
            blob.write_bytes(content[:-1])

        assert (await operator.manager.warm(KEY)).outcome == "ready"

        [replica] = [one for one in operator.manager.replicas() if one.role == "serve"]
        folder = operator.store.settings.data / "replicas" / replica.id
        assert not list((folder / FOLDER).glob("*"))


async def test_prepared_files_outlive_a_restart_but_not_their_function(
    tmp_path: Path, model: bytes
) -> None:
    """Prepared files survive a restart and sweeps as long as their function, and are removed after
    it."""
    async with server(tmp_path) as operator:
        before = await deployed(operator, files={"m.onnx": model})
    assert before.prepared is not None, before.why_not_prepared
    async with server(tmp_path, blob_keep_s=-1.0) as operator:
        await operator.deploys.sweep()
        profile = operator.store.catalog.resolve("digits").profile
        assert profile == before
        assert profile.prepared is not None
        names = [file.sha256 for file in profile.prepared.files]
        assert all(map(operator.store.blobs.has, names))

        await operator.deploys.remove("digits")

        assert not any(map(operator.store.blobs.has, names))


async def test_the_same_bundle_is_prepared_once(tmp_path: Path, model: bytes) -> None:
    """The same bundle under another name reuses the prepared files without another trial."""
    async with server(tmp_path) as operator:
        first = await deployed(operator, files={"m.onnx": model})

        second = await deployed(operator, "other", files={"m.onnx": model})

        assert second == first
        assert first.prepared is not None, first.why_not_prepared


@pytest.mark.parametrize(
    ("evil", "why"),
    [
        ("dies", "ended while it was prepared: exited with code 1"),
        ("dies_midway", "ended while it was prepared: exited with code 1"),
        ("talks_rubbish", "is over the limit"),
        ("never_ends", "expected"),
    ],
)
async def test_a_hostile_trial_harms_itself_only(
    evil: str, why: str, tmp_path: Path, model: bytes
) -> None:
    """If a trial dies, lies or floods while it returns its files, the deploy is done without them,
    with the reason, and nothing is left of them."""
    handler = HANDLER.replace('globals()["EVIL"]', evil).encode()
    manifest = 'schema = 1\nmodel = "m.onnx"\n'
    async with server(tmp_path) as operator:
        profile = await deployed(
            operator,
            files={"m.onnx": model, "handler.py": handler},
            manifest=manifest,
            model=None,
            trust=True,
        )

        assert profile.prepared is None
        assert why in profile.why_not_prepared
        assert profile.profiled
        assert left_behind(operator) == []
