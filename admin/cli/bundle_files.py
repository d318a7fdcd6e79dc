"""Files of a deploy: collected and checked before anything is sent."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from admin import documents as d
from admin.cli import ignoring
from admin.cli.links import leads_out, real_path
from admin.text import command, size
from registry.bounded_text import TOML_MAX
from registry.bundles.foreign_formats import by_suffix, is_onnx, not_onnx
from registry.bundles.onnx_files import OnnxReader, check_original, external_paths
from registry.bundles.paths import FILES_MAX, check_path, make_bundle
from registry.errors import BadBundle, BadRequest
from registry.manifest import MANIFEST_FILE, parse_manifest
from registry.manifest.document import HANDLER_FILE
from registry.model.bundles import Bundle, BundleFile
from registry.names import check_name, name_from_file

BIG: Final = 100 * 1024 * 1024
"""Bytes above which a file of a program's folder may not be meant to be sent."""
MANY: Final = 500
"""Files above which a program's folder may not be meant to be sent."""
OF_HANDLER: Final = "schema = 1\n\n[python]\n"
"""Manifest of a folder that has none, but a handler and no model: a Python function."""
_SHOWN: Final = 5
_CHUNK: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Collected:
    """Content of a deploy. `bundle` names the files by content, `root` is their folder.

    `manifest` is the text of function.toml, "" for a bare model file. `is_derived`: the name was
    derived from the file's name. `is_server`: it is a server function, which may have no files.
    `unnamed` are the paths that go along because they are in the folder.
    """

    name: str
    is_derived: bool
    root: Path
    bundle: Bundle
    manifest: str = ""
    model: str = ""
    sample: dict[str, Any] = field(default_factory=dict)
    is_server: bool = False
    unnamed: frozenset[str] = frozenset()

    @property
    def path(self) -> Path:
        """Deployed path: the folder, or the bare model file."""
        return self.root if self.manifest else self.root / self.model

    def surprises(self) -> list[str]:
        """Return what of the folder may not be meant to be sent: large files, files from elsewhere,
        and very many. Raises BadBundle."""
        files = [file for file in self.bundle.files if file.path in self.unnamed]
        big = [f"{file.path} has {size(file.size)}" for file in files if file.size > BIG]
        linked = [
            f"{file.path} is a link out of the folder, to {real_path(self.root, file.path)}"
            for file in files
            if leads_out(self.root, file.path)
        ]
        lines = [*big[:_SHOWN], *linked[:_SHOWN]]
        if more := len(big) + len(linked) - len(lines):
            lines.append(f"{more} more are large or such links")
        if len(self.unnamed) > MANY:
            lines.append(f"the folder has {len(self.unnamed)} files")
        return lines

    def along(self) -> str:
        """Return which files go along with a handler because they are in its folder; "" for none,
        and for a server, of which everything does."""
        if self.is_server or not self.unnamed:
            return ""
        shown = sorted(self.unnamed)[:_SHOWN]
        more = len(self.unnamed) - len(shown)
        return f"{', '.join(shown)}{f' and {more} more' if more else ''}"

    def request(self, wanted: d.requests.DeployRequest) -> d.requests.DeployRequest:
        """Return the body of a deploy: what is `wanted` with these files."""
        entry = d.requests.BundleEntry
        return msgspec.structs.replace(
            wanted,
            files=[entry(file.path, file.size, file.sha256) for file in self.bundle.files],
            manifest=self.manifest or None,
            model=None if self.manifest else self.model,
            derived_name=self.is_derived,
        )


def collect(path: Path | None, name: str | None = None, built: str = "") -> Collected:
    """Collect the files of `path`: a model file, or a folder with function.toml or handler.py.
    `built` is the manifest of a server function, for a folder without one or for no folder at all.

    Links are followed to regular files; special files and paths outside the folder are refused.
    Raises BadBundle, BadManifest, or BadRequest for a bad name.
    """
    if name is not None:
        check_name(name)
    if path is None:
        if name is None:
            raise BadRequest("--name: expected a name for a server without a folder, got none")
        parse_manifest(built, ())
        bundle = make_bundle((), may_be_empty=True)
        return Collected(name, False, Path(), bundle, manifest=built, is_server=True)
    if path.is_dir():
        return _folder(path, name, built)
    if built:
        raise BadBundle(f"a server: expected a folder, got {path}")
    if path.suffix == ".py":
        raise _of_code(path)
    if not is_onnx(path.name):
        advice = by_suffix(path.name)
        raise BadBundle(
            f"expected a folder with {MANIFEST_FILE} or an .onnx file, got {path}"
            + (f"; {advice}" if advice else "")
        )
    model = check_path(path.name)
    paths = [model, *_external(path.parent, model)]
    chosen = name or name_from_file(path.name)
    return Collected(chosen, name is None, path.parent, _bundle(path.parent, paths), model=model)


