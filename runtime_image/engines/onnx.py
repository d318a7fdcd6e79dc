"""ONNX Runtime: one session, on CPU or on one GPU."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime as ort

from runtime_image.contract import dtypes
from runtime_image.contract.errors import LoadError
from runtime_image.contract.signature import DYNAMIC, Signature, TensorSpec
from runtime_image.engines.base import Stopped

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


class OnnxEngine:
    """A session over one .onnx file. Inputs and outputs are NumPy arrays by name."""

    def __init__(self, path: Path, *, device_kind: str, threads: int) -> None:
        """Raises LoadError with ONNX Runtime's reason, or when the device's provider is missing."""
        try:
            self._session = _session(str(path), device_kind, threads)
        except LoadError as error:
            # The engine's words without the folder of this one replica.
            raise LoadError(str(error).replace(f"{path.parent}/", "")) from error.__cause__
        self.signature = Signature(
            "tensors",
            tuple(_spec("input", node) for node in self._session.get_inputs()),
            tuple(_spec("output", node) for node in self._session.get_outputs()),
        )
        self._outputs = [spec.name for spec in self.signature.outputs]

    def ticket(self) -> Any:
        """Run options; setting `terminate` on them stops the run between two graph nodes."""
        return ort.RunOptions()

    def run(self, inputs: dict[str, Any], ticket: Any) -> dict[str, Any]:
        """Arrays by output name. Raises Stopped, or ONNX Runtime's error."""
        try:
            values = self._session.run(self._outputs, inputs, ticket)
        except Exception as error:
            if ticket.terminate:
                raise Stopped from error
            raise
        return dict(zip(self._outputs, values, strict=True))

    def stop(self, ticket: Any) -> None:
        """End the run with these options at the next graph node."""
        ticket.terminate = True


def warm_up(device_kind: str) -> None:
    """Load and run the least model there is: the first session of a process, and its first run,
    set up what all later ones share, on a GPU its context. Raises LoadError as a model would."""
    session = _session(IDENTITY, device_kind, 1)
    session.run(["y"], {"x": np.zeros(1, np.float32)}, ort.RunOptions())


def _options(threads: int) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Spinning threads of an idle replica would burn the CPU share of the others.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _session(model: str | bytes, device_kind: str, threads: int) -> Any:
    """`model` is a file's path, or its content."""
    provider = PROVIDERS[device_kind]
    if provider not in ort.get_available_providers():
        # ONNX Runtime would drop the provider with a log line and compute on the CPU.
        raise LoadError(f"device {device_kind}: this onnxruntime has no {provider}")
    if device_kind == "cuda":
        check_driver()
        ort.preload_dlls()
    try:
        session = ort.InferenceSession(model, _options(threads), providers=[provider])
    except Exception as error:
        raise LoadError(str(error)) from error
    if session.get_providers()[0] != provider:
        raise LoadError(f"device {device_kind}: {provider} could not be used, see the logs")
    return session


def check_driver(library: str = CUDA_DRIVER) -> None:
    """Raises LoadError where no driver is: ONNX Runtime says so in the log only."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        raise LoadError(
            f"device cuda: there is no NVIDIA driver here ({error}); on a machine with one,"
            " containers get it from the NVIDIA Container Toolkit"
        ) from error


def _spec(role: str, node: Any) -> TensorSpec:
    dtype = dtypes.FROM_ONNX.get(node.type)
    if dtype is None:
        raise LoadError(f"{role} {node.name!r} has type {node.type}, only tensors can be served")
    shape = tuple(size if isinstance(size, int) else DYNAMIC for size in node.shape)
    return TensorSpec(node.name, dtype, shape)
