"""Tests of manifests as YAML, read by another reader of it."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from admin.cli.kubernetes.yaml import Document, Value, stream

TEXTS = st.one_of(
    st.sampled_from(
        ["yes", "null", "1e3", "0x10", "250m", "- a", "a: b", "#", "~", "*", "::/0", ""]
    ),
    st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126)),
)
VALUES: st.SearchStrategy[Value] = st.recursive(
    TEXTS | st.integers(-(2**40), 2**40) | st.booleans(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=5))
def test_another_reader_finds_what_was_written(value: dict[str, Value]) -> None:
    """Every value comes back as it was, of its own type."""
    assert list(yaml.safe_load_all(stream([Document("why", value)]))) == [value]


@pytest.mark.parametrize("text", ["set -e\nexit 0\n", "a\n  b\n\nc\n"])
def test_a_script_is_a_block(text: str) -> None:
    """Its lines are shown as they are."""
    shown = stream([Document("", {"script": text})])

    assert "script: |\n  " in shown
    assert yaml.safe_load(shown) == {"script": text}


def test_objects_are_documents_with_comments() -> None:
    """A document begins with its marker and its comment."""
    shown = stream([Document("One.\nTwo.", {"a": 1}), Document("", {"b": []})])

    assert shown == "---\n# One.\n# Two.\na: 1\n---\nb: []\n"
