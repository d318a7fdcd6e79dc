"""Inputs with which a compiled model is compared: the owner's samples, variants, and every end of
its ranges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from runtime_image.compilers.ranges import outside
from runtime_image.contract.compiled import ShapeRange
from runtime_image.contract.model import ModelSpec
from runtime_image.contract.signature import Signature
from runtime_image.verification import proof
from runtime_image.verification.precision.samples import read
from runtime_image.verification.trial import example

VARIANTS: Final = 5
ROWS_MAX: Final = 64
"""Max samples of the owner that are compared."""

Feed = dict[str, Any]


def feeds(
    spec: ModelSpec, signature: Signature, folder: Path, ranges: tuple[ShapeRange, ...]
) -> list[Feed]:
    """Return inputs inside `ranges`, at least those at the ranges' ends.

    The first one is the manifest's sample, or zeros. Values that are neither the owner's nor zeros
    may be invalid for the model. A handler's sample is not its model's. Raises LoadError.
    """
    model = replace(spec, sample={}, inputs={}) if spec.handler else spec
    first, _ = example(signature, model, folder)
    found = [first]
    if all(value.ndim and value.size for value in first.values()):
        found += [proof.variant(signature.inputs, first, index, 0) for index in range(VARIANTS)]
    if spec.optimise is not None and spec.optimise.samples:
        found += _owners(folder / spec.optimise.samples, signature)
    found += list(_ends(first, ranges))
    return [one for one in found if outside(shapes(one), ranges) is None]


def shapes(feed: Feed) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a feed by input."""
    return {name: np.shape(value) for name, value in feed.items()}


def resized(feed: Feed, sizes: dict[str, tuple[int, ...]]) -> Feed:
    """Return a feed with these shapes, filled with the values of `feed` again and again."""
    return {
        name: np.resize(value, sizes[name]) if name in sizes else value
        for name, value in feed.items()
    }


def _owners(path: Path, signature: Signature) -> Iterator[Feed]:
    """Yield some of the bundle's samples."""
    found = read(path, signature)
    return found.feeds(found.judged[:ROWS_MAX])


def _ends(first: Feed, ranges: tuple[ShapeRange, ...]) -> Iterator[Feed]:
    """Yield a feed of random values for every end, and the first feed's values in that shape."""
    random = np.random.default_rng(0)
    for sizes in (
        {one.input: getattr(one, end) for one in ranges} for end in ("smallest", "usual", "largest")
    ):
        plain = resized(first, sizes)
        yield plain
        yield {
            name: random.normal(size=value.shape).astype(value.dtype)
            if value.dtype.kind == "f"
            else value
            for name, value in plain.items()
        }
