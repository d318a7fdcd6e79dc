"""Tests of function.toml as a whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from registry.errors import BadManifest
from registry.manifest import (
    Manifest,
    default_manifest,
    overrides,
    parse_manifest,
)
from registry.model.functions import Limits, Scaling
from registry.model.revisions import Batching, DeviceNeed
from runtime_image.contract.model import ImageForm, InputRule, OutputRule

FILES = ["function.toml", "digits.onnx", "seven.png"]
FULL = """
schema = 1
name = "digits"
model = "digits.onnx"
labels = { team = "vision" }

[runtime]
engine = "onnx"

[scaling]
min = 1
max = 4
idle_s = 60

[device]
kind = "cpu"
memory_mib = 512
share = 0.5

[batching]
mode = "auto"
max_size = 16
wait_ms = 1.5

[limits]
timeout_s = 5
wait_s = 20.0
queue = 100
body_mib = 8
retry = "never"

[input.image]
kind = "image"
size = [8, 8]
mode = "L"
layout = "HW"
finite = true

[output]
tensor = "probabilities"
labels = ["0", "1"]
top_k = 2

[sample]
image = "@seven.png"
"""
PYTHON = 'schema = 1\nruntime.engine = "python"\n'


def refusal(text: str, files: list[str] | None = None) -> BadManifest:
    with pytest.raises(BadManifest) as caught:
        parse_manifest(text, FILES if files is None else files)
    return caught.value


def test_a_manifest_with_every_section() -> None:
    """Each section is parsed into its data class."""
    assert parse_manifest(FULL, FILES) == Manifest(
        name="digits",
        model="digits.onnx",
        labels={"team": "vision"},
        scaling=Scaling(1, 4, 60.0),
        limits=Limits(5.0, 20.0, 100, 8, "never"),
        device=DeviceNeed("cpu", 512, 0.5),
        batching=Batching("auto", 16, 1.5),
        inputs={"image": InputRule("image", True, image=ImageForm((8, 8), "L", "HW"))},
        output=OutputRule("probabilities", ("0", "1"), 2),
        sample={"image": "@seven.png"},
    )


def test_the_shortest_manifest() -> None:
    """A manifest with only the schema equals the default for a model file."""
    assert parse_manifest("schema = 1", FILES) == default_manifest("digits.onnx")


def test_the_files_that_a_manifest_names() -> None:
    """Model, handler and sample files are listed once each, sorted."""
    files = [*FILES, "handler.py"]
    both = FULL + 'mask = "@seven.png"\nplain = "text"\n'

    assert parse_manifest(both, files).files == ("digits.onnx", "handler.py", "seven.png")
    assert default_manifest("m.onnx").files == ("m.onnx",)


def test_a_handler_is_found_by_its_name() -> None:
    """handler.py beside the manifest is used with either engine."""
    files = [*FILES, "handler.py"]

    assert parse_manifest("schema = 1", files).handler == "handler.py"
    assert parse_manifest("schema = 1", FILES).handler == ""


@pytest.mark.parametrize("text", ["", "schema = 2", 'schema = "1"', "schema = true"])
def test_another_schema_is_refused(text: str) -> None:
    """Only schema 1 is accepted; a missing schema is refused."""
    assert refusal(text).detail["expected"] == "1"


@pytest.mark.parametrize("text", ["[[", "a = ", "schema = 1\nschema = 1", "a = [["])
def test_invalid_toml_is_refused(text: str) -> None:
    """Invalid TOML is refused with the parser's reason."""
    assert "expected TOML, got" in refusal(text).message


def test_the_size_of_a_manifest_is_limited() -> None:
    """A text over the limit is refused before it is parsed, and so are too many parts."""
    assert "at most 65536 characters, got 65537" in refusal("#" * 65537).message
    assert "line 2: expected at most" in refusal(f"schema = 1\n{'a.' * 9000}a = 1").message


@pytest.mark.parametrize(
    ("files", "got"), [([], "nothing"), (["a.onnx", "b.onnx"], "['a.onnx', 'b.onnx']")]
)
def test_the_model_must_be_unambiguous(files: list[str], got: str) -> None:
    """Without the key `model` the bundle must have exactly one model file."""
    assert refusal("schema = 1", files).detail == {
        "key": "model",
        "expected": "the path of the model file",
        "got": got,
    }


def test_the_model_must_be_in_the_bundle() -> None:
    """A model that is not in the bundle is refused by name."""
    error = refusal('schema = 1\nmodel = "other.onnx"')

    assert (error.detail["key"], error.detail["got"]) == ("model", "'other.onnx'")


def test_a_python_function_needs_its_handler_and_inputs() -> None:
    """Engine python needs a handler and at least one declared input, and no model."""
    declared = PYTHON + '[input.x]\ndtype = "FP32"\nshape = [-1, 4]'

    manifest = parse_manifest(declared, ["handler.py"])

    assert (manifest.engine, manifest.model, manifest.handler) == ("python", "", "handler.py")
    assert manifest.inputs["x"].shape == (-1, 4)
    assert refusal(declared, []).detail["expected"] == "handler.py beside the manifest"
    assert refusal(PYTHON, ["handler.py"]).detail["key"] == "input"


