"""Keys of compiled files. Pure, but for the digest of a model file.

A key names everything that the files depend on. Files under one key are never opened under another:
deserialising a compiled model of other software or hardware is undefined, not an error.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from runtime_image.contract.compiled import NODE, CompilerName, ShapeRange
from runtime_image.contract.errors import LoadError

SCHEME: Final = 1
"""Version of the way in which this package compiles; part of every key."""
LOCATION: Final = b"location"
"""Key of the entry in onnx.proto that names the file of external data."""
PIECE: Final = 1024 * 1024
NEAR: Final = 8192
"""Bytes of a model that are read at once, and looked at again with the next ones: an entry may lie
in both."""
DIGEST: Final = 32
"""Hexadecimal digits of the digest in a key."""


@dataclass(frozen=True, slots=True)
class Platform:
    """Software and hardware that compiled files depend on.

    `environment` is the key of ONNX Runtime and device: version, processor, and on a GPU its
    architecture and driver. `build` is ONNX Runtime's build, `compiler` the compiler's version.
    `device` is a GPU's name with its MIG profile, multiprocessors and memory, "" for the CPU.
    `options` are the compiler's.
    """

    environment: str
    build: str
    compiler: str
    device: str
    options: tuple[tuple[str, str], ...]


def timing_key(name: CompilerName, platform: Platform) -> str:
    """Return the key of a timing cache, which serves every model on the same platform."""
    return _key(name, platform, [])


def model_key(
    name: CompilerName, platform: Platform, ranges: tuple[ShapeRange, ...], model: str
) -> str:
    """Return the key of a compiled model; `model` is the digest of the model file."""
    ordered = sorted((asdict(one) for one in ranges), key=lambda one: str(one["input"]))
    return _key(name, platform, [model, ordered])


def _key(name: CompilerName, platform: Platform, rest: list[object]) -> str:
    """Return a readable beginning, for people who compare keys, and a digest of all parts."""
    parts = json.dumps([SCHEME, name, asdict(platform), *rest], sort_keys=True)
    digest = hashlib.sha256(parts.encode()).hexdigest()[:DIGEST]
    return f"{name}-{platform.compiler}/{platform.environment}/{digest}"


def model_digest(model: Path) -> str:
    """Return the sha256 of a model file and of the files beside it that it names as the location of
    external data.

    Raises OSError, and LoadError for a model with a compiled part: no compiler may run a stranger's
    code. The server refuses such a deploy; this check stands where that one has missed it.
    """
    digest = hashlib.sha256()
    own, names = _read(model, sorted(set(_beside(str(model.parent))) - {model.name}))
    digest.update(own)
    for name in names:
        with (model.parent / name).open("rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
        digest.update(b"\0" + name.encode() + b"\0" + content)
    return digest.hexdigest()


def _read(model: Path, beside: list[str]) -> tuple[bytes, list[str]]:
    """Return the digest of a model and those of the paths `beside` that it may name.

    Reads it once, in pieces that hold the interpreter lock for a moment only. A name that occurs
    near LOCATION by chance does no harm: the same files are beside the model in every replica.
    """
    digest, last = hashlib.sha256(), b""
    found: set[str] = set()
    with model.open("rb", buffering=0) as file:
        while piece := file.read(PIECE):
            digest.update(piece)
            text = last + piece
            if NODE in text:
                raise LoadError(f"it names {NODE.decode()}: the model holds a compiled part")
            if beside and LOCATION in text:
                found |= {path for path in beside if path.rpartition("/")[2].encode() in text}
            last = piece[-NEAR:]
    return digest.digest(), sorted(found)


def _beside(folder: str, inside: str = "") -> Iterator[str]:
    """Yield the paths of all regular files below a folder, except hidden ones: this product's own
    folders differ by replica."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _beside(entry.path, f"{inside}{entry.name}/")
            elif entry.is_file(follow_symlinks=False):
                yield inside + entry.name
