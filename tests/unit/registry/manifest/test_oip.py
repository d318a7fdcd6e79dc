"""The table [oip]."""

from __future__ import annotations

import pytest

from registry.errors import BadManifest
from registry.manifest.document import overrides, parse_manifest

TEXT = 'schema = 1\nmodel = "m.onnx"\n'
FILES = ["m.onnx"]


def test_name_and_version_are_kept() -> None:
    """Both are text afterwards; an option of the command line leaves them as they are."""
    text = f'{TEXT}[oip]\nname = "ResNet_50-v1.5"\nversion = 20261123\n'
    manifest = parse_manifest(text, FILES)
    for one in (manifest, overrides(manifest, max=3, batching="off")):
        assert (one.oip_name, one.oip_version) == ("ResNet_50-v1.5", "20261123")
    without = parse_manifest(TEXT, FILES)
    assert (without.oip_name, without.oip_version) == ("", "")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ('name = "a/b"', r"oip\.name: expected 1 to 255 characters: letters, digits"),
        ('name = ".."', r"oip\.name: expected 1 to 255"),
        (f'name = "{"a" * 256}"', r"oip\.name: expected at most 255"),
        ("version = 0", r"oip\.version: expected at least 1, got 0"),
        ("version = 9223372036854775808", r"oip\.version: expected at most 9223372036854775807"),
        ('version = "1"', r"oip\.version: expected an integer"),
        ("versions = 1", r"oip\.versions: unknown key; did you mean 'version'"),
    ],
)
def test_a_bad_key_is_named(keys: str, message: str) -> None:
    """The error has the key, what was expected and what came."""
    with pytest.raises(BadManifest, match=message):
        parse_manifest(f"{TEXT}[oip]\n{keys}\n", FILES)


def test_a_server_is_no_model() -> None:
    """What speaks HTTP itself has no name in the protocol."""
    with pytest.raises(BadManifest, match=r"oip: expected no such key with \[server\]"):
        parse_manifest('schema = 1\n[server]\ncommand = "serve ${PORT}"\n[oip]\nname = "a"\n', [])
