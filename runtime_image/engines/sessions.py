"""ONNX Runtime's sessions: how they are made, and what they need to be made at all."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import onnxruntime as ort

from runtime_image.contract.errors import LoadError

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
CUDA_DRIVER: Final = "libcuda.so.1"
"""Comes with the driver of the host, never with an image."""
IDENTITY: Final = (
    b"\x08\x08"  # ir_version 8
    b"\x3a\x37"  # graph
    b"\x0a\x10\x0a\x01x\x12\x01y\x22\x08Identity"  # node: Identity of x is y
    b"\x12\x01g"  # name "g"
    b"Z\x0f\x0a\x01x\x12\x0a\x0a\x08\x08\x01\x12\x04\x0a\x02\x08\x01"  # input x: float[1]
    b"b\x0f\x0a\x01y\x12\x0a\x0a\x08\x08\x01\x12\x04\x0a\x02\x08\x01"  # output y: float[1]
    b"B\x02\x10\x0d"  # opset 13
)
"""The least model there is, as onnx.proto lays it out."""


def open_session(
    model: str | bytes,
    device_kind: str,
    threads: int,
    *,
    optimise: bool = True,
    prepack: bool = True,
    before_work: Callable[[], None] | None = None,
) -> Any:
    """A session over a file's path, or its content; `optimise` and `prepack` as in `SessionPlan`.

    `before_work` is called in this thread when the session's own threads are there and the long
    part, which lets other Python threads run, is about to begin. Raises LoadError.
    """
    provider = PROVIDERS[device_kind]
    if provider not in ort.get_available_providers():
        # ONNX Runtime would drop the provider with a log line and compute on the CPU.
        raise LoadError(f"device {device_kind}: this onnxruntime has no {provider}")
    if device_kind == "cuda":
        check_driver()
        ort.preload_dlls()
    options = session_options(threads, optimise=optimise, prepack=prepack)
    arguments: dict[str, Any] = {"providers": [provider]}
    if before_work is not None:
        arguments["disabled_optimizers"] = _none_once_asked(before_work)
    try:
        session = ort.InferenceSession(model, options, **arguments)
    except Exception as error:
        raise LoadError(str(error)) from error
    if session.get_providers()[0] != provider:
        raise LoadError(f"device {device_kind}: {provider} could not be used, see the logs")
    return session


def session_options(threads: int, *, optimise: bool = True, prepack: bool = True) -> Any:
    """One pool of `threads` threads, which sleep while there is nothing to run."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Spinning threads of an idle replica would burn the CPU share of the others.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if not prepack:
        options.add_session_config_entry("session.disable_prepacking", "1")
        # Else a buffer as large as all weights is reserved and never touched, because they stay
        # in their file; a cap on private memory (RLIMIT_DATA) counts it.
        options.enable_mem_pattern = False
    return options


def warm_up(device_kind: str) -> None:
    """Load and run the least model there is: the first session of a process, and its first run,
    set up what all later ones share, on a GPU its context. Raises LoadError as a model would."""
    session = open_session(IDENTITY, device_kind, 1)
    session.run(["y"], {"x": np.zeros(1, np.float32)}, ort.RunOptions())


def check_driver(library: str = CUDA_DRIVER) -> None:
    """Raises LoadError where no driver is: ONNX Runtime says so in the log only."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        raise LoadError(
            f"device cuda: there is no NVIDIA driver here ({error}); on a machine with one,"
            " containers get it from the NVIDIA Container Toolkit"
        ) from error


def _none_once_asked(before_work: Callable[[], None]) -> Iterator[str]:
    """No optimizer is to be left out; ONNX Runtime asks for their names just before it begins."""
    before_work()
    yield from ()
