"""Options of `fnctl deploy` for server functions, and the function.toml that they stand for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import typer


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The [server] options of a command line; None for those that were not given."""

    command: tuple[str, ...] | None = None
    image: str | None = None
    env: dict[str, str] | None = None
    secrets: dict[str, str] | None = None
    mounts: dict[str, str] | None = None
    port: int | None = None
    ready: str | None = None
    network: str | None = None
    concurrency: int | None = None

    def overrides(self) -> dict[str, Any]:
        """Return the given options as overrides of a function.toml."""
        found = {
            "command": list(self.command) if self.command else None,
            "image": self.image,
            "env": self.env,
            "secrets": self.secrets,
            "mounts": self.mounts,
            "port": self.port,
            "ready": self.ready,
            "network": self.network,
            "concurrency": self.concurrency,
        }
        return {key: value for key, value in found.items() if value is not None}

    def manifest(self) -> str:
        """Return the text of a function.toml with these options; "" without command and image."""
        if not (self.command or self.image):
            return ""
        table = self.overrides()
        concurrency = table.pop("concurrency", None)
        tables = {key: table.pop(key) for key in ("env", "secrets", "mounts") if key in table}
        lines = ["schema = 1", "[server]", *(f"{key} = {_toml(table[key])}" for key in table)]
        for key, pairs in tables.items():
            lines += [f"[server.{key}]", *(f"{_toml(k)} = {_toml(v)}" for k, v in pairs.items())]
        if concurrency is not None:
            lines += ["[limits]", f"concurrency = {concurrency}"]
        return "\n".join([*lines, ""])


def parse_command(text: str | None, words: Sequence[str] = ()) -> tuple[str, ...] | None:
    """Split --command as a shell would, or return the `words` after --; None without any. Raises
    typer.BadParameter."""
    if text is None:
        return tuple(words) or None
    if words:
        raise typer.BadParameter("expected --command or words after --, got both")
    from registry.manifest.server import split_command

    try:
        words = tuple(split_command(text))
    except ValueError as error:
        message = f"expected {error}, got {text!r}"
        raise typer.BadParameter(message, param_hint="--command") from error
    if not words:
        raise typer.BadParameter("expected a program, got nothing", param_hint="--command")
    return words


def parse_pairs(items: Sequence[str] | None, option: str, form: str) -> dict[str, str] | None:
    """Return the pairs of a repeated option; None without any. Raises typer.BadParameter that names
    the `option` and its `form`."""
    found: dict[str, str] = {}
    for item in items or ():
        name, equals, value = item.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"expected {form}, got {item!r}", param_hint=option)
        found[name] = value
    return found or None


def _toml(value: object) -> str:
    """Return a value as TOML, whose strings have the escapes of JSON (TOML 1.0, "String"), and
    beside these one of DEL."""
    return json.dumps(value).replace("\x7f", "\\u007F")
