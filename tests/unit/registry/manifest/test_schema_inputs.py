"""Input tables as rules and signatures."""

from __future__ import annotations

from typing import Any

import pytest

from registry.errors import BadManifest
from registry.manifest.schema import InputTable, declared, input_rule, signature_from_rules
from runtime_image.contract.model import AudioForm, BytesForm, ImageForm, InputRule
from runtime_image.contract.signature import Signature, TensorSpec


def rule(engine: str = "onnx", **keys: Any) -> InputRule:
    return input_rule("x", InputTable(**keys), engine)


def test_plain_tensors() -> None:
    """A table that says nothing is a tensor that the graph describes."""
    assert rule() == InputRule()
    assert rule(finite=True) == InputRule(finite=True)


def test_pictures() -> None:
    """A picture's keys make its form; what is left out is the form's default."""
    assert rule(kind="image", size=[8, 6]).image == ImageForm((8, 6))
    assert rule(
        kind="image",
        size=[8, 6],
        mode="RGB",
        layout="HWC",
        scale=1,
        mean=[1, 2, 3],
        std=2,
        invert=True,
    ).image == ImageForm((8, 6), "RGB", "HWC", 1.0, (1.0, 2.0, 3.0), (2.0,), invert=True)


def test_clips_and_bytes() -> None:
    """The keys of audio and bytes make their forms."""
    assert rule(kind="audio").audio == AudioForm()
    assert rule(kind="audio", rate_hz=8000, samples=10).audio == AudioForm(8000, 10)
    assert rule(kind="bytes").bytes == BytesForm()
    assert rule(kind="bytes", length=10, pad=7).bytes == BytesForm(10, 7)


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"rate_hz": 8000}, "input.x.kind"),
        ({"kind": "audio", "size": [8, 8]}, "input.x.kind"),
        ({"kind": "image"}, "input.x.size"),
        ({"kind": "image", "size": [16_000, 16_000]}, "input.x.size"),
        ({"kind": "image", "size": [8, 8], "layout": "HW"}, "input.x.layout"),
        ({"kind": "image", "size": [8, 8], "scale": 0}, "input.x.scale"),
        ({"kind": "image", "size": [8, 8], "std": [1, 0, 1]}, "input.x.std"),
        ({"kind": "image", "size": [8, 8], "mean": [1, 2]}, "input.x.mean"),
        ({"kind": "image", "size": [8, 8], "mode": "L", "mean": [1, 2, 3]}, "input.x.mean"),
        ({"kind": "bytes", "finite": True}, "input.x.finite"),
        ({"kind": "json"}, "input.x.kind"),
        ({"dtype": "FP32"}, "input.x.dtype"),
        ({"shape": [1]}, "input.x.shape"),
    ],
)
def test_keys_that_do_not_go_together(keys: dict[str, Any], key: str) -> None:
    """What contradicts the kind, the form or the graph is refused by key."""
    with pytest.raises(BadManifest) as caught:
        rule(**keys)

    assert caught.value.detail["key"] == key


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"shape": [1]}, "input.x.dtype"),
        ({"dtype": "float", "shape": [1]}, "input.x.dtype"),
        ({"dtype": "BF16", "shape": [1]}, "input.x.dtype"),
        ({"dtype": "FP32"}, "input.x.shape"),
        ({"dtype": "FP32", "shape": [0]}, "input.x.shape"),
    ],
)
def test_a_handlers_tensors_are_declared(keys: dict[str, Any], key: str) -> None:
    """Without a graph a tensor needs its dtype and shape."""
    with pytest.raises(BadManifest) as caught:
        rule("python", **keys)

    assert caught.value.detail["key"] == key


@pytest.mark.parametrize(
    ("keys", "dtype", "shape"),
    [
        ({"dtype": "INT64", "shape": [-1, 4]}, "INT64", (-1, 4)),
        ({"kind": "image", "size": [8, 6]}, "FP32", (-1, 3, 8, 6)),
        ({"kind": "image", "size": [8, 6], "layout": "HWC"}, "FP32", (-1, 8, 6, 3)),
        ({"kind": "image", "size": [8, 6], "mode": "L", "layout": "HW"}, "FP32", (-1, 8, 6)),
        ({"kind": "audio"}, "FP32", (-1, -1)),
        ({"kind": "audio", "samples": 10}, "FP32", (-1, 10)),
        ({"kind": "bytes", "length": 10}, "UINT8", (-1, 10)),
    ],
)
def test_tensor_signatures(keys: dict[str, Any], dtype: str, shape: tuple[int, ...]) -> None:
    """Declared tensors are taken as they are, forms give the tensor they make."""
    rules = {"x": rule("python", **keys)}

    assert signature_from_rules(rules) == Signature("tensors", (TensorSpec("x", dtype, shape),), ())
    assert signature_from_rules(declared(rules)) == signature_from_rules(rules)


def test_raw_and_json_signatures() -> None:
    """One input of raw bytes is the body, json inputs are any object."""
    raw = {"x": rule("python", kind="bytes")}
    free = {"x": InputRule("json"), "y": InputRule("json")}

    assert signature_from_rules(raw) == Signature("bytes", (TensorSpec("x", "BYTES", (1,)),), ())
    assert signature_from_rules(free) == Signature("json", (), ())


def test_raw_bytes_beside_another_input_are_a_tensor() -> None:
    """Where a body cannot be one input, bytes become a tensor like the others."""
    rules = {"x": InputRule("bytes", bytes=BytesForm()), "y": InputRule(dtype="FP32", shape=(1,))}

    assert signature_from_rules(rules).inputs[0] == TensorSpec("x", "UINT8", (-1, -1))


@pytest.mark.parametrize(
    "rules", [{}, {"x": InputRule("json"), "y": InputRule(dtype="FP32", shape=(1,))}]
)
def test_no_signature(rules: dict[str, InputRule]) -> None:
    """No input at all, or json beside another kind, is refused."""
    with pytest.raises(BadManifest, match="input: expected"):
        signature_from_rules(rules)
