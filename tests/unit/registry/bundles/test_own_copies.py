"""Model folders whose graphs keep data of branches in other files: ONNX Runtime takes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from registry.bundles.blobs import BlobStore
from registry.bundles.own_copies import OwnCopies
from registry.bundles.paths import make_bundle
from registry.errors import StoreUnavailable
from registry.model.bundles import BundleFile
from runtime_image.engines.onnx import OnnxEngine
from runtime_image.verification.prepare import write_prepared
from tests.support.nouns import bundle_file

W = np.random.default_rng(0).normal(size=(32, 32)).astype(np.float32)
X = np.ones((2, 32), np.float32)


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs", 100_000)


def looping(path: Path) -> Path:
    """Write a model whose loop body multiplies by W."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("MatMul", ["a", "w"], ["b"]), helper.make_node("Identity", ["c"], ["d"])],
        "body",
        [
            value("i", TensorProto.INT64, []),
            value("c", TensorProto.BOOL, []),
            value("a", TensorProto.FLOAT, None),
        ],
        [value("d", TensorProto.BOOL, []), value("b", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(W, "w")],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)],
        "g",
        [value("x", TensorProto.FLOAT, ["rows", 32])],
        [value("y", TensorProto.FLOAT, ["rows", 32])],
        [numpy_helper.from_array(np.array(1), "n")],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder by path."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


async def put_folder(store: BlobStore, folder: Path) -> list[BundleFile]:
    """Store the files of a folder."""
    files = []
    for path, data in contents(folder).items():
        files.append(bundle_file(path, data))
        async with store.receive(files[-1].sha256, len(data)) as upload:
            await upload.write(data)
    return files


async def written(store: BlobStore, folder: Path) -> list[BundleFile]:
    """Store the loop as ONNX Runtime writes it: the body's weights in a file beside it."""
    made = folder / "made" / ".prepared"
    made.mkdir(parents=True)
    write_prepared(looping(folder / "loop.onnx"), made, "cpu", 1, 100_000)
    return await put_folder(store, made.parent)


def answer(model: Path) -> object:
    engine = OnnxEngine(model, device_kind="cpu", threads=1)
    return engine.run({"x": X}, engine.ticket())["y"]


async def test_a_model_with_data_of_a_loop_in_a_file_loads(
    store: BlobStore, tmp_path: Path
) -> None:
    """That file is a copy; the graph is a name of its blob. Every replica gets its own."""
    graph, weights = await written(store, tmp_path)
    whole = make_bundle(
        [
            BundleFile("loop/model.onnx", graph.size, graph.sha256),
            BundleFile(f"loop/{Path(weights.path).name}", weights.size, weights.sha256),
        ]
    )

    for replica in ("r1", "r2"):
        store.materialise(whole, tmp_path / replica)

    for replica in ("r1", "r2"):
        assert np.allclose(answer(tmp_path / replica / "loop" / "model.onnx"), X @ W, atol=1e-4)
        placed = tmp_path / replica / whole.files[1].path
        assert placed.stat().st_nlink == 1
        assert placed.stat().st_mode & 0o777 == 0o444
        model = tmp_path / replica / "loop" / "model.onnx"
        assert model.samefile(store.path(graph.sha256))


@pytest.mark.parametrize("later", [False, True], ids=["with the bundle", "to a running replica"])
async def test_prepared_files_of_a_loop_load(store: BlobStore, tmp_path: Path, later: bool) -> None:
    """What a trial prepared is what a replica can open."""
    prepared = await written(store, tmp_path)
    whole = make_bundle([bundle_file("model.onnx", (tmp_path / "loop.onnx").read_bytes())])
    (tmp_path / "original").mkdir()
    (tmp_path / "loop.onnx").rename(tmp_path / "original" / "model.onnx")
    await put_folder(store, tmp_path / "original")

    store.materialise(whole, tmp_path / "r1", () if later else prepared)
    if later:
        store.add(prepared, tmp_path / "r1")

    assert np.allclose(answer(tmp_path / "r1" / prepared[0].path), X @ W, atol=1e-4)


async def test_copies_leave_room_on_the_disk(store: BlobStore, tmp_path: Path) -> None:
    """A copy counts like an upload: a full disk refuses it, and the folder is removed."""
    files = await written(store, tmp_path)
    full = BlobStore(tmp_path / "blobs", 100_000, free_min=2**60)
    whole = make_bundle([BundleFile(Path(one.path).name, one.size, one.sha256) for one in files])

    with pytest.raises(StoreUnavailable, match="disk full"):
        full.materialise(whole, tmp_path / "r1")

    assert not (tmp_path / "r1").exists()


async def test_a_graph_is_read_once(store: BlobStore, tmp_path: Path) -> None:
    """A start after the first reads no graph again."""
    files = await written(store, tmp_path)
    copies = OwnCopies(store.path)
    found = copies.of(files)
    store.path(files[0].sha256).unlink()

    assert copies.of(files) == found == {files[1].path}


async def test_other_files_are_names_of_blobs(store: BlobStore, tmp_path: Path) -> None:
    """A file that is no model, one alone, and a location that no file has need no copy."""
    files = await written(store, tmp_path)
    copies = OwnCopies(store.path)

    assert copies.of([files[1], BundleFile("a.onnx", files[1].size, files[1].sha256)]) == set()
    assert copies.of(files[:1]) == set()
    assert copies.of([files[0], BundleFile("other", 1, files[1].sha256)]) == set()
