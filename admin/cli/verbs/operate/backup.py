"""fnctl backup."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from admin.cli.failures import told
from admin.cli.session import DEFAULT_DATA, DEFAULT_URL, Data, Json, Key, Url, client_at, is_local
from admin.cli.session import print_answer as answer
from admin.cli.ssh import Identity, KnownHosts, Place, Ssh, login
from admin.cli.text import size

if TYPE_CHECKING:
    from admin.client import Client
    from registry.store.recovery.inspection import DatabaseReport

File = Annotated[
    Path, typer.Argument(metavar="FILE", dir_okay=False, help="The copy, on this machine.")
]


def backup(  # noqa: PLR0913 - typer takes one parameter per option
    context: typer.Context,
    file: File,
    url: Url = DEFAULT_URL,
    key: Key = None,
    data: Data = DEFAULT_DATA,
    ssh: Ssh = None,
    identity: Identity = None,
    known_hosts: KnownHosts = None,
    as_json: Json = False,
) -> None:
    """Copy the server's database to FILE, while the server runs or where it is stopped.

    It has functions, access keys (their hashes) and history. Models are the files in DATA/blobs:
    copy that folder after the database. fnctl restore puts the copy in place.

    \b
    Example:
      fnctl backup fngate-backup.db && cp -an ~/.fngate/blobs .
    """
    way = login(context, ssh, identity=identity, known_hosts=known_hosts)
    check_target(file)
    with told(as_json):
        from admin.client import Unreachable

        place = Place(url, key, data)
        try:
            with client_at(place, way) as client:
                report = fetch(client, file)
        except Unreachable:
            if way is not None or not is_local(url) or not (found := copy_stopped(data, file)):
                raise
            report = found
        made = file.stat().st_size
        shown = {"file": str(file), "bytes": made, **contents(report)}
        answer(as_json, shown, f"{file}: {size(made)}, {described(report)}")


def check_target(file: Path) -> None:
    """Raise typer.BadParameter where FILE is a database that something may be using."""
    if any(file.with_name(file.name + side).exists() for side in ("-wal", "-shm")):
        raise typer.BadParameter(f"{file} is a database in use", param_hint="FILE")


def fetch(client: Client, file: Path) -> DatabaseReport:
    """Have the server send a copy, and keep it as `file` once it is known to be whole and sound.

    Raises Unreachable, ApiError, StoreUnavailable; `file` is then as it was.
    """
    from registry.errors import StoreUnavailable
    from registry.files import replacing
    from registry.store.recovery.inspection import inspect_database

    with replacing(file) as fresh:
        with fresh.open("wb") as target:
            client.backup(target.write)
        report = inspect_database(fresh, is_checked=True)
        if report.state != "sound":
            reason = report.reason or report.state
            raise StoreUnavailable(f"what the server has sent is no sound database: {reason}")
    return report


def copy_stopped(data: Path, file: Path) -> DatabaseReport | None:
    """Copy the database in `data` to `file`; None where there is none, or a server uses it that
    does not answer. Raises StoreUnavailable."""
    from registry.errors import Conflict
    from registry.files import DataDirectory
    from registry.settings import StoreSettings
    from registry.store.recovery.copying import copy_database
    from registry.store.recovery.folder import check_folder

    settings = StoreSettings(data.expanduser().resolve())
    if not settings.database.is_file():
        return None
    try:
        held = DataDirectory.open(settings.data)
    except Conflict:
        return None
    with held:
        check_folder(settings)
        return copy_database(settings.database, file)


def contents(report: DatabaseReport) -> dict[str, Any]:
    """What is in a copy, for --json."""
    return {"functions": report.functions, "keys": report.keys, "schema": report.schema}


def described(report: DatabaseReport) -> str:
    """What is in a copy, in words."""
    return f"{report.functions} functions, {report.keys} keys"
