"""Bodies to try a function with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from admin.deploy import verify
from admin.deploy.verify import values
from pool_manager.drivers.fake import FakeDriver
from registry.catalog import Deployed
from registry.errors import Unknown
from runtime_image.contract.signature import Signature, TensorSpec
from tests.support.nouns import deployed
from tests.support.operator import MODEL
from tests.support.server import serving

PICTURE = b"\x89PNG not looked at"
MANIFEST = """
schema = 1
name = "digits"
model = "m.onnx"
[input.image]
kind = "image"
size = [2, 2]
[sample]
image = "@two.png"
"""


def takes(signature: Signature, **changes: object) -> Deployed:
    """A deployed revision with that signature."""
    known = deployed()
    return replace(known, revision=replace(known.revision, signature=signature, **changes))  # type: ignore[arg-type]


def test_zeros_fit_the_signature() -> None:
    """Dynamic dimensions are 1, scalars are scalars, texts are empty."""
    inputs = (
        TensorSpec("x", "FP32", (-1, 2)),
        TensorSpec("n", "INT64", ()),
        TensorSpec("t", "BYTES", (1,)),
        TensorSpec("b", "BOOL", (-1,)),
    )

    kind, body = values(takes(Signature("tensors", inputs, ())))

    assert kind == "application/json"
    expected = {"inputs": {"x": [[0.0, 0.0]], "n": 0, "t": [""], "b": [False]}}
    assert json.loads(body) == expected


def test_the_manifests_values_come_as_they_are() -> None:
    """What stands under [sample] is what a caller would send."""
    known = takes(deployed().revision.signature, sample={"x": [[1, 2, 3, 4]]})

    assert json.loads(values(known)[1]) == {"inputs": {"x": [[1, 2, 3, 4]]}}


def test_raw_bytes_begin_empty() -> None:
    """A function of bytes takes any, none too."""
    assert values(takes(Signature("bytes", (TensorSpec("data", "BYTES", (1,)),), ()))) == (
        "application/octet-stream",
        b"",
    )


def test_zeros_are_bounded() -> None:
    """Nobody is sent 64 million zeros."""
    large = Signature("tensors", (TensorSpec("x", "FP32", (-1, 8000, 8000)),), ())

    with pytest.raises(Unknown, match="'x' FP32"):
        values(takes(large))


async def test_a_sample_can_be_sent_as_it_came(tmp_path: Path) -> None:
    """Body and content type are those of a call."""
    async with serving(tmp_path, FakeDriver(), standbys=0) as server:
        await server.deploy({"m.onnx": MODEL}, name="digits")

        answer = await server.admin("GET", "/functions/digits/sample")

        assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
        assert (await server.call("digits", answer.json())).status == 200


async def test_a_sample_file_comes_from_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the content type of its ending; one that is too large is not read."""
    async with serving(tmp_path, FakeDriver(), standbys=0) as server:
        await server.deploy({"m.onnx": MODEL, "two.png": PICTURE}, name="digits", manifest=MANIFEST)

        answer = await server.admin("GET", "/functions/digits/sample")
        assert (answer.status, answer.headers["Content-Type"]) == (200, "image/png")
        assert answer.body == PICTURE

        monkeypatch.setattr(verify, "FILE_MAX", 3)
        refused = await server.admin("GET", "/functions/digits/sample")
        assert (refused.status, refused.problem["code"]) == (404, "unknown")


async def test_a_lost_blob_is_told(tmp_path: Path) -> None:
    """The store is not what it should be: 503, not a crash."""
    async with serving(tmp_path, FakeDriver(), standbys=0) as server:
        await server.deploy({"m.onnx": MODEL, "two.png": PICTURE}, name="digits", manifest=MANIFEST)
        known = server.server.store.catalog.resolve("digits")
        bundle = server.server.store.bundles[known.revision.bundle]
        (file,) = [one for one in bundle.files if one.path == "two.png"]
        server.server.store.blobs.path(file.sha256).unlink()

        answer = await server.admin("GET", "/functions/digits/sample")
        assert (answer.status, answer.problem["code"]) == (503, "store_unavailable")
