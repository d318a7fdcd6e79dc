"""Sections of the surface: database, records in and beside it, files, labels of containers."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from pool_manager.drivers.docker.spec import MountPaths, Owner, holder, replica
from registry.manifest import HANDLER_FILE, MANIFEST_FILE
from registry.model.bundles import Bundle
from registry.model.devices import Use
from registry.model.functions import Function
from registry.model.history import Arrivals, ColdStart, StateInterval
from registry.model.keys import Key
from registry.model.operations import Operation
from registry.model.profiles import Profile
from registry.model.revisions import Revision
from registry.store.recovery.folder import Marker
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.model import FOLDER, GRAPH_FILE, WEIGHTS_FILE
from tests.surface import source
from tests.surface.shapes import fields_of

RECORDS: dict[str, Any] = {
    "arrivals": Arrivals,
    "bundle": Bundle,
    "cold start": ColdStart,
    "function": Function,
    "interval": StateInterval,
    "key": Key,
    "marker": Marker,
    "operation": Operation,
    "profile": Profile,
    "replica": ReplicaRecord,
    "revision": Revision,
    "use": Use,
}
RECORD = ReplicaRecord(
    id="r",
    token="t",
    role="serve",
    namespace="default",
    bound="default/f@1",
    model_dir="/model",
    devices=("cpu:0",),
    device_kind="cpu",
    engine="onnx",
    threads=1,
    orphan_s=1.0,
    memory_mib=1,
    launched_s=0.0,
    link=1,
)


def records() -> list[str]:
    """List the fields of the records in the database and of the JSON files beside it."""
    return [line for caption, kind in RECORDS.items() for line in fields_of(caption, kind)]


def containers() -> list[str]:
    """List labels, variables and mounts of replica containers and network holders, and all own
    labels in the code."""
    owner, place = Owner("o"), MountPaths(Path("/run-dir"), Path("/model-dir"), 4096)
    found = [f"name {one}" for one in source.labels()]
    for caption, one in (
        ("replica", replica(RECORD, "image", owner, place, 1)),
        ("holder", holder("image", owner, "1", 1)),
    ):
        found += [f"{caption} label {name}" for name in one["Labels"]]
        found += [f"{caption} variable {name.partition('=')[0]}" for name in one.get("Env", ())]
        mounts = one["HostConfig"].get("Mounts", ())
        found += [f"{caption} mount {mount['Target']}" for mount in mounts]
    return found


def file_names() -> list[str]:
    """List the files of bundles and prepared models, and file names in the code."""
    named = [
        MANIFEST_FILE,
        HANDLER_FILE,
        *(f"{FOLDER}/{one}" for one in (GRAPH_FILE, WEIGHTS_FILE)),
    ]
    return [*named, *source.file_names()]


def migrations() -> list[str]:
    """List the names of the migrations, in any folder `migrations`."""
    return [path.name for path in source.files("migrations/*.sql")]


def schema(database: Path) -> list[str]:
    """List the tables with their columns, and the indexes, of a database created by a server."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        found = [
            f"{name} {connection.execute(f'PRAGMA {name}').fetchone()[0]}"
            for name in ("application_id", "user_version")
        ]
        rows = connection.execute("SELECT type, name, tbl_name FROM sqlite_master").fetchall()
        for kind, name, table in rows:
            if name.startswith("sqlite_"):
                continue
            if kind == "table":
                columns = connection.execute(f"PRAGMA table_info({name})").fetchall()
                found += [
                    f"{name}.{column}: {type_}{' not null' if bound else ''}{' key' if key else ''}"
                    for _, column, type_, bound, _, key in columns
                ]
            else:
                found.append(f"{kind} {table} {name}")
        return found
    finally:
        connection.close()
