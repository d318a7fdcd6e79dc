"""Path rules of server functions."""

from __future__ import annotations

import pytest

from registry.path_rules import parse_rule


@pytest.mark.parametrize("text", ["", "GET", "get /x", "x", "/a b", "/a?b", "/a//b", "/../a"])
def test_a_malformed_rule_is_refused(text: str) -> None:
    """The text names the expected form."""
    with pytest.raises(ValueError, match="METHOD"):
        parse_rule(text)
