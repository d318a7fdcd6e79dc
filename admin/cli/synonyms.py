"""Verbs of other tools, for which `fnctl` names its own."""

from __future__ import annotations

from typing import Any, Final

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
}
"""Verbs of docker, kubectl, Triton and others, and those of `fnctl` that do the same."""


class WithSynonyms(TyperGroup):
    """Command group whose error for a synonym names the verb that is meant."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command of `args`. Raises the library's usage error (exit code 2)."""
        verb = SYNONYMS.get(args[0]) if args else None
        if verb is not None and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"No such command {args[0]!r}. Did you mean 'fnctl {verb}'?")
        return super().resolve_command(ctx, args)
