"""Writes on from a prompt, one character after the other: a GRU in plain Python.

It needs no packages. `train.py` makes the weights.
"""

from __future__ import annotations

import asyncio
import json
import math
import operator
import random
import struct
from array import array
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from msgspec import Meta

Row = list[float]


class Model(NamedTuple):
    """The weights, as lists: plain Python reads them fastest."""

    characters: str
    inputs: list[Row]
    """What a character adds to update, reset and candidate gate."""
    state: list[Row]
    state_bias: Row
    output: list[Row]
    output_bias: Row


def load(ctx: Any) -> Model:
    """Read the weights."""
    return read_model(ctx.folder / "weights.bin")


async def predict(
    prompt: Annotated[str, Meta(max_length=500)],
    length: Annotated[int, Meta(ge=1, le=2000)] = 200,
    temperature: Annotated[float, Meta(ge=0, le=2)] = 0.8,
    seed: int | None = None,
    *,
    ctx: Any,
) -> AsyncIterator[str]:
    """Yield `length` characters that follow the prompt.

    The higher the temperature, the odder; 0 takes the likeliest one. Equal seeds give equal texts.
    """
    model: Model = ctx.state
    chance = random.Random(seed)  # noqa: S311 - no secret
    state = [0.0] * len(model.state_bias)
    for one in "\n" + prompt:
        state = following(model, state, model.characters.find(one))
        await asyncio.sleep(0)  # between two characters others have their turn
    for _ in range(length):
        number = choose(scores(model, state), temperature, chance)
        yield model.characters[number]
        state = following(model, state, number)


def following(model: Model, state: Row, number: int) -> Row:
    """Return the state after a character; one that the model does not know, -1, is a space."""
    size = len(state)
    own = model.inputs[number if number >= 0 else model.characters.index(" ")]
    other = [dot(row, state) for row in model.state]
    after = []
    for at, before in enumerate(state):
        update = sigmoid(own[at] + other[at])
        reset = sigmoid(own[size + at] + other[size + at])
        inner = other[2 * size + at] + model.state_bias[at]
        candidate = math.tanh(own[2 * size + at] + reset * inner)
        after.append(candidate + update * (before - candidate))
    return after


def scores(model: Model, state: Row) -> Row:
    """Return how likely each character is, as logarithms without a common summand."""
    rows = zip(model.output, model.output_bias, strict=True)
    return [dot(row, state) + bias for row, bias in rows]


def choose(found: Row, temperature: float, chance: random.Random) -> int:
    """Return the number of a character, drawn by its score."""
    best = max(found)
    if temperature < 0.01:
        return found.index(best)
    weights = [math.exp((one - best) / temperature) for one in found]
    return chance.choices(range(len(found)), weights)[0]


def sigmoid(value: float) -> float:
    """Return 1 / (1 + e^-x)."""
    return 0.5 + 0.5 * math.tanh(0.5 * value)


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(map(operator.mul, left, right))


dot = getattr(math, "sumprod", _dot)
"""The sum of products; Python 3.12 has a faster one."""


def read_model(path: Path) -> Model:
    """Return the weights of a file that `train.py` wrote."""
    data = path.read_bytes()
    (size,) = struct.unpack_from("<I", data)
    head = json.loads(data[4 : 4 + size])
    at, tables = 4 + size, {}
    for name in ("input", "state", "bias", "state_bias", "output", "output_bias"):
        rows, columns = head[name]
        scales = struct.unpack_from(f"<{rows}f", data, at)
        values = array("b", data[at + 4 * rows : at + 4 * rows + rows * columns])
        at += 4 * rows + rows * columns
        tables[name] = [
            [scale * one for one in values[row * columns : (row + 1) * columns]]
            for row, scale in enumerate(scales)
        ]
    [bias], [state_bias], [output_bias] = (
        tables[name] for name in ("bias", "state_bias", "output_bias")
    )
    inputs = [list(map(operator.add, row, bias)) for row in tables["input"]]
    return Model(
        head["characters"], inputs, tables["state"], state_bias, tables["output"], output_bias
    )
