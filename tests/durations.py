"""Seconds of each test file, and the files that grew: `python -m tests.durations RUN [--write]`.

RUN is pytest's JUnit report of a whole run (`--junitxml`), which `.ci/run` leaves.
The known seconds are in `tests/data/durations.toml`; `--write` (`make durations`) takes over those
of RUN, and its commit says why a file became slower.

What fails is coarse, on purpose. A busy machine slows all files, so a file's time is divided by the
slowness of all others. That moves, too: files that compute suffer more than files that wait. In
five whole runs of one day (2026-11-29, 1,391 to 2,182 s) one unchanged test took between 6.7 and
12.5 % of the run, another between 6.9 and 10.4 %; when the machine stalled, files of 0.4 s took 42
and 47 s. A limit of a fifth would fail every other run: growth by a fifth is printed, growth to
twice the time and by 60 s fails. On a quicker machine a file is taken as it is, since one that
waits is no quicker there: growth may then go unnoticed, and is never reported where there is none.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

KNOWN: Final = Path(__file__).parent / "data" / "durations.toml"
KEPT_S: Final = 0.5
"""Shorter files are not written: their number changes with every run."""
SHOWN: Final = 1.2
SHOWN_FROM_S: Final = 10.0
FAILING: Final = 2.0
FAILING_BY_S: Final = 60.0
WHOLE: Final = 0.5
"""Part of the known seconds that a run must have in common with them; a smaller one is a part of
the suite, whose machine cannot be compared."""

Seconds = Mapping[str, float]
"""Seconds of test files by their path: set-up, call and tear-down of all their tests."""


@dataclass(frozen=True)
class Run:
    """Times of one run."""

    seconds: Seconds
    failed: frozenset[str]
    """Files with a test that failed: their time is not that of their tests."""


@dataclass(frozen=True)
class Growth:
    """A file that takes longer than before."""

    path: str
    before_s: float
    now_s: float
    """Seconds on a machine that is no slower than that of the known times."""

    @property
    def is_failing(self) -> bool:
        """Whether it is more than a busy machine explains."""
        return self.now_s > max(FAILING * self.before_s, self.before_s + FAILING_BY_S)

    def __str__(self) -> str:
        mark = "too slow" if self.is_failing else "slower"
        return f"{mark:9}{self.before_s:7.1f} s -> {self.now_s:6.1f} s  {self.path}"


def read_run(report: str) -> Run:
    """Read a JUnit report."""
    seconds: dict[str, float] = defaultdict(float)
    failed = set()
    for case in ElementTree.fromstring(report).iter("testcase"):
        path = file_of(case.get("classname", ""))
        seconds[path] += float(case.get("time", 0))
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(path)
    return Run(dict(seconds), frozenset(failed))


def file_of(name: str) -> str:
    """Return the file of a test by its dotted name: module and class. JUnit's own field is that of
    the function, which of a Hypothesis state machine is Hypothesis."""
    parts = name.split(".")
    last = next((at for at, part in enumerate(parts) if part.startswith("test_")), len(parts) - 1)
    return "/".join(parts[: last + 1]) + ".py"


def read_known(path: Path = KNOWN) -> dict[str, float]:
    """Read the known seconds."""
    return {name: float(value) for name, value in tomllib.loads(path.read_text("utf-8")).items()}


def growths(known: Seconds, run: Run) -> list[Growth]:
    """Return the files that grew by a fifth or more, the slowest first; none for a part of the
    suite.

    New files are none: nobody knows what they should take.
    """
    common = [path for path in run.seconds if path in known and path not in run.failed]
    known_s = sum(known[path] for path in common)
    run_s = sum(run.seconds[path] for path in common)
    if len(common) < 2 or known_s < WHOLE * sum(known.values()):
        return []
    found = []
    for path in common:
        others_s = known_s - known[path]
        slowness = (run_s - run.seconds[path]) / others_s if others_s else 1.0
        found.append(Growth(path, known[path], run.seconds[path] / max(1.0, slowness)))
    slower = [one for one in found if one.now_s > SHOWN_FROM_S and one.now_s > SHOWN * one.before_s]
    return sorted(slower, key=lambda one: -one.now_s)


def updated(known: Seconds, run: Run, is_there: Mapping[str, bool]) -> dict[str, float]:
    """Return the known seconds with those of a run; files that are gone are left out."""
    passed = {path: value for path, value in run.seconds.items() if path not in run.failed}
    both = {**known, **passed}
    return {
        path: round(both[path], 1)
        for path in sorted(both)
        if both[path] >= KEPT_S and is_there.get(path, False)
    }


def text(seconds: Seconds) -> str:
    """Format the known seconds as TOML."""
    head = (
        "# Seconds of test files in the last run of .ci/run that was taken over: make durations.\n"
        f"# Files below {KEPT_S} s are not listed.\n"
    )
    return head + "".join(f'"{path}" = {value}\n' for path, value in seconds.items())


def main() -> int:
    """Print what grew, or take over the times; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.durations", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--write", action="store_true", help="take over the times of the run")
    given = parser.parse_args()
    try:
        run = read_run(given.run.read_text("utf-8"))
    except FileNotFoundError:
        sys.stderr.write(f"{given.run}: expected the report of a run; .ci/run leaves one\n")
        return 2
    known = read_known()
    if given.write:
        both = updated(known, run, {path: Path(path).is_file() for path in {*known, *run.seconds}})
        KNOWN.write_text(text(both), "utf-8")
        sys.stdout.write(f"{KNOWN.name}: {len(both)} files, {sum(both.values()):.0f} s\n")
        return 0
    found = growths(known, run)
    new_s = sum(value for path, value in run.seconds.items() if path not in known)
    sys.stdout.write(
        f"test files: {sum(run.seconds.values()):.0f} s, of which {new_s:.0f} s without a known "
        f"time; {len(found)} slower by a fifth or more\n"
    )
    sys.stdout.writelines(f"{one}\n" for one in found)
    if any(one.is_failing for one in found):
        sys.stdout.write("mend what is too slow, or `make durations` and say why in the commit\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
