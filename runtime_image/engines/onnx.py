"""Engine for ONNX models: sessions, runs, and the key of their environment.

A prepared model starts with a quick session, which `upgrade` replaces by a fast one while it
serves. Any other model has one session of its original file.
"""

from __future__ import annotations

import ctypes
import functools
import os
import zlib
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import onnxruntime as ort

from runtime_image.codecs import bfloat16
from runtime_image.compilers.ranges import outside, refusal
from runtime_image.contract import dtypes
from runtime_image.contract.compiled import ShapeRange
from runtime_image.contract.control import SessionName
from runtime_image.contract.errors import LoadError
from runtime_image.contract.model import ModelSpec, Preparation, SessionPlan
from runtime_image.contract.onnx_signature import unshaped
from runtime_image.contract.signature import DYNAMIC, Signature, TensorSpec
from runtime_image.engines.base import Stopped
from runtime_image.engines.empty_axes import EmptyAxes
from runtime_image.engines.upgrade import SessionUpgrade, log_line

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
IDENTITY: Final = (
    b"\x08\x08"  # ir_version 8
    b"\x3a\x37"  # graph
    b"\x0a\x10\x0a\x01x\x12\x01y\x22\x08Identity"  # node: y = Identity(x)
    b"\x12\x01g"  # name "g"
    b"Z\x0f\x0a\x01x\x12\x0a\x0a\x08\x08\x01\x12\x04\x0a\x02\x08\x01"  # input x: float[1]
    b"b\x0f\x0a\x01y\x12\x0a\x0a\x08\x08\x01\x12\x04\x0a\x02\x08\x01"  # output y: float[1]
    b"B\x02\x10\x0d"  # opset 13
)
"""The smallest model, encoded as in onnx.proto."""

_ONNX_BF16: Final = 16
"""TensorProto.BFLOAT16 in onnx.proto."""

CPU_INFO: Final = Path("/proc/cpuinfo")
NVIDIA_VERSION: Final = Path("/proc/driver/nvidia/version")
CUDA_DRIVER: Final = "libcuda.so.1"
CPU_LINES: Final = (
    b"vendor_id",
    b"cpu family",
    b"model",
    b"flags",
    b"CPU implementer",
    b"CPU part",
    b"Features",
)
"""Fields of /proc/cpuinfo that determine the chosen kernels and layouts: x86 first, then ARM.
Fields that change, such as clock rates, would give a new key every time."""
CPU_INFO_BYTES: Final = 16 * 1024
"""Enough for the first processor; reading all of many processors would take milliseconds."""

NO_FALLBACK: Final = 0
"""Value of `enable_fallback`. Otherwise ONNX Runtime goes on with the CPU, and prints a line, if a
provider fails at load or in a run."""
OPTIMISING_TAKES: Final = 3
"""Max memory of a session whose graph is rewritten at load, as a multiple of its files' size."""


def load_model(spec: ModelSpec, folder: Path, *, device_kind: str, threads: int) -> OnnxEngine:
    """Return the engine for the spec's model file in `folder`.

    If the spec was prepared for this engine version and device, the engine starts with the quick
    session and has an upgrade. Otherwise, or if that session fails, it uses the original file.
    Raises LoadError with the reason of the original.
    """
    if spec.preparation is not None:
        try:
            return _prepared(spec.preparation, folder, device_kind, threads)
        except (LoadError, OSError) as error:
            log_line(f"{spec.revision} is loaded from its original file: {error}"[:2000])
    model = folder / (spec.optimised or spec.model)
    return OnnxEngine(model, device_kind=device_kind, threads=threads)


def size_mib(path: Path) -> float:
    """Return the size in MiB of a model file and the files beside it (weights). Raises OSError."""
    return sum(file.stat().st_size for file in path.parent.iterdir() if file.is_file()) / 2**20


def _prepared(preparation: Preparation, folder: Path, device_kind: str, threads: int) -> OnnxEngine:
    key = environment_key(device_kind)
    if preparation.key != key:
        raise LoadError(f"the prepared files are for {preparation.key}, this replica is {key}")

    def load(plan: SessionPlan, before_work: Callable[[], None] | None = None) -> OnnxEngine:
        return OnnxEngine(
            folder / plan.file,
            device_kind=device_kind,
            threads=threads,
            optimise=plan.optimise,
            prepack=plan.prepack,
            before_work=before_work,
        )

    engine = load(preparation.quick)
    engine.session = "quick"
    if (fast := preparation.fast) is not None:
        needs_mib = size_mib(folder / fast.file) * (OPTIMISING_TAKES if fast.optimise else 1)
        engine.upgrade = SessionUpgrade(
            engine, lambda before_work: load(fast, before_work), needs_mib
        )
    return engine


