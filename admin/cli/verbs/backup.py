"""fnctl backup, restore."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from admin.cli.errors import errors_reported
from admin.cli.options import (
    DEFAULT_DATA,
    DEFAULT_URL,
    Data,
    Identity,
    Json,
    Key,
    KnownHosts,
    ServerAddress,
    Ssh,
    Url,
    client_at,
    is_local,
    parse_login,
    print_answer,
)
from admin.text import size

if TYPE_CHECKING:
    from admin.client.client import Client
    from registry.settings import StoreSettings
    from registry.store.recovery.inspection import DatabaseReport
    from registry.store.recovery.restoring import Restored


BackupFile = Annotated[
    Path, typer.Argument(metavar="FILE", dir_okay=False, help="Target file, on this machine.")
]
File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", exists=True, dir_okay=False, help="A copy of a server's database."
    ),
]

SecretKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--secret-key-file",
        envvar="FN_SECRET_KEY_FILE",
        metavar="FILE",
        help="Key of the secrets (default DATA/secret.key).",
    ),
]


def backup(  # noqa: PLR0913 - typer takes one parameter per option
    context: typer.Context,
    file: BackupFile,
    url: Url = DEFAULT_URL,
    key: Key = None,
    data: Data = DEFAULT_DATA,
    ssh: Ssh = None,
    identity: Identity = None,
    known_hosts: KnownHosts = None,
    as_json: Json = False,
) -> None:
    """Copy the server's database to FILE.

    The server may run or be stopped. The copy contains functions, access keys (as hashes) and
    history. Models are files in DATA/blobs: copy that folder after the database. fnctl restore puts
    the copy in place.

    \b
    Example:
      fnctl backup fngate-backup.db && cp -an ~/.fngate/blobs .
    """
    login = parse_login(context, ssh, identity=identity, known_hosts=known_hosts)
    check_target(file)
    with errors_reported(as_json):
        from admin.client.client import Unreachable

        address = ServerAddress(url, key, data)
        try:
            with client_at(address, login) as client:
                report = fetch(client, file)
        except Unreachable:
            if login is not None or not is_local(url) or not (found := copy_stopped(data, file)):
                raise
            report = found
        made = file.stat().st_size
        shown = {"file": str(file), "bytes": made, **contents(report)}
        print_answer(as_json, shown, f"{file}: {size(made)}, {described(report)}")


def check_target(file: Path) -> None:
    """Raise typer.BadParameter if FILE is a database in use."""
    if any(file.with_name(file.name + side).exists() for side in ("-wal", "-shm")):
        raise typer.BadParameter(f"{file} is a database in use", param_hint="FILE")


def fetch(client: Client, file: Path) -> DatabaseReport:
    """Download a copy, check it, and replace `file` with it.

    Raises Unreachable, ApiError or StoreUnavailable, and then leaves `file` as it was.
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
            raise StoreUnavailable(f"the server sent a copy that is not sound: {reason}")
    return report


def copy_stopped(data: Path, file: Path) -> DatabaseReport | None:
    """Copy the database in `data` to `file`; return None if there is none, or if a server uses it.
    Raises StoreUnavailable."""
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
    """Return the contents of a copy for --json."""
    return {"functions": report.functions, "keys": report.keys, "schema": report.schema}


def described(report: DatabaseReport) -> str:
    """Return the contents of a copy in words."""
    return f"{report.functions} functions, {report.keys} keys"


def restore(
    file: File,
    data: Data = DEFAULT_DATA,
    secret_key_file: SecretKeyFile = None,
    as_json: Json = False,
) -> None:
    """Replace the database of a stopped server with FILE.

    FILE comes from fnctl backup, or is a daily copy in DATA/backups. The current database is moved
    to DATA/set-aside. Keys and functions are then those of the copy: a key that was revoked after
    the copy was made is valid again. Secrets need their key file, which no copy has.

    \b
    Example:
      fnctl restore ~/.fngate/backups/daily.db
    """
    with errors_reported(as_json):
        import asyncio

        from registry.files import DataDirectory
        from registry.settings import StoreSettings
        from registry.store.recovery import restoring

        settings = StoreSettings(data.expanduser().resolve(), secret_key_file=secret_key_file)
        file = file.resolve()
        now_s = datetime.now(UTC).timestamp()
        with DataDirectory.open(settings.data):
            restored = asyncio.run(restoring.restore(settings, file, now_s))
        shown = {
            "functions": restored.functions,
            "keys": restored.keys,
            "missing_files": restored.missing,
            "set_aside": str(restored.folder) if restored.folder else None,
            "unreadable_secrets": list(restored.unreadable),
        }
        print_answer(as_json, shown, text(settings, file, restored))


def text(settings: StoreSettings, file: Path, restored: Restored) -> str:
    """Render the result of a restore, and the remaining steps."""
    lines = [f"restored {restored.functions} functions and {restored.keys} keys"]
    if restored.folder is not None:
        lines.append(f"the previous database is in {restored.folder}")
    if restored.missing:
        found = next((p / "blobs" for p in file.parents[:2] if (p / "blobs").is_dir()), "BLOBS")
        source, target = shlex.quote(f"{found}/."), shlex.quote(f"{settings.blobs}/")
        lines += [
            f"{restored.missing} files of functions are missing; copy them from the backup:",
            f"  mkdir -p {target} && cp -an {source} {target}",
        ]
    if restored.unreadable:
        lines += [
            f"no key for the secrets {', '.join(restored.unreadable)}: put their key file back"
            f" ({settings.secret_key}),",
            "  or set them again: fnctl secret set NAME",
        ]
    return "\n".join([*lines, f"next: fnctl serve --data {shlex.quote(str(settings.data))}"])
