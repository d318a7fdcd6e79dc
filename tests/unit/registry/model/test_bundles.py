"""Tests of bundles."""

from __future__ import annotations

from tests.support.nouns import bundle


def test_a_bundle_has_the_size_of_its_files() -> None:
    """A bundle's size is the sum of its files' sizes."""
    assert bundle(a=b"12", b=b"345").size == 5