class Sessions(NamedTuple):
    """Sessions of one model. Runs whose shapes are outside `ranges` use `ordinary`; without it they
    are refused. Without ranges, `main` takes any shape."""

    main: Any
    ranges: tuple[ShapeRange, ...] = ()
    ordinary: Any = None

    def of(self, inputs: dict[str, Any]) -> Any:
        """Return the session for a run of these inputs. Raises OutsideRanges."""
        if not self.ranges:
            return self.main
        shapes = {name: np.shape(value) for name, value in inputs.items()}
        violated = outside(shapes, self.ranges)
        if violated is None:
            return self.main
        if self.ordinary is None:
            raise refusal(shapes, violated)
        return self.ordinary


class OnnxEngine:
    """A session over one .onnx file. Inputs and outputs are NumPy arrays by name.

    The session may be exchanged for another one of the same model; a run in progress ends with the
    session it began with.
    """

    def __init__(
        self,
        path: Path,
        *,
        device_kind: str,
        threads: int,
        optimise: bool = True,
        prepack: bool = True,
        before_work: Callable[[], None] | None = None,
    ) -> None:
        """`optimise` and `prepack` as in `SessionPlan`, `before_work` as in `open_session`.

        Raises LoadError with ONNX Runtime's reason, or if the device's provider is missing.
        """
        try:
            session = open_session(
                str(path),
                device_kind,
                threads,
                optimise=optimise,
                prepack=prepack,
                before_work=before_work,
            )
        except LoadError as error:
            from runtime_image.engines.advice import explained

            # Remove this replica's folder from the engine's message.
            reason = str(error).replace(f"{path.parent}/", "")
            raise LoadError(explained(reason, ort.__version__)) from error.__cause__
        self._use(Sessions(session), device_kind, "original", path)

    def _use(self, sessions: Sessions, device_kind: str, name: SessionName, model: Path) -> None:
        """Set up this engine with its first session, of the file `model`."""
        self._sessions = sessions
        self.signature = _signature(sessions.main, model)
        named = sessions.ordinary or sessions.main
        axes = {node.name: node.shape for node in named.get_inputs()}
        self._empty_axes = EmptyAxes(model, axes)
        self.session: SessionName = name
        self.upgrade: SessionUpgrade | None = None
        self.has_run = False
        self._outputs = [spec.name for spec in self.signature.outputs]
        self._is_bound = device_kind == "cuda"
        tensors = (*self.signature.inputs, *self.signature.outputs)
        self._has_bf16 = any(spec.dtype == bfloat16.NAME for spec in tensors)
        self._in_use: Any = None

    @property
    def is_running(self) -> bool:
        """Whether a run is in progress."""
        return self._in_use is not None

    def ticket(self) -> Any:
        """Return run options; setting `terminate` on them stops the run between two graph nodes."""
        return ort.RunOptions()

    def run(self, inputs: dict[str, Any], ticket: Any) -> dict[str, Any]:
        """Return arrays by output name. Raises Stopped, UnfitInput, or ONNX Runtime's error."""
        if not all(map(np.size, inputs.values())):
            self._empty_axes.check(inputs)
        session = self._in_use = self._sessions.of(inputs)
        try:
            if self._has_bf16:
                return run_with_values(session, self._outputs, inputs, ticket)
            if self._is_bound:
                return run_bound(session, "cuda", self._outputs, inputs, ticket)
            values = session.run(self._outputs, inputs, ticket)
        except Exception as error:
            if ticket.terminate:
                raise Stopped from error
            raise
        finally:
            # Release the session before `_in_use` is cleared: `exchange` relies on this order.
            del session
            self._in_use = None
            self.has_run = True
        return dict(zip(self._outputs, values, strict=True))

    def stop(self, ticket: Any) -> None:
        """End the run with these options at the next graph node."""
        ticket.terminate = True

    def exchange(self, better: OnnxEngine, pause: Callable[[], object]) -> None:
        """Use the session of `better` from the next run on; another thread may run meanwhile.

        Returns after the release of the old session, and calls `pause` repeatedly while a run uses
        it. The release takes milliseconds; here, it delays no request. Raises LoadError if `better`
        is a session of another model.
        """
        if _names(better.signature) != _names(self.signature):
            raise LoadError("its inputs and outputs are not those of the serving model")
        self._empty_axes = better._empty_axes
        old, self._sessions = self._sessions.main, better._sessions
        self.session = "compiled" if better.session == "compiled" else "fast"
        while self._in_use is old and old is not self._sessions.ordinary:
            pause()

    @property
    def ordinary(self) -> Any:
        """The session that takes any shape, None if there is none."""
        return self._sessions.ordinary if self._sessions.ranges else self._sessions.main


