"""Print the statement and branch coverage of `make coverage` by top-level folder."""

from __future__ import annotations

import json
import tempfile
from collections import Counter, defaultdict
from pathlib import Path, PurePath

from coverage import Coverage


def summed(files: dict[str, dict[str, dict[str, int]]]) -> dict[str, Counter[str]]:
    """Sum the counts of `coverage json` by top-level folder."""
    folders: dict[str, Counter[str]] = defaultdict(Counter)
    for path, file in files.items():
        folders[PurePath(path).parts[0]].update(
            {name: count for name, count in file["summary"].items() if isinstance(count, int)}
        )
    return folders


def line(folder: str, counts: Counter[str]) -> str:
    """Return one table row."""
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
