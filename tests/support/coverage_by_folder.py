"""Prints the statements and branches that the last `make test` covered, by top folder."""

from __future__ import annotations

import json
import tempfile
from collections import Counter, defaultdict
from pathlib import Path, PurePath

from coverage import Coverage


def summed(files: dict[str, dict[str, dict[str, int]]]) -> dict[str, Counter[str]]:
    """The counts of `coverage json` by top folder."""
    folders: dict[str, Counter[str]] = defaultdict(Counter)
    for path, file in files.items():
        folders[PurePath(path).parts[0]].update(
            {name: count for name, count in file["summary"].items() if isinstance(count, int)}
        )
    return folders


def line(folder: str, counts: Counter[str]) -> str:
    """One row of the table."""
    statements = 100 * counts["covered_lines"] / max(1, counts["num_statements"])
    branches = 100 * counts["covered_branches"] / max(1, counts["num_branches"])
    return f"{folder:14} {statements:8.2f} % {branches:8.2f} % of {counts['num_branches']:5}"


def main() -> None:
    coverage = Coverage()
    coverage.load()
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        coverage.json_report(outfile=report.name)
        files = json.loads(Path(report.name).read_text("utf-8"))["files"]
    folders = summed(files)
    print(f"{'':14} {'statements':>10} {'branches':>10}")
    for folder in sorted(folders):
        print(line(folder, folders[folder]))


if __name__ == "__main__":
    main()
