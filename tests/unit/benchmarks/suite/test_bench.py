"""The comparison of `fnctl bench` with another load."""

from __future__ import annotations

import pytest

from benchmarks.measuring.setting import LeftOut, Setting
from benchmarks.suite import bench


def test_the_load_is_not_compared_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without wrk, the benchmarks' own load is the generator of `fnctl bench`."""
    monkeypatch.setenv("PATH", "/none")

    with pytest.raises(LeftOut, match="compared with itself"):
        bench.measure(Setting(quick=True))
