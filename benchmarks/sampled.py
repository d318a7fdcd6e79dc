"""fnctl for a server that samples its own stack: what `benchmarks.by_subject` measures.

The main thread notes once a millisecond of CPU time in which function of the product it is: the
innermost frame of ours, so that a library's work counts for its caller. SIGUSR2 writes the counts
to the file BENCH_SAMPLES as JSON, `{"path:function": count}`, and begins anew.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Final

from admin.cli.main import main

ROOT: Final = f"{Path(__file__).parent.parent}{os.sep}"
PERIOD_S: Final = 0.001
OUTSIDE: Final = "loop"
"""Where no frame is ours: the event loop and its callbacks."""
_OWN: Final = tuple(
    f"{ROOT}{one}{os.sep}" for one in ("admin", "gateway", "registry", "pool_manager")
)

counts: Counter[str] = Counter()


def sample(_number: int, frame: FrameType | None) -> None:
    """Count the innermost frame of ours (handler of SIGPROF)."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_OWN) and not code.co_filename.endswith("main.py"):
            counts[f"{code.co_filename.removeprefix(ROOT)}:{code.co_name}"] += 1
            return
        frame = frame.f_back
    counts[OUTSIDE] += 1


def write(_number: int, _frame: FrameType | None) -> None:
    """Write the counts, and begin anew (handler of SIGUSR2)."""
    path = Path(os.environ["BENCH_SAMPLES"])
    made = path.with_suffix(".new")
    made.write_text(json.dumps(counts))
    made.replace(path)
    counts.clear()


if __name__ == "__main__":
    signal.signal(signal.SIGPROF, sample)
    signal.signal(signal.SIGUSR2, write)
    signal.setitimer(signal.ITIMER_PROF, PERIOD_S, PERIOD_S)
    main()
