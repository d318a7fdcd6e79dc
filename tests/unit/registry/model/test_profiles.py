"""Tests of profiles."""

from __future__ import annotations

from tests.support.nouns import prepared


def test_prepared_files_have_a_size() -> None:
    """The size is the sum over all prepared files."""
    assert prepared(graph__onnx=b"12345", weights__bin=b"123").size == 8
