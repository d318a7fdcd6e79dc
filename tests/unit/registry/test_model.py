"""The nouns."""

from __future__ import annotations

from registry.model import pool_key
from tests.support.nouns import bundle, prepared, revision


def test_a_revision_knows_its_names() -> None:
    """People write name@number; pools are keyed with the namespace before it."""
    digits = revision("digits", 3, namespace="team")

    assert digits.ref == "digits@3"
    assert "team/digits@3" == digits.key == pool_key("team", "digits", 3)


def test_a_bundle_knows_its_size() -> None:
    """A bundle's size is that of all its files."""
    assert bundle(a=b"12", b=b"345").size == 5


def test_prepared_files_have_a_size() -> None:
    """That of all of them together."""
    assert prepared(graph__onnx=b"12345", weights__bin=b"123").size == 8
