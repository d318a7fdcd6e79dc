"""Mutation testing: `python -m tests.mutation --seed 13 --count 300 --json FILE [CHECKOUT]`.

Mutants of `pool_manager/core` and `gateway/dispatch` run against the tests of their own folder.
FILE gets one JSON object per line, the first about the run. A run with an existing FILE resumes it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import json
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.mutation.mutants import Mutant, choose
from tests.mutation.running import TESTS, Outcome, Runner, files_of

Record = dict[str, Any]


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument(
        "--count", type=int, default=300, help="mutants; a higher count adds some to the same ones"
    )
    parser.add_argument("--jobs", type=int, default=1, help="parallel mutants")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "--report", action="store_true", help="print the results in FILE, run nothing"
    )
    parser.add_argument("checkout", type=Path, nargs="?", default=Path())
    return parser.parse_args()


def main() -> None:
    """Run the mutants that FILE lacks, then print the results."""
    given = options()
    if not given.report:
        run(given.checkout.resolve(), given)
    _, *records = read(given.json)
    sys.stdout.write(report(records))


def run(checkout: Path, given: argparse.Namespace) -> None:
    """Run the mutants that the file lacks; write each result when its run ends."""
    head = {"seed": given.seed, "source": digest(checkout), "tests": TESTS}
    head = json.loads(json.dumps(head))
    known = read(given.json)
    if known and {name: known[0].get(name) for name in head} != head:
        raise SystemExit(f"{given.json}: has results of another seed, source or test set")
    done = {record["key"] for record in known[1:]}
    mutants = choose(checkout, TESTS, given.seed, given.count)
    waiting = [mutant for mutant in mutants if mutant.key not in done]
    if not waiting:
        return
    with tempfile.TemporaryDirectory() as scratch, given.json.open("a", 1) as file:
        runner = Runner(checkout, Path(scratch))
        unchanged = {folder: runner.warm_up(folder) for folder in TESTS}
        if not known:
            cpu_s = {folder: round(outcome.cpu_s, 2) for folder, outcome in unchanged.items()}
            file.write(json.dumps({**head, "checkout": checkout.name, "cpu_s": cpu_s}) + "\n")
        gc.freeze()
        running: dict[int, Mutant] = {}
        while waiting or running:
            while waiting and len(running) < given.jobs:
                mutant = waiting.pop(0)
                running[runner.start(mutant.folder, mutant)] = mutant
            pid, outcome = runner.wait()
            file.write(json.dumps(record(running.pop(pid), outcome)) + "\n")


def record(mutant: Mutant, outcome: Outcome) -> Record:
    """Return a line of the file."""
    return {
        **asdict(mutant),
        "result": outcome.result,
        "by": outcome.by,
        "cpu_s": round(outcome.cpu_s, 2),
        "wall_s": round(outcome.wall_s, 2),
    }


def read(path: Path) -> list[Record]:
    """Read the lines of the file; skip one that was cut off."""
    records = []
    if path.exists():
        for line in path.read_text("utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                records.append(json.loads(line))
    return records


def digest(checkout: Path) -> str:
    """Hash the mutated folders and their tests."""
    total = hashlib.sha256()
    for folder in TESTS:
        for path in (*sorted((checkout / folder).rglob("*.py")), *files_of(checkout, folder)):
            total.update(path.read_bytes())
    return total.hexdigest()[:16]


def report(records: list[Record]) -> str:
    """Format the kill ratio by folder, the time of a mutant, and the survivors."""
    lines = [f"{'folder':24}{'mutants':>8}{'killed':>8}{'timeout':>8}{'survived':>9}{'ratio':>8}"]
    for folder in (*TESTS, ""):
        found = Counter(one["result"] for one in records if one["folder"].startswith(folder))
        killed, total = found["killed"] + found["timeout"], found.total()
        ratio = f"{killed / total:8.1%}" if total else "-"
        lines.append(
            f"{folder or 'all':24}{total:8}{found['killed']:8}{found['timeout']:8}"
            f"{found['survived']:9}{ratio:>8}"
        )
    if records:
        cpu_s = sorted(one["cpu_s"] for one in records)
        wall_s = sorted(one["wall_s"] for one in records)
        lines.append(
            f"a mutant: {cpu_s[len(cpu_s) // 2]} s of CPU (median), {cpu_s[-1]} s at most; "
            f"{wall_s[len(wall_s) // 2]} s of wall clock, {sum(wall_s) / 60:.1f} min in all"
        )
    lines.extend(
        f"{one['file']}:{one['line']}: {one['before']} -> {one['after']}"
        for one in sorted(records, key=lambda one: (one["file"], one["line"]))
        if one["result"] == "survived"
    )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
