"""Tests of why replicas fail, in few words."""

from __future__ import annotations

import pytest

from pool_manager.core.events import Lost
from pool_manager.metrics import REASONS, reason_of


@pytest.mark.parametrize(
    ("lost", "reason"),
    [
        (Lost("r1", "model.onnx: not a valid model", stage="load"), "load"),
        (Lost("r1", "std::bad_alloc", stage="load"), "memory"),
        (Lost("r1", "ran out of memory and was killed by SIGKILL"), "memory"),
        (Lost("r1", "was killed by SIGKILL"), "killed"),
        (Lost("r1", "was killed by signal 99"), "killed"),
        (Lost("r1", "exited with code 3: no such module"), "exited"),
        (Lost("r1", "the standby hangs", is_its_fault=False), "hang"),
        (Lost("r1", "control link lost: did not answer 3 pings"), "hang"),
        (Lost("r1", "control link lost: closed by the other side"), "link"),
        (Lost("r1", "loading lasted too long"), "hang"),
        (Lost("r1", "it ended while the engine was away", is_its_fault=False), "engine"),
        (Lost("r1", "no such folder"), "other"),
    ],
)
def test_every_end_has_a_reason(lost: Lost, reason: str) -> None:
    """Certain knowledge decides the reason first, then the wording."""
    assert reason_of(lost) == reason
    assert reason in REASONS
