"""The rule of log probabilities against a small transformer, sound and damaged.

Rounding of other kernels is noise of 2^-9 on every product, as of bfloat16.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from runtime_image.contract.samples import Answer, GoldenSample, SampleRequest
from runtime_image.server.golden.rules import differs, learn

LAYERS, WIDTH, WORDS, PROMPT = 4, 64, 256, 64
NOISE = 2.0**-9
SHARPNESS = 0.12
"""Of the logits: log probabilities of -3 to -6, as those of a text."""
Weights = list[dict[str, Any]]


class Model:
    """A decoder with one head, random weights and tied embeddings."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.embedding = random.normal(size=(WORDS, WIDTH))
        scale = 1.5 / WIDTH**0.5
        self.layers: Weights = [
            {name: scale * random.normal(size=(WIDTH, WIDTH)) for name in ("q", "k", "v", "o", "m")}
            for _ in range(LAYERS)
        ]
        self.prompt = list(random.integers(WORDS, size=PROMPT))
        self.stale: Any = None
        """Values of another prompt, which stand in a block of the cache; None for none."""

    def logprobs(self, tokens: list[int], random: Any) -> Any:
        """Return the log probabilities at each place."""
        x = self.embedding[tokens] / WIDTH**0.5
        mask = np.triu(np.full((len(tokens), len(tokens)), -1e9), 1)
        for layer in self.layers:
            h = _normal(x)
            q, k, v = (_product(h, layer[name], random) for name in "qkv")
            if self.stale is not None:
                v[:16] = self.stale
            scores = q @ k.T / WIDTH**0.5 + mask
            weights = np.exp(scores - scores.max(1, keepdims=True))
            x = x + _product(weights / weights.sum(1, keepdims=True) @ v, layer["o"], random)
            x = x + np.tanh(_product(_normal(x), layer["m"], random))
        logits = _product(_normal(x), self.embedding.T * SHARPNESS, random)
        top = logits.max(1, keepdims=True)
        return logits - top - np.log(np.exp(logits - top).sum(1, keepdims=True))

    def answer(self, seed: int) -> Answer:
        """Return what a server says of the prompt and of four tokens."""
        random, tokens = np.random.default_rng(seed), [int(one) for one in self.prompt]
        alternatives = []
        for _ in range(4):
            last = self.logprobs(tokens, random)[-1]
            best = np.argsort(last)[::-1][:5]
            alternatives.append({str(one): float(last[one]) for one in best})
            tokens.append(int(best[0]))
        logprobs = self.logprobs(tokens, random)
        prompt = tuple(float(logprobs[i, tokens[i + 1]]) for i in range(PROMPT - 1))
        names = tuple(next(iter(tops)) for tops in alternatives)
        chosen = tuple(next(iter(tops.values())) for tops in alternatives)
        return Answer(200, "", "", prompt, names, chosen, alternatives=tuple(alternatives))


def _normal(x: Any) -> Any:
    return x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6)


def _product(a: Any, b: Any, random: Any) -> Any:
    made = a @ b
    return made * (1 + NOISE * random.uniform(-1, 1, size=made.shape))


@functools.cache
def learnt(seed: int) -> GoldenSample:
    """Return the golden sample of a sound model's trial, which asks alone."""
    answers = [Model(seed).answer(one) for one in range(3)]
    return learn(SampleRequest(), answers, [1.0] * 3)


def zero_matrix(model: Model) -> None:
    """One matrix is empty."""
    model.layers[1]["v"][:] = 0


def random_matrix(model: Model) -> None:
    """One matrix belongs to something else."""
    model.layers[2]["o"][:] = np.random.default_rng(9).normal(size=(WIDTH, WIDTH)) / WIDTH**0.5


def zero_layer(model: Model) -> None:
    """One layer is empty."""
    for one in model.layers[1].values():
        one[:] = 0


def zero_half(model: Model) -> None:
    """Half of one matrix is empty."""
    model.layers[0]["m"][: WIDTH // 2] = 0


def large_element(model: Model) -> None:
    """One bit of an exponent has flipped."""
    model.layers[3]["m"][5, 7] = 1e4


def stale_block(model: Model) -> None:
    """A block of the cache belongs to another prompt."""
    model.stale = np.random.default_rng(4).normal(size=(16, WIDTH))


@pytest.mark.parametrize("seed", range(6))
def test_other_rounding_is_right(seed: int) -> None:
    """No false alarm, whether or not tokens as good as each other change places."""
    assert differs(learnt(seed), Model(seed).answer(100 + seed)) == ""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "damage",
    [zero_matrix, random_matrix, zero_layer, zero_half, large_element, stale_block],
)
def test_damage_is_wrong(damage: Callable[[Model], None], seed: int) -> None:
    """Weights that a wake has not brought back, and a cache that it has kept."""
    model = Model(seed)
    damage(model)

    assert "log probabilities" in differs(learnt(seed), model.answer(200 + seed))
