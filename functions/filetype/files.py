"""Training files: those present on any Debian machine with Python and Node.

Only the weights are kept. The files depend on the installed packages, so another machine trains a
slightly different model.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

KINDS = (
    "c",
    "elf",
    "gzip",
    "html",
    "javascript",
    "json",
    "markdown",
    "png",
    "python",
    "shell",
    "yaml",
)
SUFFIXES = {
    ".c": "c",
    ".cpp": "c",
    ".gz": "gzip",
    ".h": "c",
    ".hpp": "c",
    ".html": "html",
    ".js": "javascript",
    ".json": "json",
    ".md": "markdown",
    ".mjs": "javascript",
    ".o": "elf",
    ".png": "png",
    ".postinst": "shell",
    ".postrm": "shell",
    ".preinst": "shell",
    ".prerm": "shell",
    ".py": "python",
    ".sh": "shell",
    ".so": "elf",
    ".yaml": "yaml",
    ".yml": "yaml",
}
BINARY = ("elf", "gzip", "png")
"""Kinds recognised by the start of a file: a piece from the middle is not characteristic."""
ROOTS = ("/usr", "/etc", "/var/lib/dpkg/info", sys.base_prefix)
SIZE = 512
"""Bytes that the model reads, as in function.toml."""
PER_KIND = 1500
PER_FOLDER = 40
"""Max files of one kind from folders of the same name, so that no package dominates."""
HELD_OUT_SHARE = 0.25
_READ = 64 * 1024
_SEED = 0

Bytes = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sample:
    """The first 64 KiB of a file. `folder`: its folder's name without digits."""

    kind: str
    folder: str
    content: bytes

    @property
    def is_held_out(self) -> bool:
        """Whether the file is excluded from training. Depends on the folder's name, so that copies
        of a package in other places are treated alike."""
        digest = hashlib.sha256(self.folder.encode()).digest()
        return digest[0] < 256 * HELD_OUT_SHARE


def find(roots: tuple[str, ...] = ROOTS) -> list[Sample]:
    """Return at most `PER_KIND` files per kind, all with different starts, in a fixed order."""
    lot = random.Random(_SEED)  # noqa: S311 - a choice of files, not a secret
    paths: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(_walk(roots)):
        if kind := _kind(path):
            paths[kind].append(path)
    found: list[Sample] = []
    for kind in KINDS:
        lot.shuffle(paths[kind])
        found += _distinct(kind, paths[kind])
    return found


def derived(found: list[Sample]) -> list[Sample]:
    """Return files derived from others for rare kinds: YAML from JSON, gzip from all kinds."""
    lot = random.Random(_SEED)  # noqa: S311 - a choice of files, not a secret
    return _rewritten(found, lot) + _compressed(found, lot)


def piece(content: bytes) -> Bytes:
    """Return the first `SIZE` bytes as a row, padded with zeros, as replicas pad requests."""
    return np.frombuffer(content[:SIZE].ljust(SIZE, b"\0"), np.uint8)


def _walk(roots: tuple[str, ...]) -> Iterator[Path]:
    for root in roots:
        for folder, _, names in os.walk(root):
            yield from (Path(folder, name) for name in names)


def _kind(path: Path) -> str:
    """Return a file's kind by its suffix, or by its first bytes without one; "" for neither."""
    if path.is_symlink() or not path.is_file():
        return ""
    if path.suffix:
        return SUFFIXES.get(path.suffix, "")
    head = _read(path, 64)
    if head.startswith(b"\x7fELF"):
        return "elf"
    line = head.split(b"\n")[0]
    if line.startswith(b"#!"):
        return "python" if b"python" in line else "shell" if line.endswith(b"sh") else ""
    return ""


def _distinct(kind: str, paths: list[Path]) -> Iterator[Sample]:
    seen: set[bytes] = set()
    folders: Counter[str] = Counter()
    for path in paths:
        folder = re.sub(r"[\d.]+", "", path.parent.name)
        if len(seen) == PER_KIND:
            return
        content = _read(path, _READ)
        head = content[:SIZE]
        if folders[folder] == PER_FOLDER or head in seen or len(content.strip()) < 16:
            continue
        seen.add(head)
        folders[folder] += 1
        yield Sample(kind, folder, content)


def _rewritten(found: list[Sample], lot: random.Random) -> list[Sample]:
    """Return JSON files as YAML, because most YAML on such a machine comes from one package."""
    import yaml  # type: ignore[import-untyped]  # only training needs it

    made = []
    for sample in found:
        if sample.kind != "json" or len(sample.content) == _READ:
            continue
        try:
            value = json.loads(sample.content)
        except ValueError:
            continue
        if isinstance(value, dict | list) and len(value) > 1:
            text = yaml.safe_dump(
                value,
                indent=lot.choice((2, 4)),
                sort_keys=lot.random() < 0.5,
                explicit_start=lot.random() < 0.3,
                allow_unicode=True,
            )
            made.append(Sample("yaml", sample.folder, text.encode()))
    lot.shuffle(made)
    return made[: PER_KIND // 2]


def _compressed(found: list[Sample], lot: random.Random) -> list[Sample]:
    """Return files compressed with gzip's defaults: packages omit names and times."""
    made = []
    for sample in lot.sample(found, min(len(found), PER_KIND // 5)):
        target = io.BytesIO()
        name = f"{sample.folder}.{sample.kind}"
        time = lot.randrange(2**31)
        with gzip.GzipFile(name, "wb", lot.choice((1, 6, 9)), target, time) as file:
            file.write(sample.content)
        made.append(Sample("gzip", sample.folder, target.getvalue()))
    return made


def _read(path: Path, count: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError:
        return b""
