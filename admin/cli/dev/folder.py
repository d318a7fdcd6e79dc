"""What a folder says about its function: program, packages, settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from admin.cli.bundle_files import files_in, open_file
from environments.needs import FILE_MAX, FILES, HANDLER, Needs, read_needs
from registry.bounded_text import TOML_MAX, read_toml
from registry.catalog import Deployed
from registry.errors import BadBundle
from registry.manifest import MANIFEST_FILE, Manifest, parse_manifest
from registry.manifest.checks import refused
from registry.manifest.schema import SCHEMA
from registry.model.functions import Function
from registry.model.revisions import Revision
from registry.model.servers import PORT, SOCKET, ServerSettings
from registry.spec import runner_settings
from runtime_image.contract.server import ENGINE
from runtime_image.contract.signature import Signature


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
    names = files_in(root)
    if MANIFEST_FILE in names:
        text = _text(root, MANIFEST_FILE, TOML_MAX * 4).decode("utf-8", "replace")
    elif HANDLER in names:
        text = f"schema = {SCHEMA}\n[python]\n"
    else:
        raise BadBundle(f"expected {HANDLER} or {MANIFEST_FILE} in {root}, got neither")
    if "python" not in read_toml(text, MANIFEST_FILE):
        error = refused("python", "this table, which makes a Python function", "none")
        error.add_note(f"[python] in {MANIFEST_FILE}; the other functions need a server")
        raise error
    manifest = parse_manifest(text, names)
    server = manifest.server
    assert server is not None
    assert server.python is not None
    wanted = {*FILES, server.python.needs}
    files = {name: _text(root, name, FILE_MAX) for name in sorted(wanted) if name in names}
    return Folder(
        root,
        read_needs(files, server.python.needs),
        server.python.version,
        dict(server.env),
        tuple(sorted(server.secrets)),
        _settings(root, manifest) if manifest.is_python else {},
        None if manifest.is_python else _checked(server),
        manifest.sample,
    )


def _text(root: Path, name: str, most: int) -> bytes:
    with open_file(root, name) as file:
        return file.read(most + 1)


def _checked(server: ServerSettings) -> ServerSettings:
    """Return the settings of a command, which must listen at a port here. Raises BadManifest."""
    texts = (*server.command, *server.env.values())
    if any(SOCKET in text for text in texts) or not any(PORT in text for text in texts):
        raise refused("server.command", f"{PORT} in it, for a run on this machine", server.command)
    return server


def _settings(root: Path, manifest: Manifest) -> dict[str, Any]:
    """Return the settings of the runner: those of a server, but for what differs here."""
    function = Function(manifest.name, 0, limits=manifest.limits, exchange=manifest.exchange)
    revision = Revision(
        manifest.name,
        0,
        "",
        Signature("http", (), ()),
        ENGINE,
        handler=manifest.handler,
        inputs=manifest.inputs,
        output=manifest.output,
        server=manifest.server,
    )
    settings = runner_settings(Deployed(function, revision))
    own: dict[str, Any] = {
        "handler": str(root / manifest.handler),
        "page": str(root / settings["page"]) if settings["page"] else "",
        "revision": manifest.name,
        "log_calls": True,
        "local_only": True,
    }
    if "limits.concurrency" not in manifest.named and not settings["batch_max"]:
        own["concurrency"] = 0  # the runner reads the form of `predict`
    return {**settings, **own}
