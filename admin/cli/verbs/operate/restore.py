"""fnctl restore."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from admin.cli.failures import told
from admin.cli.session import DEFAULT_DATA, Data, Json
from admin.cli.session import print_answer as answer

if TYPE_CHECKING:
    from registry.settings import StoreSettings
    from registry.store.recovery.restoring import Restored

File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", exists=True, dir_okay=False, help="A copy of the database of a server."
    ),
]


def restore(file: File, data: Data = DEFAULT_DATA, as_json: Json = False) -> None:
    """Put FILE in the place of the database of a stopped server.

    FILE comes from fnctl backup, or is a daily copy in DATA/backups. The present database is set
    aside in DATA/set-aside. Keys and functions are then those of the copy: a key that was revoked
    after it was made is let in again.

    \b
    Example:
      fnctl restore ~/.fngate/backups/daily.db
    """
    with told(as_json):
        import asyncio

        from registry.files import DataDirectory
        from registry.settings import StoreSettings
        from registry.store.recovery import restoring

        settings = StoreSettings(data.expanduser().resolve())
        file = file.resolve()
        now_s = datetime.now(UTC).timestamp()
        with DataDirectory.open(settings.data):
            restored = asyncio.run(restoring.restore(settings, file, now_s))
        shown = {
            "functions": restored.functions,
            "keys": restored.keys,
            "missing_files": restored.missing,
            "set_aside": str(restored.folder) if restored.folder else None,
        }
        answer(as_json, shown, text(settings, file, restored))


def text(settings: StoreSettings, file: Path, restored: Restored) -> str:
    """What was done and what is still to do."""
    lines = [f"restored {restored.functions} functions and {restored.keys} keys"]
    if restored.folder is not None:
        lines.append(f"the database that was here is in {restored.folder}")
    if restored.missing:
        found = next((p / "blobs" for p in file.parents[:2] if (p / "blobs").is_dir()), "BLOBS")
        source, target = shlex.quote(f"{found}/."), shlex.quote(f"{settings.blobs}/")
        lines += [
            f"{restored.missing} files of functions are missing; copy them from the backup:",
            f"  mkdir -p {target} && cp -an {source} {target}",
        ]
    return "\n".join([*lines, f"next: fnctl serve --data {shlex.quote(str(settings.data))}"])
