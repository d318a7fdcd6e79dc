"""Tests of verbs that `fnctl` does not have."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from typer.testing import Result

from admin.cli.main import app
from admin.cli.synonyms import SYNONYMS


@pytest.mark.parametrize("synonym", SYNONYMS)
def test_a_verb_of_another_tool_names_ours(fnctl: Callable[..., Result], synonym: str) -> None:
    """It is a usage error, and the verb that it names exists."""
    own = {one.name for one in app.registered_commands}

    result = fnctl(synonym, "x")

    assert result.exit_code == 2
    assert f"Did you mean 'fnctl {SYNONYMS[synonym]}'?" in result.stderr
    assert SYNONYMS[synonym] in own
    assert synonym not in own
