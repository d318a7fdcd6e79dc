"""Keys of compiled files. Pure, but for the digest of a model file.

A key names everything that the files depend on. Files under one key are never opened under another:
deserialising a compiled model of other software or hardware is undefined, not an error.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from runtime_image.contract.compiled import CompilerName, ShapeRange

SCHEME: Final = 1
"""Version of the way in which this package compiles; part of every key."""
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
    """Return the sha256 of a model file and of all files beside it that its bytes name: weights in
    external data. Raises OSError."""
    digest = hashlib.sha256()
    with model.open("rb") as file:
        digest.update(hashlib.file_digest(file, "sha256").digest())
        names = _named_in(file.fileno(), model)
    for name in names:
        digest.update(b"\0" + name.encode() + b"\0")
        with (model.parent / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _named_in(descriptor: int, model: Path) -> list[str]:
    """Return paths below the model's folder whose file name occurs in the model. A name that occurs
    by chance does no harm: the same files are beside the model in every replica."""
    beside = sorted(set(_beside(str(model.parent))) - {model.name})
    if not beside or not os.fstat(descriptor).st_size:
        return []
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
        return [path for path in beside if content.find(path.rpartition("/")[2].encode()) >= 0]


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
