"""fnctl env."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from admin import documents as d
from admin.cli.completion import environment_ids
from admin.cli.options import Session, connected
from admin.client import routes
from admin.text import ago, fields, size, table

SHOWN: Final = 12
"""Digits of an id that are shown; any that say which one it is will do."""
FUNCTIONS: Final = 5
"""Revisions of a row that are named."""

app = typer.Typer(
    help="List, show and remove the packages of Python functions.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Id = Annotated[
    str,
    typer.Argument(
        metavar="ENVIRONMENT",
        help="Its id, or the first digits of it.",
        autocompletion=environment_ids,
    ),
]


@app.command("ls")
@connected
def ls(session: Session) -> None:
    """List the environments: one for all functions with equal packages.

    OWN is the part of SIZE that nothing shared when it was built. A missing one is named by a
    revision, but its folder is gone.

    \b
    Example:
      fnctl env ls
    """
    session.show(
        session.client.items(routes.ENVIRONMENTS),
        lambda items: render(items, datetime.now(UTC).timestamp()),
        _after_list,
    )


def _after_list(items: Sequence[d.server.EnvironmentRow]) -> list[str]:
    if missing := next((one for one in items if one.state == "missing"), None):
        return [f"fnctl warm {one.partition('@')[0]}" for one in missing.live[:1]]
    is_unused = any(not one.functions and not one.live for one in items)
    return ["fnctl env rm --unused"] if is_unused else []


@app.command("show")
@connected
def show(session: Session, id: Id) -> None:
    """Show an environment: interpreter, functions, and packages with versions and sizes.

    The size of a package is that of its wheel, which is compressed.

    \b
    Example:
      fnctl env show 3f9c
    """
    session.show(
        session.client.call(routes.ENVIRONMENT, id),
        lambda found: render_shown(found, datetime.now(UTC).timestamp()),
    )


@app.command("rm")
@connected
def rm(
    session: Session,
    id: Annotated[
        str,
        typer.Argument(
            metavar="[ENVIRONMENT]",
            help="Its id, or the first digits of it.",
            autocompletion=environment_ids,
        ),
    ] = "",
    unused: Annotated[
        bool, typer.Option("--unused", help="Remove all that no revision names.")
    ] = False,
) -> None:
    """Remove an environment. Refused while a revision with the traffic or a replica needs it.

    Older revisions have it installed again when they get the traffic. Without this verb, an
    environment is removed a day after the last revision that names it.

    \b
    Examples:
      fnctl env rm 3f9c
      fnctl env rm --unused
    """
    if bool(id) == unused:
        raise typer.BadParameter("expected either an environment or --unused")

    if unused:
        pruned = session.client.call(routes.PRUNE_ENVIRONMENTS)
        session.show(pruned, lambda found: render_removed(found.removed))
        return
    session.show(
        session.client.call(routes.REMOVE_ENVIRONMENT, id), lambda one: render_removed([one])
    )


def render(items: Sequence[d.server.EnvironmentRow], now_s: float) -> str:
    """Render the environments as a table; `now_s` in Unix seconds."""
    rows = [
        (
            _short(item.id),
            item.python,
            item.package_count,
            _bytes(item.size_bytes),
            _bytes(item.own_bytes),
            item.state,
            _ago(item.started_s, now_s),
            _named(item),
        )
        for item in items
    ]
    head = ("ENVIRONMENT", "PYTHON", "PACKAGES", "SIZE", "OWN", "STATE", "USED", "FUNCTIONS")
    return table(head, rows) if rows else "no environments"


def render_shown(item: d.server.EnvironmentDetail, now_s: float) -> str:
    """Render an environment with its packages; `now_s` in Unix seconds."""
    pairs = (
        ("id", item.id),
        ("state", item.state),
        ("python", f"{item.interpreter or item.python}, {item.platform}, {item.libc}"),
        ("size", _size(item)),
        ("used", _ago(item.started_s, now_s)),
        ("functions", ", ".join(item.functions)),
        ("kept by", ", ".join(item.live)),
    )
    rows = [
        (one.name, one.version, _bytes(one.size_bytes), "wheels/" if one.bundled else "")
        for one in item.packages
    ]
    return f"{fields(pairs)}\n\n{table(('PACKAGE', 'VERSION', 'WHEEL', 'FROM'), rows)}"


def render_removed(removed: Sequence[d.server.RemovedEnvironment]) -> str:
    """Render the environments that were removed."""
    if not removed:
        return "no environment to remove"
    lines = []
    for one in removed:
        lines.append(f"{_short(one.removed)} removed, {_bytes(one.own_bytes)} freed")
        if one.functions:
            lines.append(f"  installed again with the traffic of {', '.join(one.functions)}")
    return "\n".join(lines)


def _size(item: d.server.EnvironmentDetail) -> str:
    if item.size_bytes is None:
        return ""
    own = f"{_bytes(item.own_bytes)} of them its own"
    return f"{_bytes(item.size_bytes)} in {item.files} files and bytecode, {own}"


def _named(item: d.server.EnvironmentRow) -> str:
    """Return the revisions that name an environment, and functions that are being deployed."""
    refs = list(dict.fromkeys([*item.functions, *item.live]))
    more = f" and {len(refs) - FUNCTIONS} more" if len(refs) > FUNCTIONS else ""
    return ", ".join(refs[:FUNCTIONS]) + more


def _short(id: str) -> str:
    digest, dot, owner = id.partition(".")
    return f"{digest[:SHOWN]}{dot}{owner}"


def _bytes(count: int | None) -> str:
    return size(count) if count is not None else ""


def _ago(at_s: float | None, now_s: float) -> str:
    return ago(at_s, now_s) if at_s is not None else ""
