"""Writes `held_out.npz`, the project's own files with which the tests check the model:

    python -m functions.filetype.held_out

They are this project's files, the small programs and documents in `written/` (typed for this test),
and output of gcc, gzip, Pillow, json and pydoc. No third-party file is among them, and none was in
the training data. Needs gcc and pillow.
"""

from __future__ import annotations

import gzip
import importlib
import io
import json
import pydoc
import random
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from functions.filetype.files import KINDS, SIZE, SUFFIXES, piece
from functions.filetype.train import FOLDER, HELD_OUT

ROOT = FOLDER.parent.parent
PRODUCT = ("registry", "runtime_image", "pool_manager", "gateway", "admin")
PER_KIND = 24
_SEED = 0
_COMPILE_S = 60
_BUILDS = (
    ("ring.c", "-c"),
    ("ring.c", "-c", "-O2", "-g"),
    ("ring.c", "-shared", "-fPIC"),
    ("ring.c", "-shared", "-fPIC", "-O3", "-s"),
    ("sieve.c",),
    ("sieve.c", "-O2", "-s"),
    ("sieve.c", "-static"),
    ("sieve.c", "-no-pie"),
    ("sieve.c", "-c", "-flto"),
    ("words.cpp", "-std=c++20", "-O2"),
    ("words.cpp", "-std=c++20", "-c"),
    ("words.cpp", "-std=c++20", "-g", "-static-libstdc++"),
)
"""Source file in `written/`, and compiler options."""


def collect() -> list[tuple[str, bytes]]:
    """Return kind and first `SIZE` bytes of at most `PER_KIND` files per kind, in a fixed order."""
    lot = random.Random(_SEED)  # noqa: S311 - a choice of files, not a secret
    found: dict[str, dict[bytes, None]] = {kind: {} for kind in KINDS}
    for kind, content in (*_texts(), *_json(), *_html(), *_elf(), *_gzip(lot), *_png(lot)):
        found[kind][content[:SIZE]] = None
    chosen = []
    for kind, contents in found.items():
        several = list(contents)
        lot.shuffle(several)
        chosen += [(kind, content) for content in several[:PER_KIND]]
    return chosen


def _texts() -> Iterator[tuple[str, bytes]]:
    """Yield this project's source and documents, and the files in `written/`."""
    yield from (("shell", (ROOT / path).read_bytes()) for path in (".ci/run", "functions/serve.sh"))
    for top in PRODUCT:
        for path in sorted((ROOT / top).rglob("*.py")):
            if path.stat().st_size > SIZE:
                yield "python", path.read_bytes()
    for path in sorted([*ROOT.glob("*.md"), *FOLDER.glob("written/*")]):
        for content in _pieces(path.read_bytes()):
            yield SUFFIXES[path.suffix], content


def _pieces(content: bytes) -> Iterator[bytes]:
    """Yield the whole content, and its rest after line ends about half a `SIZE` apart."""
    yield content
    begin = 0
    while len(content) - begin >= SIZE:
        begin = content.index(b"\n", begin + SIZE // 2) + 1
        yield content[begin:]


def _json() -> Iterator[tuple[str, bytes]]:
    """Yield tables of this project's TOML files as JSON with different indents."""
    for path in sorted([ROOT / "pyproject.toml", *ROOT.glob("functions/*/function.toml")]):
        tables = tomllib.loads(path.read_text())
        tool = tables.pop("tool", {})
        for name, table in {path.stem: tables, **tool}.items():
            indent = (None, 2, 4)[len(name) % 3]
            yield "json", json.dumps(table, indent=indent).encode()


def _html() -> Iterator[tuple[str, bytes]]:
    """Yield pydoc's pages of modules of this project, each from its start and from its middle."""
    for name in (
        "registry.model.revisions",
        "registry.names",
        "gateway.data_links",
        "runtime_image.codecs.oip",
    ):
        page = pydoc.HTMLDoc().docmodule(importlib.import_module(name)).encode()
        yield "html", page
        yield "html", page[page.index(b"\n", len(page) // 2) + 1 :]


def _elf() -> Iterator[tuple[str, bytes]]:
    """Yield objects, programs and libraries."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "built")
        for source, *options in _BUILDS:
            compiler = "g++" if source.endswith(".cpp") else "gcc"
            command = [compiler, str(FOLDER / "written" / source), *options, "-o", str(target)]
            subprocess.run(command, check=True, timeout=_COMPILE_S)
            yield "elf", target.read_bytes()


def _gzip(lot: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield this project's files, compressed at different levels, with and without a name."""
    paths = sorted([*ROOT.glob("*.md"), *(ROOT / "registry").glob("*.py"), *ROOT.glob("*.t*")])
    for path in paths:
        target = io.BytesIO()
        name = lot.choice(("", path.name))
        time = lot.choice((0, lot.randrange(10**9, 2 * 10**9)))
        with gzip.GzipFile(name, "wb", lot.randint(1, 9), target, time) as file:
            file.write(path.read_bytes())
        yield "gzip", target.getvalue()


def _png(lot: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield drawings of every mode, and the samples of the digits function."""
    yield from (("png", path.read_bytes()) for path in sorted(ROOT.glob("functions/digits/*.png")))
    for index in range(PER_KIND):
        mode = ("1", "L", "P", "RGB", "RGBA", "I;16")[index % 6]
        side = lot.choice((8, 16, 64, 200))
        picture: Any = Image.new("RGBA", (side, lot.choice((16, 48, 120))), "white")
        pen = ImageDraw.Draw(picture)
        for _ in range(lot.randint(1, 20)):
            corner = (lot.randrange(side), lot.randrange(16))
            colour = tuple(lot.randrange(256) for _ in range(4))
            pen.ellipse((*corner, corner[0] + 9, corner[1] + 9), fill=colour)
        target = io.BytesIO()
        picture.convert("L" if mode == "I;16" else mode).convert(mode).save(target, "PNG")
        yield "png", target.getvalue()


def main() -> None:
    """Collect and write the files, and print the number of files per kind."""
    chosen = collect()
    np.savez_compressed(
        HELD_OUT,
        data=np.stack([piece(content) for _, content in chosen]),
        sizes=np.array([len(content) for _, content in chosen], np.uint16),
        labels=np.array([KINDS.index(kind) for kind, _ in chosen], np.uint8),
    )
    counts = {kind: sum(each == kind for each, _ in chosen) for kind in KINDS}
    print(f"{HELD_OUT.name}: {HELD_OUT.stat().st_size} bytes, {counts}")


if __name__ == "__main__":
    main()
