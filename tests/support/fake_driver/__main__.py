"""A server over a fake driver: `python -m tests.support.fake_driver serve [OPTIONS]`.

The options are those of `fnctl serve` that tests give; settings are also read from the environment.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from admin.serve import serve
from admin.settings import load_settings
from tests.support.fake_driver.opening import drivers_of


def main() -> int:
    """Serve until a signal ends it; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.fake_driver")
    parser.add_argument("verb", choices=["serve"])
    parser.add_argument("--port", type=int)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--log-format")
    parser.add_argument("--start-empty", action="store_true")
    given = vars(parser.parse_args())
    del given["verb"]
    may_start_empty = given.pop("start_empty")
    return serve(load_settings(given), drivers_of(), may_start_empty=may_start_empty)


if __name__ == "__main__":
    sys.exit(main())