def _of_code(path: Path) -> BadBundle:
    """Return the error for a file of Python code, which goes along with its folder only."""
    error = BadBundle(
        f"expected a folder with {MANIFEST_FILE} or an .onnx file, got {path}; code is deployed"
        f" with its folder, where {HANDLER_FILE} defines predict"
    )
    if (path.parent / HANDLER_FILE).is_file():
        error.add_note(command("fnctl", "deploy", str(path.parent), "--trust"))
    return error


def collect_model(root: Path, manifest: str, name: str, *, is_derived: bool) -> Collected:
    """Collect the files of a model in `root` whose function.toml is the text `manifest`: the model
    and its weights. Raises BadBundle or BadManifest."""
    model = parse_manifest(manifest, files_in(root)).model
    paths = {check_path(model), *_external(root, model)}
    return Collected(name, is_derived, root, _bundle(root, paths), manifest=manifest, model=model)


def open_file(root: Path, path: str) -> BinaryIO:
    """Open a bundle's file for reading; links are followed. Raises BadBundle unless it is a regular
    file where `real_path` allows one."""
    real = real_path(root, path)
    try:
        # O_NONBLOCK: opening a pipe would block until it has a writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.fdopen(os.open(real, flags), "rb")
    except OSError as error:
        raise BadBundle(f"{path!r} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise BadBundle(f"{path!r} is not a regular file")
    return file


def files_in(root: Path) -> list[str]:
    """Return the paths of all files of the folder but those that .fnignore leaves out.

    Raises BadBundle.
    """
    has_rules = (root / ignoring.IGNORE_FILE).is_file()
    text = _text(root, ignoring.IGNORE_FILE, ignoring.IGNORE_MAX) if has_rules else ""
    return sorted(ignoring.scan(root, ignoring.parse(text)))


def _folder(root: Path, name: str | None, built: str) -> Collected:
    has_manifest = (root / MANIFEST_FILE).is_file()
    if not has_manifest and not built:
        models = sorted(each for each in root.iterdir() if is_onnx(each.name))
        if models or not (root / HANDLER_FILE).is_file():
            raise _of_folder(root, models)
        built = OF_HANDLER
    text = _text(root, MANIFEST_FILE) if has_manifest else built
    there = files_in(root)
    manifest = parse_manifest(text, there)
    named = {*([MANIFEST_FILE] if has_manifest else []), *manifest.files}
    if is_onnx(manifest.model):
        named.update(_external(root, manifest.model))
    # Only a program can read files that nothing names; beside a model they may be many GiB.
    is_program = manifest.server is not None or manifest.handler
    unnamed = frozenset(there) - named if is_program else frozenset()
    chosen = name or manifest.name
    derived = chosen or name_from_file(manifest.model or f"{root.resolve().name}.onnx")
    return Collected(
        derived,
        not chosen,
        root,
        _bundle(root, named | unnamed, may_be_empty=manifest.server is not None),
        manifest=text,
        model=manifest.model,
        sample=manifest.sample,
        is_server=manifest.server is not None,
        unnamed=unnamed,
    )


def _of_folder(root: Path, models: list[Path]) -> BadBundle:
    """Return the error for a folder that does not say what it is."""
    error = BadBundle(f"expected {MANIFEST_FILE} in {root}, got none")
    if models:
        error.add_note(command("fnctl", "deploy", str(models[0])))
    else:
        line = command("fnctl", "deploy", str(root))
        error.add_note(
            f"for an HTTP server: {line} --command '...' --trust; for Python code: {HANDLER_FILE},"
            " as fnctl init writes one"
        )
    return error


def _external(root: Path, model: str) -> tuple[str, ...]:
    """Return the bundle paths of the model's external data files."""
    with open_file(root, model):
        pass
    try:
        found = OnnxReader().read(root / model)
        check_original(model, found)
        return external_paths(model, found.locations)
    except ValueError as error:
        raise BadBundle(not_onnx(repr(model), error, root / model)) from error


def _text(root: Path, path: str, max_bytes: int = 4 * TOML_MAX) -> str:
    with open_file(root, path) as file:
        data = file.read(max_bytes + 1)
    if path == ignoring.IGNORE_FILE and len(data) > max_bytes:
        raise BadBundle(f"{path!r}: expected at most {max_bytes} bytes, got more")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadBundle(
            f"{path!r}: expected UTF-8 text, got other bytes at {error.start}"
        ) from None


def _bundle(root: Path, paths: Collection[str], *, may_be_empty: bool = False) -> Bundle:
    if len(paths) > FILES_MAX:  # before they are read: a virtual environment has thousands
        raise BadBundle(f"expected at most {FILES_MAX} files in {root}, got {len(paths)}")
    files = []
    for path in sorted(paths):
        digest, count = hashlib.sha256(), 0
        with open_file(root, check_path(path)) as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                count += len(chunk)
        files.append(BundleFile(path, count, digest.hexdigest()))
    return make_bundle(files, may_be_empty=may_be_empty)
