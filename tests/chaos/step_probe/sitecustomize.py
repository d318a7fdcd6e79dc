"""Probe in the server under test: measures the steps of its event loop in thread CPU time.

Python imports this module at startup if its folder is on PYTHONPATH. A process that is to serve on
uvloop serves on asyncio's own loop instead, whose selector is wrapped: a step is what runs between
two calls of `select`. Steps that took STEP_MS or longer are appended to the file that STEPS_FILE
names, one JSON object a line, with the longest callback of that step.
"""

import asyncio
import json
import os
import pathlib
import selectors
import sys
import time

STEP_MS = 4.0
FILE = os.environ.get("STEPS_FILE", "")


class Steps(selectors.EpollSelector):
    """Selector that measures the thread's CPU time between its calls."""

    def __init__(self):
        super().__init__()
        self.began_ns = time.thread_time_ns()
        self.longest = (0, "")

    def select(self, timeout=None):
        """Record the step that ends here, then wait for events."""
        took_ms = (time.thread_time_ns() - self.began_ns) / 1e6
        if took_ms >= STEP_MS:
            callback_ns, callback = self.longest
            line = {
                "at_s": time.monotonic(),
                "pid": os.getpid(),
                "ms": round(took_ms, 1),
                "callback_ms": round(callback_ns / 1e6, 1),
                "callback": callback,
            }
            with pathlib.Path(FILE).open("a") as out:
                out.write(json.dumps(line) + "\n")
        try:
            return super().select(timeout)
        finally:
            self.longest = (0, "")
            self.began_ns = time.thread_time_ns()


steps = None
run_handle = asyncio.events.Handle._run


def _run(handle):
    text = handle._callback
    began_ns = time.thread_time_ns()
    run_handle(handle)
    took_ns = time.thread_time_ns() - began_ns
    if steps is not None and took_ns > max(1_000_000, steps.longest[0]):
        steps.longest = (took_ns, repr(text)[:300])


def _loop():
    global steps
    steps = Steps()
    return asyncio.SelectorEventLoop(steps)


def _serve(main, **_options):
    with asyncio.Runner(loop_factory=_loop) as runner:
        return runner.run(main)


if FILE and "runtime_image" not in sys.orig_argv:
    import uvloop

    uvloop.run = _serve
    asyncio.events.Handle._run = _run
