"""Runs work on hostile model files in child processes; independent of ONNX itself."""

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
OUTPUT_BYTES_MAX: Final = 2**20
"""Max bytes of a result; the child limits its output to the same size or less."""


class ChildFailed(Exception):
    """A child process gave no result; the text is the reason."""


def verdict_of(
    model: Path, timeout_s: float = 30.0, command: Sequence[str] = COMMAND
) -> RowVerdict:
    """Return the verdict on a model file; without one, `analysed` is false and `reason` says why.

    Never raises. Blocks for the start of a process plus `timeout_s` at most.
    """
    try:
        return _parsed(output_of([*command, str(model)], timeout_s, "the analysis"))
    except ChildFailed as error:
        return _failed(str(error))
    except Exception as error:  # noqa: BLE001 - a model that is not analysed is served all the same
        return _failed(f"the analysis could not run: {type(error).__name__}: {error}")


def output_of(command: Sequence[str], timeout_s: float, subject: str) -> Any:
    """Return the JSON that a command writes to its standard output. `subject` names the work in
    reasons, as in "the analysis".

    Blocks for the start of a process plus `timeout_s` at most. The child inherits this process's
    limits, and ends with its process group. Raises ChildFailed, OSError, or ValueError for anything
    but JSON. Thread-safe.
    """
    # In memory, because a replica's folders may be read-only. Unlike a pipe, it needs no reader.
    output = os.memfd_create("child-output", os.MFD_CLOEXEC)
    try:
        _run(command, output, timeout_s, subject)
        if os.fstat(output).st_size > OUTPUT_BYTES_MAX:
            raise ChildFailed(f"{subject} wrote more than {OUTPUT_BYTES_MAX} bytes")
        return json.loads(os.pread(output, OUTPUT_BYTES_MAX, 0))
    finally:
        os.close(output)


def _run(command: Sequence[str], output: int, timeout_s: float, subject: str) -> None:
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL
    )
    try:
        code = child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise ChildFailed(f"{subject} took longer than {timeout_s:g} s") from None
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    if code:
        raise ChildFailed(_ending(code, subject))


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


def _ending(code: int, subject: str) -> str:
    if code == -signal.SIGXCPU:
        return f"{subject} used up its processor time"
    if code < 0:
        return f"{subject} was ended by signal {-code}"
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    inherited = ""
    if limit != resource.RLIM_INFINITY:
        inherited = f"; the limit of this process is {limit >> 20} MiB"
    return f"{subject} ended with code {code}: probably it ran out of memory{inherited}"
