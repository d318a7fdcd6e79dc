"""The table [openai]."""

from __future__ import annotations

import pytest

from registry.errors import BadManifest
from registry.manifest.document import overrides, parse_manifest
from registry.model.servers import ModelApi

SERVER = 'schema = 1\n[server]\ncommand = "serve ${PORT}"\n'


def test_an_empty_table_has_all_defaults() -> None:
    """A server with the usual paths needs nothing more."""
    manifest = parse_manifest(f"{SERVER}[openai]\n", [])
    assert manifest.server is not None
    assert manifest.server.api == ModelApi()
    without = parse_manifest(SERVER, []).server
    assert without is not None
    assert without.api is None


def test_the_keys_are_kept_also_by_changes_of_others() -> None:
    """An option of the command line leaves the table as it is."""
    text = '[openai]\nserved_model = "org/m"\nbase = "/api/v1"\nupstream_key = "hf"\n'
    manifest = parse_manifest(SERVER + text, [])
    expected = ModelApi("org/m", "/api/v1", upstream_key="hf")
    for one in (manifest, overrides(manifest, concurrency=3, port=80)):
        assert one.server is not None
        assert one.server.api == expected


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ('base = "v1"', "openai.base"),
        ('base = "/v1/"', "openai.base"),
        ('base = "/a/../v1"', "openai.base"),
        ('served_model = "a\\n"', "openai.served_model"),
        ('upstream_key = "A B"', "openai.upstream_key"),
        ('usage = "guess"', "openai.usage"),
        ("body_mib = 0", "openai.body_mib"),
        ("model = 1", "openai.model"),
    ],
)
def test_other_values_are_refused_by_name(keys: str, key: str) -> None:
    """The error names the key."""
    with pytest.raises(BadManifest, match=key):
        parse_manifest(f"{SERVER}[openai]\n{keys}\n", [])


def test_only_servers_have_an_api() -> None:
    """A model function does not speak the protocol."""
    with pytest.raises(BadManifest, match="openai"):
        parse_manifest('schema = 1\nmodel = "a.onnx"\n[openai]\n', ["a.onnx"])
