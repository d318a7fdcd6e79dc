"""What the manifest's sample is as a request: its content type, and the one file it may be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

JSON: Final = "application/json"
OCTETS: Final = "application/octet-stream"
CONTENT_TYPES: Final = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
    ".bmp": "image/bmp",
    ".gif": "image/gif",
    ".wav": "audio/wav",
    ".npy": "application/x-npy",
    ".json": JSON,
}
"""What a sample file is, by its ending; anything else is sent as raw bytes."""


def content_type(path: str) -> str:
    """The content type that a sample file is sent with."""
    return CONTENT_TYPES.get(PurePosixPath(path).suffix.lower(), OCTETS)


def file_of(sample: Mapping[str, Any]) -> str:
    """The bundle path of the file that is the sample, "" where it is JSON values.

    Raises ValueError where a file is not the only input: it is the request's whole body.
    """
    files = [value[1:] for value in sample.values() if _is_file(value)]
    if files and len(sample) > 1:
        raise ValueError("a sample with a file must have that file as its only input")
    return files[0] if files else ""


def _is_file(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("@")
