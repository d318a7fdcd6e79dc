"""Tests of the data model."""

from __future__ import annotations

from registry.model import pool_key
from tests.support.nouns import bundle, prepared, revision


def test_a_revision_has_ref_and_key() -> None:
    """A ref is name@number; a pool key adds the namespace."""
    digits = revision("digits", 3, namespace="team")

    assert digits.ref == "digits@3"
    assert "team/digits@3" == digits.key == pool_key("team", "digits", 3)


def test_a_bundle_has_the_size_of_its_files() -> None:
    """A bundle's size is the sum of its files' sizes."""
    assert bundle(a=b"12", b=b"345").size == 5


def test_prepared_files_have_a_size() -> None:
    """The size is the sum over all prepared files."""
    assert prepared(graph__onnx=b"12345", weights__bin=b"123").size == 8