def _names(signature: Signature) -> list[tuple[str, str]]:
    """Return names and types of all inputs and outputs; optimised graphs may have other shapes."""
    return [(tensor.name, tensor.dtype) for tensor in (*signature.inputs, *signature.outputs)]


def _signature(session: Any, model: Path) -> Signature:
    """Return the inputs and outputs of a session of the file `model`.

    ONNX Runtime gives [] for a scalar and for a tensor without a declared shape: the file says
    which. If it cannot be read, the rank counts as unknown, for then the runtime checks it.
    """
    inputs, outputs = session.get_inputs(), session.get_outputs()
    bare = {node.name for node in (*inputs, *outputs) if not node.shape}
    if bare:
        found = unshaped(model)
        bare = bare if found is None else bare & found
    return Signature(
        "tensors",
        tuple(_spec("input", node, bare) for node in inputs),
        tuple(_spec("output", node, bare) for node in outputs),
    )


def _spec(role: str, node: Any, unknown: Container[str]) -> TensorSpec:
    """Return the spec of an input or output; the rank of those in `unknown` is not known."""
    dtype = dtypes.FROM_ONNX.get(node.type)
    if dtype is None:
        from runtime_image.engines.advice import unservable

        raise LoadError(unservable(role, node.name, node.type))
    if node.name in unknown:
        return TensorSpec(node.name, dtype, None)
    shape = tuple(size if isinstance(size, int) else DYNAMIC for size in node.shape)
    return TensorSpec(node.name, dtype, shape)


def run_with_values(
    session: Any, outputs: list[str], inputs: dict[str, Any], options: Any
) -> dict[str, Any]:
    """Return arrays by output name, of a session with BF16 among its in- or outputs.

    ONNX Runtime takes BF16 as its own values only, and outputs are on the CPU on every device.
    """
    # The values are views of the arrays, which must live until the end of the run.
    arrays = {name: _without_bf16(array) for name, array in inputs.items()}
    values = {
        name: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, _ONNX_BF16)
        if inputs[name].dtype == bfloat16.BF16
        else ort.OrtValue.ortvalue_from_numpy(array)
        for name, array in arrays.items()
    }
    made = session.run_with_ort_values(outputs, values, options)
    return {name: _array(value) for name, value in zip(outputs, made, strict=True)}


def _without_bf16(array: Any) -> Any:
    return bfloat16.bits(array) if array.dtype == bfloat16.BF16 else np.ascontiguousarray(array)


def _array(value: Any) -> Any:
    if value.data_type() != "tensor(bfloat16)":
        return value.numpy()
    raw = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return bfloat16.from_bits(np.frombuffer(raw, np.uint16).reshape(value.shape()))


def run_bound(
    session: Any, device: str, outputs: list[str], inputs: dict[str, Any], options: Any
) -> dict[str, Any]:
    """Return arrays by output name. Outputs are computed on `device` ("cuda", "cpu").

    Binding copies inputs to the device of the nodes that read them. Outputs are allocated on the
    device and copied after the whole run, instead of each right after its node. String tensors
    cannot be bound.
    """
    if any(array.dtype.kind not in "biuf" for array in inputs.values()):
        return dict(zip(outputs, session.run(outputs, inputs, options), strict=True))
    binding = session.io_binding()
    for name, array in inputs.items():
        # Binding uses the array's memory directly, which must be contiguous.
        binding.bind_cpu_input(name, np.ascontiguousarray(array))
    for name in outputs:
        binding.bind_output(name, device)
    session.run_with_iobinding(binding, options)
    return dict(zip(outputs, binding.copy_outputs_to_cpu(), strict=True))


