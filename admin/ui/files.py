"""The dashboard's files as they are served: read once, by plain names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "static"
"""Where the build puts them."""
INDEX: Final = "index.html"
FILES_MAX: Final = 64
SIZE_MAX: Final = 16 * 1024 * 1024
"""Bytes of all files together: they stay in memory."""
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
    ".map": "application/json",
}
"""Content types by suffix; a file with any other is not served."""
HASHED: Final = re.compile(r"-[A-Za-z0-9_-]{8}\.[a-z0-9]+$")
"""Names that the build makes from the content: what is behind one never changes."""
NOT_BUILT: Final = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>fngate</title></head><body>
<h1>The dashboard is not built</h1>
<p>This server runs without it. In the project's folder, <code>make ui</code> builds it (with Node
20 or newer, or with the one that it gets from PyPI); then start the server again.</p>
<p>Until then <code>fnctl ls</code>, <code>fnctl show</code> and <code>fnctl why</code> tell the
same in a terminal.</p>
</body></html>
"""


@dataclass(frozen=True, slots=True)
class File:
    """One file's bytes, what they are and how long they may be kept. `etag` is without quotes."""

    body: bytes
    content_type: str
    etag: str
    is_immutable: bool


def read_files(folder: Path = FOLDER) -> Mapping[str, File]:
    """The files right in `folder` by name; only a page that says how to build them where there is
    no index. Raises ValueError for more than FILES_MAX files or SIZE_MAX bytes."""
    if not (folder / INDEX).is_file():
        return {INDEX: make_file(INDEX, NOT_BUILT)}
    paths = sorted(path for path in folder.iterdir() if path.suffix in TYPES and path.is_file())
    size = sum(path.stat().st_size for path in paths)
    if len(paths) > FILES_MAX or size > SIZE_MAX:
        raise ValueError(
            f"{folder}: expected at most {FILES_MAX} files of {SIZE_MAX} bytes together, got"
            f" {len(paths)} of {size}"
        )
    return {path.name: make_file(path.name, path.read_bytes()) for path in paths}


def is_built(files: Mapping[str, File]) -> bool:
    """Whether `files`, as `read_files` gives them, hold a dashboard, not the page in its place."""
    return files[INDEX].body != NOT_BUILT


def make_file(name: str, body: bytes) -> File:
    """`body` as the file `name`, whose suffix is in TYPES."""
    etag = hashlib.sha256(body).hexdigest()[:32]
    return File(body, TYPES[Path(name).suffix], etag, HASHED.search(name) is not None)
