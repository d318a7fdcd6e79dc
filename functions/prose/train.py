"""Trains `weights.bin` on `text.txt`: a recurrent network that guesses the next character.

    python functions/prose/train.py             writes weights.bin, prints bits per character
    python functions/prose/train.py --steps 10  the same with fewer steps, for a try

Source of the data: 1,851 sentences of fngate's own documents of November 2026. A GRU (Cho 2014)
with the reset gate behind the matrix, as in cuDNN, trained by Adam through time.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import sys
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # ships no types

FOLDER: Final = Path(__file__).parent
TEXT: Final = FOLDER / "text.txt"
WEIGHTS: Final = FOLDER / "weights.bin"
HIDDEN: Final = 176
STEPS: Final = 3000
ROWS: Final = 24
"""Sequences that are trained at once."""
WINDOW: Final = 72
"""Characters after which a gradient is taken."""
RATE: Final = 4e-3
DROPPED: Final = 0.2
"""Share of the state that the output does not see in a step of training."""
HELD_OUT: Final = 20
"""One sentence in this many is never trained on."""
CLIP: Final = 1.0
SEED: Final = 0

Array = npt.NDArray[np.float32]
Weights = dict[str, Array]
"""`input` [V, 3H] and `state` [3H, H] with `bias` [3H] and `state_bias` [H] for update, reset and
candidate; `output` [V, H] with `output_bias` [V]."""


def sentences() -> tuple[list[str], list[str]]:
    """Return the sentences to train on and those held out, each with its line end."""
    lines = TEXT.read_text("ascii").splitlines(keepends=True)
    random.Random(SEED).shuffle(lines)  # noqa: S311 - no secret, and reproducible
    count = len(lines) // HELD_OUT
    return lines[count:], lines[:count]


def characters() -> str:
    """Return the characters of the text, sorted; the place of one is its number."""
    return "".join(sorted(set(TEXT.read_text("ascii"))))


def begin(size: int, seed: int) -> Weights:
    """Return weights to begin with, for `size` characters."""
    made = np.random.default_rng(seed)

    def spread(*shape: int) -> Array:
        return made.uniform(-1, 1, shape).astype(np.float32) / np.float32(HIDDEN**0.5)

    return {
        "input": spread(size, 3 * HIDDEN),
        "state": spread(3 * HIDDEN, HIDDEN),
        "bias": np.zeros(3 * HIDDEN, np.float32),
        "state_bias": np.zeros(HIDDEN, np.float32),
        "output": spread(size, HIDDEN),
        "output_bias": np.zeros(size, np.float32),
    }


def sigmoid(values: Array) -> Array:
    """Return 1 / (1 + e^-x)."""
    return 1 / (1 + np.exp(-values))


def step(weights: Weights, numbers: npt.NDArray[np.int64], state: Array) -> tuple[Array, ...]:
    """Return the next state [N, H] after characters [N], and what the gradient needs of it."""
    own = weights["input"][numbers] + weights["bias"]
    other = state @ weights["state"].T
    update = sigmoid(own[:, :HIDDEN] + other[:, :HIDDEN])
    reset = sigmoid(own[:, HIDDEN : 2 * HIDDEN] + other[:, HIDDEN : 2 * HIDDEN])
    kept = other[:, 2 * HIDDEN :] + weights["state_bias"]
    candidate = np.tanh(own[:, 2 * HIDDEN :] + reset * kept)
    return candidate + update * (state - candidate), update, reset, kept, candidate


def guesses(weights: Weights, states: Array) -> Array:
    """Return the probabilities of the next character after states [..., H]."""
    scores = states @ weights["output"].T + weights["output_bias"]
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(scores / scores.sum(axis=-1, keepdims=True), np.float32)


def gradient(
    weights: Weights,
    window: npt.NDArray[np.int64],
    state: Array,
    seen: Array,
) -> tuple[Weights, Array, float]:
    """Return the gradient of a window [WINDOW + 1, ROWS], the last state, and the mean loss.

    `seen` [WINDOW, ROWS, H] is what the output sees of the state: 0, or the factor instead.
    """
    states, parts = [state], []
    for numbers in window[:-1]:
        state, *part = step(weights, numbers, state)
        states.append(state)
        parts.append(part)
    shown = np.stack(states[1:]) * seen
    wrong = guesses(weights, shown)
    taken = np.take_along_axis(wrong, window[1:, :, None], axis=2)
    loss = float(-np.log(np.maximum(taken, 1e-9)).mean())
    np.put_along_axis(wrong, window[1:, :, None], taken - 1, axis=2)
    wrong /= window[1:].size
    found = {name: np.zeros_like(one) for name, one in weights.items()}
    found["output"] = np.einsum("trv,trh->vh", wrong, shown, optimize=True)
    found["output_bias"] = wrong.sum(axis=(0, 1))
    outer = (wrong @ weights["output"]) * seen
    later = np.zeros_like(state)
    for at in range(len(parts) - 1, -1, -1):
        update, reset, kept, candidate = parts[at]
        total = outer[at] + later
        by_candidate = total * (1 - update) * (1 - candidate**2)
        by_reset = by_candidate * kept * reset * (1 - reset)
        by_update = total * (states[at] - candidate) * update * (1 - update)
        own = np.concatenate([by_update, by_reset, by_candidate], axis=1)
        other = np.concatenate([by_update, by_reset, by_candidate * reset], axis=1)
        np.add.at(found["input"], window[at], own)
        found["bias"] += own.sum(axis=0)
        found["state_bias"] += other[:, 2 * HIDDEN :].sum(axis=0)
        found["state"] += other.T @ states[at]
        later = total * update + other @ weights["state"]
    return found, states[-1], loss


def train(steps: int = STEPS, seed: int = SEED) -> Weights:
    """Return trained weights. The same machine and library versions give the same ones."""
    lines, held_out = sentences()
    numbers = {one: number for number, one in enumerate(characters())}
    weights = begin(len(numbers), seed)
    means, squares = ({k: np.zeros_like(w) for k, w in weights.items()} for _ in range(2))
    made = np.random.default_rng(seed)
    order = random.Random(seed)  # noqa: S311 - no secret, and reproducible
    state = np.zeros((ROWS, HIDDEN), np.float32)
    queue = np.zeros((0, ROWS), np.int64)
    # One thread, because the order of parallel sums would change the weights.
    with threadpool_limits(limits=1):
        for number in range(1, steps + 1):
            if len(queue) <= WINDOW:
                order.shuffle(lines)
                text = np.array([numbers[one] for one in "".join(lines)], np.int64)
                rows = text[: len(text) // ROWS * ROWS].reshape(ROWS, -1).T
                queue = np.concatenate([queue, rows])
            window, queue = queue[: WINDOW + 1], queue[WINDOW:]
            seen = (made.random((WINDOW, ROWS, HIDDEN), np.float32) >= DROPPED) / (1 - DROPPED)
            found, state, loss = gradient(weights, window, state, seen.astype(np.float32))
            norm = float(sum((one**2).sum() for one in found.values())) ** 0.5
            rate = RATE * min(1.0, number / 100) * (1 - 0.97 * number / steps)
            for name, one in found.items():
                one *= min(1.0, CLIP / norm)
                means[name] += 0.1 * (one - means[name])
                squares[name] += 0.005 * (one**2 - squares[name])
                mean = means[name] / (1 - 0.9**number)
                square = squares[name] / (1 - 0.995**number)
                weights[name] -= np.float32(rate) * mean / (np.sqrt(square) + np.float32(1e-8))
            if number % 250 == 0 or number == steps:
                told = (
                    f"step {number}: {loss / np.log(2):.2f}, held out {bits(weights, held_out):.2f}"
                )
                sys.stderr.write(f"{told} bits per character\n")
    return weights


def bits(weights: Weights, lines: list[str]) -> float:
    """Return the bits per character of sentences, each after a line end."""
    numbers = {one: number for number, one in enumerate(characters())}
    total = count = 0.0
    for line in lines:
        state = np.zeros((1, HIDDEN), np.float32)
        for before, after in zip("\n" + line, line, strict=False):
            state = step(weights, np.array([numbers[before]]), state)[0]
            total -= float(np.log2(guesses(weights, state)[0, numbers[after]]))
            count += 1
    return total / count


def write(weights: Weights, path: Path) -> None:
    """Write weights as bytes: a line of JSON about them, a scale for each row, the rows."""
    head: dict[str, object] = {"characters": characters(), "hidden": HIDDEN}
    parts = []
    for name, one in weights.items():
        rows = one.reshape(len(one), -1) if one.ndim > 1 else one.reshape(1, -1)
        scales = np.maximum(np.abs(rows).max(axis=1), 1e-8) / 127
        parts += [scales.astype("<f4").tobytes()]
        parts += [np.rint(rows / scales[:, None]).astype(np.int8).tobytes()]
        head[name] = list(rows.shape)
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<I", len(text)) + text + b"".join(parts))


def read(path: Path) -> Weights:
    """Return the weights of a file."""
    data = path.read_bytes()
    (size,) = struct.unpack_from("<I", data)
    head = json.loads(data[4 : 4 + size])
    at, found = 4 + size, {}
    for name in begin(1, SEED):
        rows, columns = head[name]
        scales = np.frombuffer(data, "<f4", rows, at)
        values = np.frombuffer(data, np.int8, rows * columns, at + 4 * rows)
        at += 4 * rows + rows * columns
        one = values.reshape(rows, columns).astype(np.float32) * scales[:, None]
        found[name] = one[0] if rows == 1 else one
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--output", type=Path, default=WEIGHTS)
    given = parser.parse_args()
    write(train(given.steps), given.output)
    sys.stdout.write(f"{bits(read(given.output), sentences()[1]):.3f} bits per character\n")
