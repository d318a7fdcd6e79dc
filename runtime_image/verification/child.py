"""Runs the row-independence analysis in a child process; independent of ONNX itself."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from runtime_image.contract.rows import RowVerdict

COMMAND: Final = (sys.executable, "-I", "-B", "-m", "runtime_image.verification.rows")
VERDICT_BYTES_MAX: Final = 2**20
"""Max bytes of a verdict; the child limits its output to the same size."""


def verdict_of(
    model: Path, timeout_s: float = 30.0, command: Sequence[str] = COMMAND
) -> RowVerdict:
    """Return the verdict on a model file; without one, `analysed` is false and `reason` says why.

    Never raises. Blocks for the start of a process plus `timeout_s` at most. The child inherits
    this process's limits, and ends with its process group. Thread-safe.
    """
    try:
        # In memory, because a replica's folders may be read-only. Unlike a pipe, it needs no
        # reader.
        output = os.memfd_create("row-verdict", os.MFD_CLOEXEC)
        try:
            return _verdict([*command, str(model)], output, timeout_s)
        finally:
            os.close(output)
    except Exception as error:  # noqa: BLE001 - a model that is not analysed is served all the same
        return _failed(f"the analysis could not run: {type(error).__name__}: {error}")


def _verdict(command: list[str], output: int, timeout_s: float) -> RowVerdict:
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL
    )
    try:
        code = child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return _failed(f"the analysis took longer than {timeout_s:g} s")
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    if code:
        return _failed(_ending(code))
    if os.fstat(output).st_size > VERDICT_BYTES_MAX:
        return _failed(f"the analysis wrote more than {VERDICT_BYTES_MAX} bytes")
    return _parsed(json.loads(os.pread(output, VERDICT_BYTES_MAX, 0)))


def _parsed(found: Any) -> RowVerdict:
    """Parse the child's verdict. Raises if the child wrote anything else."""
    groups = tuple(
        tuple((str(name), int(axis)) for name, axis in group) for group in found["equal_axes"]
    )
    analysed, proven = found["analysed"] is True, found["proven"] is True
    return RowVerdict(
        analysed, analysed and proven, str(found["reason"]), str(found["operator"]), groups
    )


def _failed(reason: str) -> RowVerdict:
    return RowVerdict(False, False, reason[:500])


def _ending(code: int) -> str:
    if code == -signal.SIGXCPU:
        return "the analysis used up its processor time"
    if code < 0:
        return f"the analysis was ended by signal {-code}"
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    inherited = ""
    if limit != resource.RLIM_INFINITY:
        inherited = f"; the limit of this process is {limit >> 20} MiB"
    return f"the analysis ended with code {code}: probably it ran out of memory{inherited}"
