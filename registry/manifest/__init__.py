"""function.toml: parsing, validation and defaults."""

from registry.manifest.document import (
    HANDLER_FILE,
    MANIFEST_FILE,
    Manifest,
    Overrides,
    default_manifest,
    overrides,
    parse_manifest,
    rescaled,
)

__all__ = [
    "HANDLER_FILE",
    "MANIFEST_FILE",
    "Manifest",
    "Overrides",
    "default_manifest",
    "overrides",
    "parse_manifest",
    "rescaled",
]
