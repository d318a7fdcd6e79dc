"""Tests of the coverage of each top folder."""

from __future__ import annotations

from tests.support.coverage_by_folder import line, summed


def test_files_are_summed_by_top_folder() -> None:
    """A share is computed over all statements and branches of a folder, not as the mean of its
    files."""
    counts = {"covered_lines": 1, "num_statements": 2, "covered_branches": 0, "num_branches": 2}
    whole = {"covered_lines": 6, "num_statements": 6, "covered_branches": 2, "num_branches": 2}
    folders = summed(
        {"a/b/c.py": {"summary": counts}, "a/d.py": {"summary": whole}, "e/f.py": {"summary": {}}}
    )

    assert line("a", folders["a"]).split() == ["a", "87.50", "%", "50.00", "%", "of", "4"]
    assert line("e", folders["e"]).split() == ["e", "0.00", "%", "0.00", "%", "of", "0"]
