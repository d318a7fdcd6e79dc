"""Tests of the tests that are run again alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.again import ALONE, MOST, failed_tests, verdict

BUSY = "tests/test_a.py::test_busy"
BROKEN = "tests/test_a.py::test_broken"
RARE = "tests/test_a.py::test_rare"


@pytest.mark.parametrize(
    ("failed", "reason"),
    [
        ([BUSY], ""),
        ([BUSY, BROKEN], f"{BROKEN} fails alone, too"),
        ([RARE], f"{RARE} fails alone, too"),
        ([BUSY] * MOST, ""),
        ([BUSY] * (MOST + 1), f"{MOST + 1} tests failed; at most {MOST} are run again"),
        (["tests/test_a.py"], "tests/test_a.py cannot be collected"),
        ([], "the run failed, and no test did"),
    ],
)
def test_a_run_passes_if_its_failed_tests_pass_alone(failed: list[str], reason: str) -> None:
    """Only a few tests that pass alone each time let a run pass."""
    runs: list[str] = []

    def passes(test: str) -> bool:
        runs.append(test)
        return test == BUSY or (test == RARE and len(runs) < ALONE)

    assert verdict(failed, passes) == reason


def test_failed_tests_are_those_of_the_run(tmp_path: Path) -> None:
    """The failed tests are read from the cache of a real run, and a passing one leaves none."""
    tests = tmp_path / "test_a.py"
    tests.write_text(
        "import pytest\n@pytest.mark.parametrize('n', [1, 2])\ndef test_one(n): assert n == 1\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), "-c", "/dev/null"]
    cache = ["-o", f"cache_dir={tmp_path / 'cache'}", "--cache-clear"]
    subprocess.run([*command, *cache, tests], check=False, cwd=tmp_path, capture_output=True)
    assert failed_tests(tmp_path / "cache") == ["test_a.py::test_one[2]"]

    tests.write_text("def test_one(): pass\n")
    subprocess.run([*command, *cache, tests], check=True, cwd=tmp_path, capture_output=True)
    assert failed_tests(tmp_path / "cache") == []
