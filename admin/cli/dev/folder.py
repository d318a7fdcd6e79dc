"""What a folder says about its function: program, packages, settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from admin.cli.bundle_files import files_in, open_file
from environments.needs import FILE_MAX, FILES, HANDLER, Needs, read_needs
from registry.bounded_text import TOML_MAX, read_toml
from registry.bundles.paths import check_path
from registry.errors import BadBundle
from registry.manifest import MANIFEST_FILE
from registry.manifest.checks import refused
from registry.manifest.python import BATCH_MAX
from registry.manifest.schema import SCHEMA, Document, check_document, declared, input_rule
from registry.manifest.server import PORT, SOCKET, server_settings
from registry.model import ServerSettings


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder, as it was read."""

    root: Path
    needs: Needs
    version: str = ""
    """Version of Python that is wanted, "" for any."""
    env: dict[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    """Variables whose values only a server has."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the runner without the address."""
    server: ServerSettings | None = None
    """The command that is the server; None for a handler."""
    sample: dict[str, Any] = field(default_factory=dict)
    """Example inputs of a handler."""


def read_folder(root: Path) -> Folder:
    """Return what a folder says. Raises BadBundle, BadManifest, BadNeeds."""
    names = frozenset(files_in(root))
    if MANIFEST_FILE not in names:
        if HANDLER not in names:
            raise BadBundle(f"expected {HANDLER} or {MANIFEST_FILE} in {root}, got neither")
        return _folder(root, {"schema": SCHEMA}, names)
    text = _text(root, MANIFEST_FILE, TOML_MAX * 4).decode("utf-8", "replace")
    data = read_toml(text, MANIFEST_FILE)
    if "python" not in data:
        error = refused("python", "this table, which makes a Python function", "none")
        error.add_note(f"[python] in {MANIFEST_FILE}; the other functions need a server")
        raise error
    return _folder(root, data, names)


def _text(root: Path, name: str, most: int) -> bytes:
    with open_file(root, name) as file:
        return file.read(most + 1)


def _folder(root: Path, data: Mapping[str, Any], names: frozenset[str]) -> Folder:
    is_server = "server" in data
    # The sample of a server is a request.
    document = check_document(
        {key: value for key, value in data.items() if key != "sample" or not is_server}
    )
    table = document.python
    wanted = {*FILES, *([table.needs] if table.needs else [])}
    files = {name: _text(root, name, FILE_MAX) for name in sorted(wanted) if name in names}
    server = _server(document) if is_server else None
    return Folder(
        root,
        read_needs(files, table.needs),
        table.version,
        {**table.env, **(server.env if server else {})},
        tuple(sorted({*table.secrets, *(server.secrets if server else ())})),
        {} if server else _settings(root, document),
        server,
        document.sample,
    )


def _server(document: Document) -> ServerSettings:
    found = server_settings(document.server, (), ())
    texts = (*found.command, *found.env.values())
    if any(SOCKET in text for text in texts) or not any(PORT in text for text in texts):
        raise refused("server.command", f"{PORT} in it, for a run on this machine", found.command)
    return found


def _settings(root: Path, document: Document) -> dict[str, Any]:
    """Return the settings of the runner, which checks those of [output] by itself."""
    handler = document.python.handler
    path = root / check_path(handler)
    if not path.is_file():
        raise refused("python.handler", "a file of the folder", handler)
    page = document.python.page
    if page and not (root / check_path(page)).is_file():
        raise refused("python.page", "a file of the folder", page)
    limits, batching = document.limits, document.batching
    inputs = {name: input_rule(name, table, "python") for name, table in document.input.items()}
    return {
        "handler": str(path),
        "page": str(root / page) if page else "",
        "revision": document.name,
        "timeout_s": limits.timeout_s,
        "body_mib": limits.body_mib,
        "concurrency": limits.concurrency if "concurrency" in limits.model_fields_set else 0,
        "batch_max": (batching.max_size or BATCH_MAX) if batching.mode == "always" else 0,
        "inputs": declared(inputs) if inputs else {},
        "output": document.output.model_dump(exclude_unset=True),
        "log_calls": True,
        "local_only": True,
    }
