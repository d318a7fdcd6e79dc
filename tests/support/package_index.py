"""A package index on loopback, with small wheels that a test has made."""

from __future__ import annotations

import base64
import hashlib
import http.server
import io
import json
import sys
import sysconfig
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

JSON = "application/vnd.pypi.simple.v1+json"


def make_wheel(
    name: str,
    version: str = "1.0",
    *,
    files: Mapping[str, bytes] | None = None,
    requires: Iterable[str] = (),
    scripts: Mapping[str, str] | None = None,
    tag: str = "py3-none-any",
    python: str = "",
) -> tuple[str, bytes]:
    """Return file name and bytes of a wheel. Without `files` it is a module of its name."""
    plain = name.replace("-", "_")
    info = f"{plain}-{version}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    metadata += [f"Requires-Dist: {one}" for one in requires]
    metadata += [f"Requires-Python: {python}"] if python else []
    parts = dict(files if files is not None else {f"{plain}.py": f"V = {version!r}\n".encode()})
    parts[f"{info}/METADATA"] = ("\n".join(metadata) + "\n").encode()
    wheel = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n"
    parts[f"{info}/WHEEL"] = wheel.encode()
    if scripts:
        lines = "".join(f"{key} = {value}\n" for key, value in scripts.items())
        parts[f"{info}/entry_points.txt"] = f"[console_scripts]\n{lines}".encode()
    rows = [f"{path},{record_hash(data)},{len(data)}\n" for path, data in parts.items()]
    parts[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"]).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in parts.items():
            entry = zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0))
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return f"{plain}-{version}-{tag}.whl", packed.getvalue()


def record_hash(data: bytes) -> str:
    """Return a hash as a RECORD has it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"


@dataclass
class PackageIndex:
    """The files of an index, what it was asked, and how it answers."""

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Bytes by file name, by project."""
    asked: list[str] = field(default_factory=list)
    """Paths of all requests."""
    false_hashes: dict[str, str] = field(default_factory=dict)
    """Hashes that it claims, by file name."""
    says_sizes: bool = True
    before: Callable[[str], object] = field(default=lambda _: None)
    """Called with the path before each answer."""
    status: int = 200
    url: str = ""

    def add(self, name: str, version: str = "1.0", **rest: object) -> str:
        """Add a wheel; return its sha256."""
        file, data = make_wheel(name, version, **rest)  # type: ignore[arg-type]
        self.add_file(name, file, data)
        return hashlib.sha256(data).hexdigest()

    def add_installed(self, name: str) -> None:
        """Replace a project by one wheel of what is installed for this interpreter."""
        found = metadata.distribution(name)
        paths = [one for one in found.files or () if one.suffix in (".py", ".so", ".pyi")]
        files = {str(one): Path(str(one.locate())).read_bytes() for one in paths}
        python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
        platform = sysconfig.get_platform().replace("-", "_")
        file, data = make_wheel(
            name, found.version, files=files, tag=f"{python}-{python}-{platform}"
        )
        self.files[name] = {file: data}

    def add_file(self, name: str, file: str, data: bytes) -> None:
        """Add a file of a project."""
        self.files.setdefault(name, {})[file] = data

    def config(self, folder: Path) -> Path:
        """Write a uv.toml that has this index alone; return its path."""
        path = folder / "uv.toml"
        path.write_text(f'[[index]]\nurl = "{self.url}/simple"\ndefault = true\n')
        return path

    def page(self, project: str) -> bytes:
        """Return the list of a project's files."""
        rows = []
        for file, data in self.files[project].items():
            sha256 = self.false_hashes.get(file, hashlib.sha256(data).hexdigest())
            row = {"filename": file, "url": f"{self.url}/files/{project}/{file}"}
            row |= {"size": len(data)} if self.says_sizes else {}
            rows.append(row | {"hashes": {"sha256": sha256}})
        meta = {"api-version": "1.1"}
        versions = sorted({file.split("-")[1] for file in self.files[project]})
        return json.dumps(
            {"meta": meta, "name": project, "versions": versions, "files": rows}
        ).encode()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        index: PackageIndex = self.server.index  # type: ignore[attr-defined]
        index.asked.append(self.path)
        index.before(self.path)
        _, kind, *rest = self.path.split("/")
        data, status = b"", index.status
        if status == 200 and kind == "simple" and rest[0] in index.files:
            data = index.page(rest[0])
        elif status == 200 and kind == "files":
            data = index.files[rest[0]][rest[1]]
        elif status == 200:
            status = 404
        self.send_response(status)
        self.send_header("Content-Type", JSON if kind == "simple" else "application/zip")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128
    """uv opens many connections at once; one that is not accepted in time is an index away."""
    daemon_threads = True


@contextmanager
def package_index() -> Iterator[PackageIndex]:
    """Serve an index with msgspec, which has no file of its own, and whatever is added."""
    index = PackageIndex()
    server = _Server(("127.0.0.1", 0), _Handler)
    server.index = index  # type: ignore[attr-defined]
    index.url = f"http://127.0.0.1:{server.server_port}"
    index.add("msgspec", "0.22.0", files={"msgspec/__init__.py": b"SMALL = True\n"})
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
