"""`python -m benchmarks.verdicts`: judge the candidates of twelve models; fail if one is wrong."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.verdicts.judge import RIGHT_REFUSED_MAX, WRONG_ACCEPTED_MAX
from benchmarks.verdicts.models import cases
from benchmarks.verdicts.verdict import CANDIDATES, verdict


def main() -> int:
    """Print a line for each candidate; return 1 if more are decided wrongly than expected."""
    wrong_accepted = right_refused = 0
    for case in cases():
        for name in CANDIDATES:
            with tempfile.TemporaryDirectory(prefix="fn-") as folder:
                found = verdict(case, name, Path(folder))
            wrong_accepted += found.accepted and found.is_wrong
            right_refused += not found.accepted and not found.is_wrong
            sys.stdout.write(f"| {case.name} | {name} | {found.row()} |\n")
            sys.stdout.flush()
    sys.stdout.write(f"wrong accepted: {wrong_accepted}; right refused: {right_refused}\n")
    return wrong_accepted > WRONG_ACCEPTED_MAX or right_refused > RIGHT_REFUSED_MAX


sys.exit(main())
