"""The process that works an advice out: a case on its standard input, rows on its output."""

from __future__ import annotations

import os
import sys

import msgspec

from admin.advice.rows import Case, advise

LOWEST = 19


def main() -> None:
    """Whatever else runs on this machine goes first."""
    os.nice(LOWEST)
    case = msgspec.json.decode(sys.stdin.buffer.read(), type=Case)
    sys.stdout.buffer.write(msgspec.json.encode(advise(case)))


if __name__ == "__main__":
    main()
