"""Tests of the keys, types and ranges of function.toml, and of input rules."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from registry.errors import BadManifest
from registry.manifest.checks import refused, validate
from registry.manifest.schema import (
    RESERVED_ENGINES,
    InputTable,
    LimitsTable,
    ScalingTable,
    check_document,
    declared,
    input_rule,
)
from runtime_image.contract.model import AudioForm, BytesForm, ImageForm, InputRule


def refusal(text: str) -> BadManifest:
    with pytest.raises(BadManifest) as caught:
        check_document(tomllib.loads("schema = 1\n" + text))
    return caught.value


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("scal = {}", "scal", "did you mean 'scaling'?"),
        ("scaling.mni = 1", "scaling.mni", "did you mean 'min'?"),
        ("input.x.sise = [8, 8]", "input.x.sise", "did you mean 'size'?"),
        ("input.max.max = 1", "input.max.max", "known are kind, finite"),
        ("output.topk = 1", "output.topk", "did you mean 'top_k'?"),
        ("qqq = 1", "qqq", "known are schema, name, model"),
    ],
)
def test_unknown_keys(text: str, key: str, hint: str) -> None:
    """An unknown key is refused with its full path and the nearest or all known keys."""
    error = refusal(text)

    assert error.detail["key"] == key
    assert f"function.toml: {key}: unknown key; {hint}" in error.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('scaling.min = "3"', "scaling.min: expected an integer, got '3'"),
        ("scaling.min = true", "scaling.min: expected an integer, got True"),
        ("scaling.min = 1.5", "scaling.min: expected an integer, got 1.5"),
        ("scaling.min = -1", "scaling.min: expected at least 0, got -1"),
        ("scaling.max = 1001", "scaling.max: expected at most 1000, got 1001"),
        ("scaling.min = 2", "scaling.max: expected at least scaling.min (2), got 1"),
        ("scaling = 3", "scaling: expected a table, got 3"),
        ("scaling.idle_s = inf", "scaling.idle_s: expected a finite number, got inf"),
        ("name = 1", "name: expected a string, got 1"),
        ('device.kind = "tpu"', "device.kind: expected 'any', 'cpu' or 'cuda', got 'tpu'"),
        ("device.share = 0", "device.share: expected at least 0.01, got 0"),
        ("limits.queue = 0", "limits.queue: expected at least 1, got 0"),
        ("limits.body_mib = 257", "limits.body_mib: expected at most 256, got 257"),
        ('limits.retry = "no"', "limits.retry: expected 'auto', 'always' or 'never', got 'no'"),
        ("batching.wait_ms = 1001", "batching.wait_ms: expected at most 1000, got 1001"),
        ("labels.a = 1", "labels.a: expected a string, got 1"),
        ("input.x.finite = 1", "input.x.finite: expected a boolean, got 1"),
        ("input.x.size = [8]", "input.x.size: expected at least 2 items, got [8]"),
        ("input.x.size = [8, 0]", "input.x.size.1: expected at least 1, got 0"),
        ("input.x.mean = 'a'", "input.x.mean: expected a list, got 'a'"),
        ("input.x.std = [1, 'a']", "input.x.std.1: expected a number, got 'a'"),
        ("input.x.pad = 256", "input.x.pad: expected at most 255, got 256"),
        ("output.labels = [1]", "output.labels.0: expected a string, got 1"),
        (
            'runtime.engine = "tf"',
            "runtime.engine: expected 'onnx', 'python', 'tensorrt' or 'auto', got 'tf'",
        ),
    ],
)
def test_wrong_values(text: str, said: str) -> None:
    """The error names the key, the expected value and the received one."""
    assert refusal(text).message == f"function.toml: {said}"


@pytest.mark.parametrize("engine", RESERVED_ENGINES)
def test_reserved_engines(engine: str) -> None:
    """A planned engine is refused as reserved, not as unknown."""
    assert "reserved, not available yet" in refusal(f'runtime.engine = "{engine}"').message


@pytest.mark.parametrize(
    "text", ["labels = {%s}", "[input]\n%s", "[sample]\n%s"], ids=["labels", "input", "sample"]
)
def test_tables_are_bounded(text: str) -> None:
    """The number of entries of each table is limited."""
    wide = ("=''," if "labels" in text else "={}\n").join(f"k{n}" for n in range(70))
    last = "=''" if "labels" in text else "={}"

    assert "at most" in refusal(text % (wide + last)).message


def test_one_number_stands_for_all_channels() -> None:
    """A single number for a list per channel becomes a list of one."""
    document = check_document(tomllib.loads("schema = 1\ninput.x = {mean = 1, std = 0.5}"))

    assert (document.input["x"].mean, document.input["x"].std) == ([1.0], [0.5])


def test_a_bad_name() -> None:
    """An invalid name is refused with the rule for names."""
    error = refusal('name = "My Model"')

    assert (error.detail["key"], error.detail["got"]) == ("name", "'My Model'")


def test_a_single_table_can_be_validated() -> None:
    """A single section is validated under the given key."""
    assert validate(LimitsTable, {"queue": 5}, "limits").queue == 5
    with pytest.raises(BadManifest, match=r"scaling\.max: expected at least scaling\.min \(9\)"):
        validate(ScalingTable, {"min": 9}, "scaling")


def test_long_values_are_cut() -> None:
    """A long value is shortened in the message."""
    assert len(refused("name", "less", "x" * 1000).message) < 200


def rule(engine: str = "onnx", **keys: Any) -> InputRule:
    return input_rule("x", InputTable(**keys), engine)


def test_plain_tensors() -> None:
    """An empty table stands for a tensor that the graph describes."""
    assert rule() == InputRule()
    assert rule(finite=True) == InputRule(finite=True)


def test_images() -> None:
    """An image's keys define its form; missing keys have the form's defaults."""
    assert rule(kind="image", size=[8, 6]).image == ImageForm((8, 6), scale=None)
    alone = rule(kind="image", size=[8, 6], mean=[1, 2, 3]).image
    assert alone == ImageForm((8, 6), scale=1 / 255, mean=(1.0, 2.0, 3.0))
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


def test_audio_and_bytes() -> None:
    """The keys of audio and bytes define their forms."""
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
def test_contradicting_keys(keys: dict[str, Any], key: str) -> None:
    """A key that contradicts the kind, the form or the graph is refused."""
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
    """Without a graph a tensor needs dtype and shape."""
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
def test_tensors(keys: dict[str, Any], dtype: str, shape: tuple[int, ...]) -> None:
    """A declared tensor is used as it is; a form yields the tensor that it produces."""
    rules = declared({"x": rule("python", **keys)})

    assert (rules["x"].dtype, rules["x"].shape) == (dtype, shape)
    assert declared(rules) == rules


def test_raw_bytes_and_json_have_no_tensors() -> None:
    """A single input of raw bytes is the body; json inputs accept any object."""
    raw = {"x": rule("python", kind="bytes")}
    free = {"x": InputRule("json"), "y": InputRule("json")}

    for rules in (raw, free):
        assert declared(rules) == rules
        assert {(one.dtype, one.shape) for one in rules.values()} == {("", ())}


def test_raw_bytes_beside_another_input_are_a_tensor() -> None:
    """Raw bytes beside another input become a tensor."""
    rules = {"x": InputRule("bytes", bytes=BytesForm()), "y": InputRule(dtype="FP32", shape=(1,))}

    x = declared(rules)["x"]
    assert (x.dtype, x.shape) == ("UINT8", (-1, -1))


@pytest.mark.parametrize(
    "rules", [{}, {"x": InputRule("json"), "y": InputRule(dtype="FP32", shape=(1,))}]
)
def test_inputs_without_a_signature(rules: dict[str, InputRule]) -> None:
    """No input, or json beside another kind, is refused."""
    with pytest.raises(BadManifest, match="input: expected"):
        declared(rules)
