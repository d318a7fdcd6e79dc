"""Verdicts on candidates beside those of `benchmarks.verdicts`' judge, which knows nothing of them.

`python -m benchmarks.verdicts` tries all its models with 2,000 inputs; here are those of the kinds
that a cosine does not see, with fewer.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.verdicts.judge import Judged, judged
from benchmarks.verdicts.models import cases
from benchmarks.verdicts.verdict import verdict
from runtime_image.contract.precision import CandidateName

CASES = {case.name: case for case in cases()}


@pytest.mark.parametrize(
    ("case", "candidate", "accepted", "reason"),
    [
        ("offset", "int8", False, "output y: expected an error of at most 2 % of the column's"),
        ("offset", "int8-dynamic", True, ""),
        ("mixed scales", "int8", False, "output y column 2: expected"),
        ("mixed scales", "fp16", True, ""),
        ("constants", "int8", False, "of the magnitude of the constant column"),
        ("large weights", "fp16", False, "constant k has the size 1e+05, FP16 ends at 65504"),
        ("classes", "int8", True, ""),
        ("map", "int8", False, "output y channel 1: expected"),
    ],
)
def test_no_wrong_candidate_is_accepted(
    tmp_path: Path, case: str, candidate: CandidateName, accepted: bool, reason: str
) -> None:
    """Nor is a right one refused, and the reason names the column."""
    found = verdict(CASES[case], candidate, tmp_path, fresh=300)

    assert found.is_wrong is not accepted
    assert found.accepted is accepted
    assert reason in found.why_not


def test_the_judge_tells_right_from_wrong() -> None:
    """Each of its reasons alone is one."""
    wanted = np.column_stack([np.linspace(-1, 1, 100), np.full(100, 5.0)])
    spread = wanted[:, 0].std()
    for right, wrong in ((0.019 * spread, 0.021 * spread), (0.0, np.nan)):
        assert not judged(wanted, wanted + np.array([right, 0.0]), has_labels=True).is_wrong
        assert judged(wanted, wanted + np.array([wrong, 0.0]), has_labels=True).is_wrong
    assert not judged(wanted, wanted + np.array([0.0, 0.004]), has_labels=False).is_wrong
    assert judged(wanted, wanted + np.array([0.0, 0.006]), has_labels=False).is_wrong
    assert Judged(0.0, 0.0, 0.011).is_wrong
    relabelled = judged(
        wanted - np.array([0, 5]), (wanted - np.array([0, 5]))[::-1], has_labels=True
    ).relabelled
    assert relabelled == 1.0
