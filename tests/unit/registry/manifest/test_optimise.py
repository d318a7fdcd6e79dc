"""The table [optimise]."""

from __future__ import annotations

import pytest

from registry.errors import BadManifest
from registry.manifest.document import overrides, parse_manifest
from runtime_image.contract.precision import Optimisation

TEXT = 'schema = 1\nmodel = "m.onnx"\n'
FILES = ["m.onnx", "samples.npz"]


def test_the_settings_are_kept() -> None:
    """The scores of labels judge top-1; an option of the command line leaves the table as it is;
    the samples are one of the function's files."""
    text = (
        f'{TEXT}[optimise]\nprecision = "int8"\ntolerance = 0.02\nsamples = "samples.npz"\n'
        '[output]\ntensor = "probabilities"\ntop_k = 3\n'
    )
    manifest = parse_manifest(text, FILES)
    for one in (manifest, overrides(manifest, max=3)):
        assert one.optimise == Optimisation("int8", 0.02, "samples.npz", "probabilities")
        assert one.files == ("m.onnx", "samples.npz")
    plain = parse_manifest(f'{TEXT}[optimise]\nprecision = "auto"\n[output]\ntensor = "y"\n', FILES)
    assert plain.optimise == Optimisation("auto", 0.01)


@pytest.mark.parametrize(
    "table", ["", "[optimise]\n", '[optimise]\nprecision = "fp32"\ntolerance = 0.01\n']
)
def test_defaults_are_no_settings(table: str) -> None:
    """A file with the defaults makes no other revision than one without the table."""
    assert parse_manifest(TEXT + table, FILES).optimise is None


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ('precision = "bf16"', r"optimise\.precision: expected 'fp32', 'fp16', 'int8' or 'auto'"),
        ("tolerance = -0.1", r"optimise\.tolerance: expected at least 0, got -0\.1"),
        ("tolerance = 1.0", r"optimise\.tolerance: expected at most 0\.5"),
        ('samples = "m.onnx"', r"optimise\.samples: expected a \.npz file of NumPy"),
        ('samples = "other.npz"', r"optimise\.samples: expected one of the bundle's files"),
        ('precision = "int8"', r"optimise\.samples: expected a \.npz file for .*, got nothing"),
        ('precison = "int8"', r"optimise\.precison: unknown key; did you mean 'precision'"),
    ],
)
def test_a_bad_key_is_named(keys: str, message: str) -> None:
    """The error has the key, what was expected and what came."""
    with pytest.raises(BadManifest, match=message):
        parse_manifest(f"{TEXT}[optimise]\n{keys}\n", FILES)


def test_a_function_without_a_model_has_no_precision() -> None:
    """A handler alone and a server have no file that could be changed."""
    text = 'schema = 1\n[runtime]\nengine = "python"\n[input.a]\nkind = "json"\n[optimise]\n'
    with pytest.raises(BadManifest, match=r"optimise: expected a function with a model"):
        parse_manifest(f'{text}precision = "auto"\n', ["handler.py"])
    server = 'schema = 1\n[server]\ncommand = "serve ${PORT}"\n[optimise]\n'
    with pytest.raises(BadManifest, match=r"optimise: expected no such key with \[server\]"):
        parse_manifest(server, [])
