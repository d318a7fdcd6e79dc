"""Failed tests of a whole run, each run again alone: `python -m tests.again CACHE`.

CACHE is the cache folder of a pytest run that failed. 19,000 tests of real servers, engines and
browsers share two cores for half an hour; in most runs on a machine that others use as well, one or
two of them miss a moment of some kind. A run with such a test passes if the test passes alone,
ALONE times in a row, and at most MOST tests are concerned. The test is named as unstable, with its
failure above: that is a fault of the test or of the product, to be found and mended like any other.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

MOST: Final = 3
"""Failed tests that are run again; more of them are no accident."""
ALONE: Final = 2
"""Times that a test must pass alone. A test that fails in every second run still fails three in
four times."""


def failed_tests(cache: Path) -> list[str]:
    """Return the node ids of the failed tests of a run."""
    try:
        return sorted(json.loads((cache / "v/cache/lastfailed").read_text("utf-8")))
    except FileNotFoundError:
        return []


def verdict(failed: Sequence[str], passes: Callable[[str], bool]) -> str:
    """Return why a run has failed, "" if all its failed tests pass alone.

    A run that failed without a failed test, or with a file that cannot be imported, has failed.
    """
    if not failed:
        return "the run failed, and no test did"
    if len(failed) > MOST:
        return f"{len(failed)} tests failed; at most {MOST} are run again"
    for test in failed:
        if "::" not in test:
            return f"{test} cannot be collected"
        if not all(passes(test) for _ in range(ALONE)):
            return f"{test} fails alone, too"
    return ""


def passes_alone(test: str) -> bool:
    """Run one test; return whether it passes."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    return subprocess.run(command, check=False).returncode == 0


def main() -> int:
    """Run the failed tests again; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.again", description=__doc__)
    parser.add_argument("cache", type=Path)
    failed = failed_tests(parser.parse_args().cache)
    reason = verdict(failed, passes_alone)
    mark = "FAILED" if reason else "UNSTABLE"
    sys.stdout.writelines(f"{mark} {test}\n" for test in failed)
    if reason:
        sys.stdout.write(f"{reason}\n")
        return 1
    sys.stdout.write("failed in the run and pass alone: mend them, or what they test\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
