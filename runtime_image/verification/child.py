"""Runs the row-independence analysis in a process of its own; knows nothing of ONNX itself."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any, Final

from runtime_image.contract.rows import RowVerdict

MODULE: Final = "runtime_image.verification.rows"
VERDICT_BYTES_MAX: Final = 2**20
ENVIRONMENT: Final = {"PYTHONDONTWRITEBYTECODE": "1", "LANG": "C.UTF-8"}


def verdict_of(model: Path, timeout_s: float = 30.0) -> RowVerdict:
    """The verdict on a model file; `analysed` is false, with a reason, where the child has none.

    Never raises, and blocks for `timeout_s` at most and the start of a process. The child inherits
    this process's limits, a memory cap among them.
    """
    try:
        with tempfile.TemporaryFile() as output:
            return _ran([sys.executable, "-I", "-m", MODULE, str(model)], output, timeout_s)
    except Exception as error:  # noqa: BLE001 a model that is not analysed runs all the same
        return _failed(f"the analysis could not run: {error}")


def _ran(command: list[str], output: IO[bytes], timeout_s: float) -> RowVerdict:
    # A file, not a pipe: a pipe would have to be read while the clock runs.
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.DEVNULL,
        env=ENVIRONMENT,
        start_new_session=True,
    )
    try:
        code = child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return _failed(f"the analysis took longer than {timeout_s:g} s")
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    size = os.fstat(output.fileno()).st_size
    if code or size > VERDICT_BYTES_MAX:
        return _failed(_ending(code))
    output.seek(0)
    return _parsed(json.loads(output.read(VERDICT_BYTES_MAX)))


def _parsed(found: Any) -> RowVerdict:
    """Raises where the child wrote something else than a verdict."""
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
        return f"the analysis was ended by {signal.Signals(-code).name}"
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    capped = "" if limit == resource.RLIM_INFINITY else f" of {limit >> 20} MiB, this process's"
    return f"the analysis failed, probably at its memory limit{capped} (exit code {code})"
