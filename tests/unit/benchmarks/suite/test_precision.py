"""Rounds of the benchmark of candidates."""

from __future__ import annotations

import tomllib

from benchmarks.suite.precision import optimise
from registry.manifest import parse_manifest


def test_every_round_is_measured() -> None:
    """The settings of two rounds are different ones for the server, so that the second has a trial
    of its own; the difference decides nothing."""
    texts = [optimise(0.01, number) for number in range(3)]
    files = ["model.onnx", "samples.npz"]
    found = [parse_manifest(f'schema = 1\nname = "f"\n{text}', files).optimise for text in texts]

    assert len(set(found)) == 3
    assert [round(tomllib.loads(text)["optimise"]["tolerance"], 6) for text in texts] == [0.01] * 3
