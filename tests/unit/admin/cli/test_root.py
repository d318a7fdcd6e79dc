"""Tests of the commands of `fnctl` as a whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
import typer
from typer.testing import Result

from admin.cli.main import COMMANDS, app
from admin.cli.root import SYNONYMS


@pytest.mark.parametrize("synonym", SYNONYMS)
def test_a_verb_of_another_tool_names_ours(fnctl: Callable[..., Result], synonym: str) -> None:
    """It is a usage error, and the verb that it names exists."""
    own = {one.name for one in [*app.registered_commands, *app.registered_groups]}

    result = fnctl(synonym, "x")

    assert result.exit_code == 2
    assert f"Did you mean 'fnctl {SYNONYMS[synonym]}'?" in result.stderr
    assert SYNONYMS[synonym] in own
    assert synonym not in own


def test_the_help_has_every_command_once_below_a_heading(fnctl: Callable[..., Result]) -> None:
    """Each command is in one group, with its purpose in one whole line. Fails for a new command
    without a group."""
    shown = fnctl("--help").stdout
    headings = "|".join(map(re.escape, COMMANDS))
    parts = re.split(
        rf"^({headings}):\n", shown.partition("\n  Exit codes:")[0], flags=re.MULTILINE
    )
    listed = {
        heading: re.findall(r"^  ([a-z]+) +[A-Z].*\.$", text, re.MULTILINE)
        for heading, text in zip(parts[1::2], parts[2::2], strict=True)
    }

    assert listed == {heading: sorted_as(commands) for heading, commands in COMMANDS.items()}
    assert sorted(chain(*listed.values())) == sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert re.findall(r"^  [a-z]+ +.*\.\.\.$", shown, re.MULTILINE) == []


def sorted_as(commands: dict[str, Any]) -> list[str]:
    """Names in the library's order: commands of their own before those with commands below them."""
    return sorted(commands, key=lambda name: isinstance(commands[name], typer.Typer))
