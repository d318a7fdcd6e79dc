"""Tests of the advice for files that are not ONNX models."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.bundles.foreign_formats import by_suffix, not_onnx


@pytest.mark.parametrize(
    ("content", "remedy"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git lfs pull"),
        (b"\n <!DOCTYPE html><html></html>", "it is a web page"),
        (b"PK\x03\x04" + bytes(30), "torch.onnx.export"),
        (b"\x80\x04\x95\x0b", "skl2onnx"),
        (b"GGUF\x03" + bytes(30), "a GGUF file"),
        (b"\x14\x00\x00\x00ORTM" + bytes(30), "ONNX Runtime's own format"),
        (b"hello", "the parser's reason"),
        (b"", "the parser's reason"),
    ],
)
def test_a_file_with_the_wrong_ending_is_known_by_its_content(
    tmp_path: Path, content: bytes, remedy: str
) -> None:
    """A file called .onnx with other known content gets advice for that format."""
    path = tmp_path / "model.onnx"
    path.write_bytes(content)

    told = not_onnx("model.onnx", ValueError("the parser's reason"), path)

    assert told.startswith("model.onnx is not an ONNX model: ")
    assert remedy in told


def test_a_missing_file_has_the_parsers_reason(tmp_path: Path) -> None:
    """Looking for advice raises no error."""
    assert not_onnx("m", "why", tmp_path / "gone").endswith(": why")


def test_an_ending_of_no_other_framework_has_no_advice() -> None:
    """Only the last suffix counts, case-insensitively."""
    assert [bool(by_suffix(path)) for path in ("a/b.PT", "b.Ort", "b.onnx", "pt", "x.pt.onnx")] == [
        True,
        True,
        False,
        False,
        False,
    ]
