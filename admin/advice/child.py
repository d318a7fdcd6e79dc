"""The process that works an advice out: a case on its standard input, rows on its output."""

from __future__ import annotations

import os
import signal
import sys
from typing import Final

import msgspec

from admin.advice.rows import Case, advise

LOWEST: Final = 19
LIMIT_S: Final = 120


def main() -> None:
    """Whatever else runs on this machine goes first. A server that is killed cannot end its child:
    the alarm does."""
    os.nice(LOWEST)
    signal.alarm(LIMIT_S)
    case = msgspec.json.decode(sys.stdin.buffer.read(), type=Case)
    sys.stdout.buffer.write(msgspec.json.encode(advise(case)))


if __name__ == "__main__":
    main()
