"""fnctl secret."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from admin import documents as d
from admin.cli.options import Session, connected
from admin.client import routes
from admin.text import ago, table

VALUE_MAX: Final = 64 * 1024

app = typer.Typer(
    help="Set, list and remove secrets of servers.", no_args_is_help=True, rich_markup_mode=None
)
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The secret's name, as in server.secrets.")
]
Force = Annotated[
    bool, typer.Option("--force", help="Remove it although functions need it; they then fail.")
]


@app.command("set")
@connected
def set_secret(session: Session, name: Name) -> None:
    """Create a secret or replace its value, which is read from standard input.

    A newline at its end is cut. On a terminal the value is asked for and not shown. A new value
    counts from the next start of a replica.

    \b
    Examples:
      fnctl secret set hf < token.txt
      pass show hf | fnctl secret set hf
    """
    value, is_cut = read_value()
    if is_cut:
        session.remark("a newline at the end of the value was cut")

    found = session.client.submit(routes.SET_SECRET, body=d.requests.SecretRequest(name, value))
    session.show(found, render_set, _after_set)


@app.command("ls")
@connected
def ls(session: Session) -> None:
    """List the secrets, without their values.

    \b
    Example:
      fnctl secret ls
    """
    session.show(
        session.client.items(routes.SECRETS),
        lambda items: render(items, datetime.now(UTC).timestamp()),
        lambda items: () if items else ("fnctl secret set NAME",),
    )


@app.command("rm")
@connected
def rm(session: Session, name: Name, force: Force = False) -> None:
    """Remove a secret. Refused while the current revision of a function needs it.

    \b
    Example:
      fnctl secret rm hf
    """
    session.show(session.client.call(routes.REMOVE_SECRET, name, force=force), render_removed)


def read_value() -> tuple[str, bool]:
    """Return the value on standard input, and whether a newline at its end was cut. Raises
    typer.BadParameter, which does not quote it."""
    if sys.stdin.isatty():
        import getpass

        return getpass.getpass("value: "), False
    data = sys.stdin.buffer.read(VALUE_MAX + 3)
    value = data.removesuffix(b"\n")
    value = value.removesuffix(b"\r") if value != data else value
    if not value or len(value) > VALUE_MAX:
        got = "more" if value else "none"
        raise typer.BadParameter(f"standard input: expected 1 to {VALUE_MAX} bytes, got {got}")
    try:
        return value.decode(), value != data
    except UnicodeDecodeError:
        raise typer.BadParameter("standard input: expected UTF-8 text, got other bytes") from None


def render_set(change: d.server.SecretChange) -> str:
    """Render the result of setting a secret."""
    how = "is set" if change.changed else "has this value already"
    lines = [f"secret {change.name} {how}"]
    if stale := change.stale:
        lines.append(f"  running replicas keep the old value until they stop: {', '.join(stale)}")
    if unreadable := change.unreadable:
        lines.append(f"  these cannot be read, their key is missing: {', '.join(unreadable)}")
    return "\n".join(lines)


def _after_set(change: d.server.SecretChange) -> list[str]:
    if change.stale:
        return [f"fnctl sleep {one}" for one in change.stale[:2]]
    return [f"fnctl deploy ... --secret VARIABLE={change.name}"] if change.created else []


def render_removed(secret: d.server.RemovedSecret) -> str:
    """Render the result of a removal."""
    text, refs = f"secret {secret.removed} is removed", secret.needed_by
    return f"{text}\n  without it these cannot be called: {', '.join(refs)}" if refs else text


def render(items: Sequence[d.server.SecretRow], now_s: float) -> str:
    """Render the secrets as a table, with the problems below it; `now_s` in Unix seconds."""
    rows = [
        (
            item.name,
            ago(item.set_s, now_s),
            ", ".join(item.functions),
            "unreadable" if item.problem else "",
        )
        for item in items
    ]
    if not rows:
        return "no secrets"
    problems = [item.problem for item in items if item.problem]
    return "\n".join([table(("NAME", "SET", "NEEDED BY", "STATE"), rows), *problems])
