"""fnctl env."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from admin.cli.completion import environment_ids
from admin.cli.options import Session, connected
from admin.text import ago, fields, get, size, table

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
    items = session.client.environments()
    session.answer({"items": items}, lambda: render(items, datetime.now(UTC).timestamp()))
    if missing := next((one for one in items if one.get("state") == "missing"), None):
        for name in _functions(missing.get("live"))[:1]:
            session.next(f"fnctl warm {name}")
    elif any(not one.get("functions") and not one.get("live") for one in items):
        session.next("fnctl env rm --unused")


@app.command("show")
@connected
def show(session: Session, id: Id) -> None:
    """Show an environment: interpreter, functions, and packages with versions and sizes.

    The size of a package is that of its wheel, which is compressed.

    \b
    Example:
      fnctl env show 3f9c
    """
    answer = session.client.environment(id)
    session.answer(answer, lambda: render_shown(answer, datetime.now(UTC).timestamp()))


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
        removed = session.client.prune_environments()
        session.answer({"removed": removed}, lambda: render_removed(removed))
        return
    answer = session.client.remove_environment(id)
    session.answer(answer, lambda: render_removed([answer]))


def render(items: list[dict[str, Any]], now_s: float) -> str:
    """Render the environments as a table; `now_s` in Unix seconds."""
    rows = [
        (
            _short(get(item, "id")),
            get(item, "python"),
            get(item, "package_count"),
            _bytes(item.get("size_bytes")),
            _bytes(item.get("own_bytes")),
            get(item, "state"),
            _ago(item.get("started_s"), now_s),
            _named(item),
        )
        for item in items
    ]
    head = ("ENVIRONMENT", "PYTHON", "PACKAGES", "SIZE", "OWN", "STATE", "USED", "FUNCTIONS")
    return table(head, rows) if rows else "no environments"


def render_shown(item: dict[str, Any], now_s: float) -> str:
    """Render an environment with its packages; `now_s` in Unix seconds."""
    python = get(item, "interpreter") or get(item, "python")
    pairs = (
        ("id", get(item, "id")),
        ("state", get(item, "state")),
        ("python", f"{python}, {get(item, 'platform')}, {get(item, 'libc')}"),
        ("size", _size(item)),
        ("used", _ago(item.get("started_s"), now_s)),
        ("functions", ", ".join(item.get("functions") or [])),
        ("kept by", ", ".join(item.get("live") or [])),
    )
    rows = [
        (
            get(one, "name"),
            get(one, "version"),
            _bytes(one.get("size_bytes")),
            "wheels/" if one.get("bundled") else "",
        )
        for one in item.get("packages") or []
    ]
    return f"{fields(pairs)}\n\n{table(('PACKAGE', 'VERSION', 'WHEEL', 'FROM'), rows)}"


def render_removed(removed: list[dict[str, Any]]) -> str:
    """Render the environments that were removed."""
    if not removed:
        return "no environment to remove"
    lines = []
    for one in removed:
        lines.append(f"{_short(get(one, 'removed'))} removed, {_bytes(one.get('own_bytes'))} freed")
        if refs := one.get("functions"):
            lines.append(f"  installed again with the traffic of {', '.join(refs)}")
    return "\n".join(lines)


def _size(item: dict[str, Any]) -> str:
    if item.get("size_bytes") is None:
        return ""
    own = f"{_bytes(item.get('own_bytes'))} of them its own"
    return f"{_bytes(item.get('size_bytes'))} in {get(item, 'files')} files and bytecode, {own}"


def _named(item: dict[str, Any]) -> str:
    """Return the revisions that name an environment, and functions that are being deployed."""
    refs = list(dict.fromkeys([*(item.get("functions") or []), *(item.get("live") or [])]))
    more = f" and {len(refs) - FUNCTIONS} more" if len(refs) > FUNCTIONS else ""
    return ", ".join(refs[:FUNCTIONS]) + more


def _functions(refs: Any) -> list[str]:
    return [str(one).partition("@")[0] for one in refs or []]


def _short(id: str) -> str:
    digest, dot, owner = id.partition(".")
    return f"{digest[:SHOWN]}{dot}{owner}"


def _bytes(count: Any) -> str:
    return size(int(count)) if count is not None else ""


def _ago(at_s: Any, now_s: float) -> str:
    return ago(float(at_s), now_s) if at_s is not None else ""
