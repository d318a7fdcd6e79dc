"""Words after `--` on a command line, which belong to another program."""

from __future__ import annotations

from typing import Any, Final

import typer
from typer.core import TyperCommand

DASHES: Final = "--"
_KEY: Final = "fngate.words"


class WithWords(TyperCommand):
    """Verb that leaves the words after `--` to `words_after_dashes`; without this class they would
    be its own arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words before `--`."""
        if DASHES in args:
            at = args.index(DASHES)
            ctx.meta[_KEY] = args[at + 1 :]
            args = args[:at]
        return list(super().parse_args(ctx, args))


def words_after_dashes(context: typer.Context) -> list[str]:
    """Return the words after `--` of the command line that runs."""
    found: list[str] = context.meta.get(_KEY, [])
    return found
