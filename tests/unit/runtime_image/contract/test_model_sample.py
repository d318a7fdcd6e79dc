"""What the manifest's sample is as a request."""

from __future__ import annotations

import pytest

from runtime_image.contract.model import content_type, file_of


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("seven.png", "image/png"),
        ("a/Photo.JPEG", "image/jpeg"),
        ("yes.wav", "audio/wav"),
        ("x.npy", "application/x-npy"),
        ("written/ring.c", "application/octet-stream"),
        ("png", "application/octet-stream"),
    ],
)
def test_a_files_ending_tells_its_type(path: str, kind: str) -> None:
    """Whatever its case and folder; any other file is raw bytes."""
    assert content_type(path) == kind


def test_values_are_no_file() -> None:
    """Only a text that begins with @ names one."""
    assert file_of({"x": [1.0], "mail": "someone@host"}) == ""
    assert file_of({"image": "@seven.png"}) == "seven.png"


def test_a_file_comes_alone() -> None:
    """It is the whole body, so there is no room for another input."""
    with pytest.raises(ValueError, match="only input"):
        file_of({"image": "@seven.png", "threshold": 0.5})