def test_declared_forms_come_with_their_tensor() -> None:
    """For a python function, dtype and shape of an image follow from its form."""
    text = PYTHON + '[input.x]\nkind = "image"\nsize = [8, 6]'

    rule = parse_manifest(text, ["handler.py"]).inputs["x"]

    assert (rule.dtype, rule.shape) == ("FP32", (-1, 3, 8, 6))


@pytest.mark.parametrize(
    ("sample", "key"),
    [
        ('x = "@none.png"', "sample.x"),
        ("x = 2020-01-01", "sample.x"),
        ("x = [1.0, inf]", "sample.x"),
        ("x = {a = {b = nan}}", "sample.x"),
        ("x = " + "[" * 17 + "]" * 17, "sample.x"),
    ],
)
def test_samples_are_files_or_json(sample: str, key: str) -> None:
    """A sample is a file of the bundle or a JSON value."""
    assert refusal(f"schema = 1\n[sample]\n{sample}").detail["key"] == key


def test_a_sample_may_be_nested() -> None:
    """Numbers, strings, lists and tables are kept unchanged."""
    text = 'schema = 1\n[sample]\nx = [[1, 2.5], [true, "s"]]\ny = {a = [1]}'

    assert parse_manifest(text, FILES).sample == {
        "x": [[1, 2.5], [True, "s"]],
        "y": {"a": [1]},
    }


def test_a_python_sample_names_declared_inputs() -> None:
    """A sample for an undeclared input is refused; the error lists the declared ones."""
    text = PYTHON + '[input.x]\nkind = "json"\n[sample]\ny = 1'

    assert refusal(text, ["handler.py"]).detail["expected"] == "one of the inputs ['x']"


JSON_INPUT = '[input.text]\nkind = "json"\n'


def test_a_handler_beside_a_model_takes_json() -> None:
    """Only the handler reads it, so that a model alone cannot, and not beside the model's inputs; a
    sample names declared inputs."""
    text = f"schema = 1\n{JSON_INPUT}"
    both = ["m.onnx", "handler.py"]

    manifest = parse_manifest(text + '[sample]\ntext = "a"\n', both)
    assert (manifest.engine, manifest.model) == ("onnx", "m.onnx")
    assert manifest.inputs["text"].kind == "json"
    alone = refusal(text, ["m.onnx"]).detail
    assert alone["key"] == "input.text.kind"
    assert "without handler.py" in alone["expected"]
    assert (
        refusal(f'{text}[input.x]\nkind = "image"\nsize = [8, 8]\n', both).detail["key"] == "input"
    )
    assert refusal(f"{text}[sample]\ny = 1\n", both).detail["key"] == "sample.y"


def test_overrides() -> None:
    """A given override replaces the manifest's value; None does not."""
    manifest = overrides(
        parse_manifest(FULL, FILES),
        name="other",
        min=0,
        max=2,
        idle_s=1.5,
        memory_mib=64,
        device="cuda",
        batch_max=4,
        timeout_s=9,
    )

    assert (manifest.name, manifest.scaling) == ("other", Scaling(0, 2, 1.5))
    assert manifest.device == DeviceNeed("cuda", 64, 0.5)
    assert (manifest.batching.max_size, manifest.limits.timeout_s) == (4, 9)
    assert overrides(manifest, name=None, min=None) == manifest


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"min": 5}, "scaling.max"),
        ({"min": -1}, "scaling.min"),
        ({"max": 0}, "scaling.max"),
        ({"idle_s": float("nan")}, "scaling.idle_s"),
        ({"memory_mib": -5}, "device.memory_mib"),
        ({"device": "tpu"}, "device.kind"),
        ({"batch_max": 70_000}, "batching.max_size"),
        ({"timeout_s": 0}, "limits.timeout_s"),
        ({"name": "A"}, "name"),
    ],
)
def test_overrides_are_checked_like_the_file(changes: Any, key: str) -> None:
    """An invalid override is refused under the manifest's key."""
    with pytest.raises(BadManifest) as caught:
        overrides(default_manifest("m.onnx"), **changes)

    assert caught.value.detail["key"] == key


def test_an_unknown_override_is_refused() -> None:
    """An unknown override raises TypeError."""
    with pytest.raises(TypeError, match="unknown overrides: colour"):
        overrides(default_manifest("m.onnx"), **{"colour": 1})  # type: ignore[arg-type]  # the refusal is tested


def test_the_command_line_does_without_pydantic() -> None:
    """The modules that fnctl imports at its start do not import pydantic."""
    code = (
        "import sys, registry.names, registry.errors, registry.model.bundles, registry.files,"
        " registry.bundles.paths, registry.bundles.onnx_files\n"
        "print([m for m in ('pydantic', 'aiosqlite', 'msgspec', 'asyncio') if m in sys.modules])"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )

    assert done.stdout.strip() == "[]"
