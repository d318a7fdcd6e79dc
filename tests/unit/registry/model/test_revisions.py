"""Tests of revisions."""

from __future__ import annotations

from registry.model.revisions import pool_key
from tests.support.nouns import revision


def test_a_revision_has_ref_and_key() -> None:
    """A ref is name@number; a pool key adds the namespace."""
    digits = revision("digits", 3, namespace="team")

    assert digits.ref == "digits@3"
    assert "team/digits@3" == digits.key == pool_key("team", "digits", 3)
