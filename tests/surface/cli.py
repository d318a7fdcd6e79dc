"""Section of the surface: verbs, arguments, options, variables and exit codes of `fnctl`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from admin.cli.errors import EXIT_CODES
from admin.cli.main import app


def verbs() -> list[str]:
    """List each verb with its arguments and options, and the exit codes."""
    root = typer.main.get_command(app)
    codes = re.findall(r"^ +(\d+) ", EXIT_CODES, re.MULTILINE)
    return [*_command("fnctl", root), *(f"exit {one}" for one in codes)]


def _command(name: str, command: Any) -> Iterator[str]:
    yield name
    for one in command.params:
        yield f"{name} {_parameter(one)}"
    for verb, inner in getattr(command, "commands", {}).items():
        yield from _command(f"{name} {verb}", inner)


def _parameter(one: Any) -> str:
    is_option = one.opts[0].startswith("-")
    names = " ".join(sorted(one.opts)) if is_option else one.metavar or one.name.upper()
    parts = [f"{names}: {'flag' if getattr(one, 'is_flag', False) else kind_of(one)}"]
    parts += [f"{bound} {getattr(one, bound)}" for bound in ("min", "max") if getattr(one, bound)]
    parts += ["required"] if one.required else []
    parts += ["several"] if one.multiple or one.nargs != 1 else []
    if one.default not in (None, False, "") and not callable(one.default):
        parts.append(f"= {getattr(one.default, 'value', one.default)}")
    return " ".join([*parts, *([f"${one.envvar}"] if one.envvar else [])])


def kind_of(one: Any) -> str:
    """The type of a parameter: choices with | between them, or a name."""
    kind = one.type_descriptor.annotation
    if issubclass(kind, Enum):
        return "|".join(choice.value for choice in kind)
    return "path" if issubclass(kind, Path) else kind.__name__


def with_json() -> list[str]:
    """List the verbs that can print JSON."""
    taken = (line.split(" --json: ") for line in verbs() if " --json: " in line)
    return [verb.removeprefix("fnctl ") for verb, _ in taken]
