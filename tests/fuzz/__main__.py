"""Fuzzing of builders: `python -m tests.fuzz --inputs 1000000 --seed 7 [--only NAME] [--at N]`.

Each input is a function of the seed, the builder's name and its number: `--only NAME --at N` writes
it to standard output. Exits with 1 if an input raised another error than a refusal, or took longer
than its builder may.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.fuzz.running import Result, fuzz, input_of
from tests.fuzz.subjects import SUBJECTS


def main() -> int:
    """Run the fuzzer and print a line for each builder."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of all builders together")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", choices=[one.name for one in SUBJECTS], help="one builder")
    parser.add_argument("--at", type=int, help="one input, which is written to standard output")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    chosen = [one for one in SUBJECTS if given.only in (None, one.name)]
    if given.at is not None:
        sys.stdout.buffer.write(input_of(chosen[0], given.seed, given.at))
        return 0
    results: list[Result] = []
    sys.stdout.write(f"seed {given.seed}\n")
    for subject in chosen:
        result = fuzz(subject, given.seed, given.inputs // len(chosen))
        results.append(result)
        sys.stdout.write(result.line() + "\n")
        sys.stdout.flush()
    if given.json is not None:
        given.json.write_text(json.dumps([vars(one) for one in results], indent=1) + "\n")
    return int(any(one.failures or one.is_slow for one in results))


if __name__ == "__main__":
    sys.exit(main())
