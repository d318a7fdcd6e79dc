"""The committed models of `tests/data/row_models`, and rows to run them with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime as ort

from tests.support.row_models import evidence
from tests.support.row_models.evidence import DTYPES, Feed

FOLDER: Final = Path(__file__).parents[2] / "data" / "row_models"
ROWS: Final = 5
PLACES: Final = (0, 2, ROWS - 1)
STEPS: Final = 7
"""Size of every dynamic axis except the batch."""
WORDS: Final = ("the red fox", "a whale swims", "", "red and blue and red and blue", "\u00e9")
EXTREMES: Final = (1e5, 3e38, -3e38, float("nan"), float("inf"), float("-inf"), 0.0, 1e-40)


@dataclass(frozen=True, slots=True)
class Honest:
    """One line of the manifest: see `tests/data/row_models/make.py`."""

    name: str
    family: str
    exporter: str
    independent: bool
    opset: int
    bytes: int
    why: str = ""
    unjudged: str = ""
    below: Mapping[str, int] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.onnx"

    def model(self) -> onnx.ModelProto:
        return onnx.load(self.path)


def manifest() -> tuple[Honest, ...]:
    """Return all committed models."""
    return tuple(Honest(**line) for line in json.loads((FOLDER / "manifest.json").read_text()))


def usual(honest: Honest, running: ort.InferenceSession, rows: int) -> Feed:
    """Return random rows as callers send them, and a final row of zeros, as in padding."""
    random = np.random.default_rng(11)
    feed: Feed = {}
    for wanted in running.get_inputs():
        dtype, shape = DTYPES[wanted.type], shape_of(wanted, rows)
        if dtype is np.object_:
            feed[wanted.name] = random.choice(np.array(WORDS, np.object_), size=shape)
        elif np.issubdtype(dtype, np.floating):
            feed[wanted.name] = random.normal(size=shape).astype(dtype)
        else:
            feed[wanted.name] = random.integers(0, honest.below[wanted.name], shape).astype(dtype)
        if dtype is not np.object_:
            feed[wanted.name][-1] = 0
    return feed


def shape_of(wanted: Any, rows: int) -> list[int]:
    return [rows, *(size if isinstance(size, int) and size else STEPS for size in wanted.shape[1:])]


def neighbours(honest: Honest, feed: Feed, place: int) -> Iterator[Feed]:
    """Yield `feed` with one extreme value after another in all rows except `place`."""
    for at, extreme in enumerate(EXTREMES):
        other: Feed = {}
        for name, values in feed.items():
            if np.issubdtype(values.dtype, np.floating):
                with np.errstate(over="ignore"):
                    filled = np.full_like(values, extreme)
            elif values.dtype == np.object_:
                filled = np.full_like(values, WORDS[at % len(WORDS)])
            else:
                filled = np.full_like(values, (0, honest.below[name] - 1)[at % 2])
            filled[place] = values[place]
            other[name] = filled
        yield other


def changes(honest: Honest) -> list[int]:
    """Return the positions at which a row's answer changed with its neighbours, bit for bit."""
    running = evidence.session(honest.model())
    feed = usual(honest, running, ROWS)
    expected = evidence.answers(running, feed, ROWS)
    found = []
    for place in PLACES:
        for other in neighbours(honest, feed, place):
            try:
                got = evidence.answers(running, other, ROWS)
            except evidence.FAILURES:  # the model rejects this extreme
                continue
            if isinstance(got, str) or got[place] != expected[place]:
                found.append(place)
    return found
