"""The commands of `fnctl` as a whole: their help in groups, and the verbs of other tools, for which
`fnctl` names its own."""

from __future__ import annotations

from typing import Any, Final, cast

from typer.core import TyperGroup

SYNONYMS: Final = {
    "ps": "ls",
    "list": "ls",
    "status": "ls",
    "get": "show",
    "describe": "show",
    "inspect": "show",
    "delete": "rm",
    "remove": "rm",
    "undeploy": "rm",
    "stop": "sleep",
    "start": "warm",
    "load": "warm",
    "unload": "sleep",
    "run": "invoke",
    "call": "invoke",
    "create": "deploy",
    "push": "deploy",
    "apply": "deploy",
    "log": "logs",
    "dashboard": "ui",
    "up": "serve",
    "op": "operation",
    "operations": "operation",
    "cancel": "operation",
}
"""Verbs of docker, kubectl, Triton and others, and those of `fnctl` that do the same."""


class Root(TyperGroup):
    """Command group that lists its commands below the headings of their help panels, and whose
    error for a synonym names the verb that is meant."""

    def format_commands(self, _: Any, formatter: Any) -> None:
        """Write each command with its purpose. The library does it so in its help with rich only,
        which costs too much start-up time."""
        panels: dict[str, list[tuple[str, str]]] = {}
        width = max(map(len, self.commands))
        for name, command in cast("dict[str, Any]", self.commands).items():
            purpose = command.get_short_help_str(formatter.width - 6 - width)
            panels.setdefault(command.rich_help_panel or "Commands", []).append(
                (name.ljust(width), purpose)
            )
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command of `args`. Raises the library's usage error (exit code 2)."""
        verb = SYNONYMS.get(args[0]) if args else None
        if verb is not None and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"No such command {args[0]!r}. Did you mean 'fnctl {verb}'?")
        return super().resolve_command(ctx, args)