def open_session(
    model: str | bytes,
    device_kind: str,
    threads: int,
    *,
    optimise: bool = True,
    prepack: bool = True,
    before_work: Callable[[], None] | None = None,
) -> Any:
    """Return a session of a file (path) or of its content; `optimise` and `prepack` as in
    `SessionPlan`.

    `before_work` is called in this thread after the session's threads were started and before the
    long part, which releases the interpreter lock. Raises LoadError.
    """
    provider = PROVIDERS[device_kind]
    if provider not in ort.get_available_providers():
        # Without this check, ONNX Runtime would log a line and use the CPU.
        raise LoadError(f"device {device_kind}: this onnxruntime has no {provider}")
    if device_kind == "cuda":
        check_driver()
        from runtime_image.gpus import libraries

        libraries.preload(ort)
    options = session_options(threads, optimise=optimise, prepack=prepack)
    arguments: dict[str, Any] = {"providers": [provider], "enable_fallback": NO_FALLBACK}
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
    """Return options with one pool of `threads` threads, which sleep while nothing runs."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Spinning threads of an idle replica would use the CPU share of others.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if not prepack:
        options.add_session_config_entry("session.disable_prepacking", "1")
        # Memory patterns reserve a buffer as large as all weights. It is unused, because weights
        # stay in their file, but counts against a limit on private memory (RLIMIT_DATA).
        options.enable_mem_pattern = False
    return options


def warm_up(device_kind: str) -> None:
    """Load and run the smallest model: the first session and run of a process set up state that
    later ones share, on a GPU its context. Raises LoadError like any model."""
    session = open_session(IDENTITY, device_kind, 1)
    session.run(["y"], {"x": np.zeros(1, np.float32)}, ort.RunOptions())


def check_driver(library: str = CUDA_DRIVER) -> None:
    """Raise LoadError without a driver; ONNX Runtime only logs that."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        raise LoadError(
            f"device cuda: there is no NVIDIA driver here ({error}); on a machine with one,"
            " containers get it from the NVIDIA Container Toolkit"
        ) from error


def _none_once_asked(before_work: Callable[[], None]) -> Iterator[str]:
    """Disable no optimizer, but call `before_work`: ONNX Runtime reads the names of disabled
    optimizers directly before its long part."""
    before_work()
    yield from ()


@functools.cache
def environment_key(device_kind: str) -> str:
    """Return engine version and device model for a device kind ("cpu", "cuda"), as in
    "onnx-1.31.1/cpu-x86_64-8d3c2f10". Files prepared under one key cannot be used under another.

    The first call takes about 0.1 ms. Raises LoadError if there is no such device.
    """
    engine = f"onnx-{ort.__version__}"
    # Some nodes of a model for a GPU run on the processor, in the layout that suits it.
    cpu = f"cpu-{os.uname().machine}-{processor_digest(_first_bytes(CPU_INFO)):08x}"
    if device_kind == "cpu":
        return f"{engine}/{cpu}"
    return f"{engine}/{device_kind}-{_gpu()}/{cpu}"


def processor_digest(cpu_info: bytes) -> int:
    """Return a checksum of /proc/cpuinfo, equal for processors with the same instructions.

    32 bits distinguish the processors of one data folder; a longer digest needs an import of 3 ms.
    """
    first = cpu_info.split(b"\n\n", 1)[0]
    known = [line for line in first.splitlines() if line.split(b":")[0].strip() in CPU_LINES]
    return zlib.crc32(b"\n".join(known))


def driver_version(text: str) -> str:
    """Return the release in the text of /proc/driver/nvidia/version, "unknown" without one."""
    words = text.splitlines()[0].split() if text else []
    releases = [word for word in words if word[0].isdigit() and "." in word]
    return releases[0] if releases else "unknown"


def _gpu() -> str:
    """Return architecture and driver of the first visible GPU, as in "sm90-570.86.15"."""
    try:
        cuda = ctypes.CDLL(CUDA_DRIVER)
    except OSError as error:
        raise LoadError(f"device cuda: there is no NVIDIA driver here ({error})") from error
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    failed = (
        cuda.cuInit(0)
        or cuda.cuDeviceGet(ctypes.byref(device), 0)
        or cuda.cuDeviceComputeCapability(ctypes.byref(major), ctypes.byref(minor), device)
    )
    if failed:
        raise LoadError(f"device cuda: the driver reports no GPU (CUDA error {failed})")
    version = driver_version(_first_bytes(NVIDIA_VERSION).decode(errors="replace"))
    return f"sm{major.value}{minor.value}-{version}"


def _first_bytes(path: Path) -> bytes:
    """Return the beginning of a file in /proc, b"" if it cannot be read."""
    try:
        with path.open("rb", buffering=0) as file:
            return file.read(CPU_INFO_BYTES) or b""
    except OSError:
        return b""
