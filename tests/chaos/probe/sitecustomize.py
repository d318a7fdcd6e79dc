"""Probe in the server under test: SIGUSR1 collects garbage and trims the heap.

Python imports this module at startup if its folder is on PYTHONPATH. An idle server has no reason
to collect reference cycles, and glibc keeps freed memory: together up to a tenth of the total, at
random, which would hide a leak.
"""

import ctypes
import gc
import signal


def _give_back(_number: int, _frame: object) -> None:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


signal.signal(signal.SIGUSR1, _give_back)
