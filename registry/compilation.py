"""Compiled models on the server's side: targets of revisions, results and states of builds.
Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Final

from registry.batching import rows_of
from registry.builds import Build, Compilation, Target
from registry.catalog import Deployed
from registry.model.bundles import Bundle, BundleFile
from registry.model.revisions import Revision
from registry.spec import candidate_of
from runtime_image.contract.compiled import (
    FOLDER,
    TIMING_CACHE,
    BuildOrder,
    CompiledFile,
    CompiledModel,
    CompilerName,
    OutputParity,
    ShapeRange,
)
from runtime_image.contract.signature import DYNAMIC, Signature, TensorSpec

TOLERANCE: Final = 0.01
"""Max relative difference between the outputs of both sessions. TF32, which GPUs compute FP32 with,
has 10 bits of mantissa; differences of 0.1 % to 0.5 % are usual after many layers."""
NOT_PROFILED: Final = "no deploy has measured this model on a device"
NO_COMPILER: Final = 'there is no compiler for the device "{kind}"'

_TIMING_PATH: Final = f"{FOLDER}/{TIMING_CACHE}"


@dataclass(frozen=True, slots=True)
class Compiled:
    """Result of a build. `files` are those of `model`, in its order.

    Times in milliseconds, by rows where a run is measured. `timing_key` is what the file with the
    compiler's measurements is valid for, "" without one. `made_s` in Unix seconds.
    """

    target: Target
    model: CompiledModel
    files: tuple[BundleFile, ...]
    parity: tuple[OutputParity, ...] = ()
    samples: int = 0
    build_s: float = 0.0
    ordinary_ms: dict[str, float] = field(default_factory=dict)
    compiled_ms: dict[str, float] = field(default_factory=dict)
    load_ms: float = 0.0
    memory_mib: float = 0.0
    timing_key: str = ""
    device: str = ""
    made_s: float = 0.0

    @property
    def timing_cache(self) -> BundleFile | None:
        """File with the compiler's measurements, None if the build made none."""
        return next((file for file in self.files if file.path == _TIMING_PATH), None)

    @property
    def served(self) -> tuple[CompiledModel, tuple[BundleFile, ...]]:
        """What replicas get, and its files: all but the compiler's measurements, which may have
        dozens of MiB and which no session reads."""
        described = tuple(one for one in self.model.files if one.name != TIMING_CACHE)
        files = tuple(one for one in self.files if one.path != _TIMING_PATH)
        return replace(self.model, files=described), files


@dataclass(frozen=True, slots=True)
class TargetState:
    """Target for one type of device, the state of its build, and the result if there is one."""

    target: Target
    build: Build
    compiled: Compiled | None = None


def target_of(deployed: Deployed, compiler: CompilerName) -> Target | str:
    """Return the target of a revision, or the reason why nothing is compiled, "" if its manifest
    does not ask for it.

    `compiler` is the server's: "onnxruntime" compiles for the CPU, and GPUs always have TensorRT.
    """
    revision, profile = deployed.revision, deployed.profile
    if revision.compilation is None:
        return ""
    if profile is None:
        return NOT_PROFILED
    kind = profile.device_kind
    chosen = compiler_of(kind, compiler)
    if chosen is None:
        return NO_COMPILER.format(kind=kind)
    try:
        ranges = ranges_of(revision.compilation, revision.signature, rows_of(revision, profile))
    except ValueError as error:
        return str(error)
    base = candidate.sha256 if (candidate := candidate_of(deployed)) else ""
    keeps_ordinary = revision.compilation.outside == "ordinary"
    return Target(revision.bundle, revision.model, base, kind, chosen, ranges, keeps_ordinary)


def compiler_of(device_kind: str, compiler: CompilerName) -> CompilerName | None:
    """Return the compiler for a kind of device, None if there is none."""
    if device_kind == "cuda":
        return "tensorrt"
    return "onnxruntime" if compiler == "onnxruntime" else None


def ranges_of(compilation: Compilation, signature: Signature, rows: int) -> tuple[ShapeRange, ...]:
    """Return the shapes of every input that a model is compiled for; `rows` is the size of a batch.

    A dynamic first axis goes from 1 to `rows`, unless the manifest says otherwise. Raises
    ValueError if the manifest does not say enough, or contradicts the model.
    """
    if signature.kind != "tensors":
        raise ValueError(f"expected inputs that are tensors, got {signature.kind}")
    given = {one.input: one for one in compilation.shapes}
    if unknown := sorted(given.keys() - {one.name for one in signature.inputs}):
        names = ", ".join(one.name for one in signature.inputs)
        raise ValueError(
            f"runtime.shapes: expected inputs of the model, which are {names}; got {unknown[0]!r}"
        )
    return tuple(_range(one, given.get(one.name), max(1, rows)) for one in signature.inputs)


def _range(tensor: TensorSpec, given: ShapeRange | None, rows: int) -> ShapeRange:
    if given is None:
        return _own_range(tensor, rows)
    for sizes in (given.smallest, given.usual, given.largest):
        if not tensor.accepts(sizes):
            raise ValueError(
                f"runtime.shapes.{tensor.name}: expected sizes that fit the model's tensor"
                f" {tensor.shape_text}, where {DYNAMIC} takes any; got {list(sizes)}"
            )
    return given


def _own_range(tensor: TensorSpec, rows: int) -> ShapeRange:
    if tensor.shape is None:
        raise ValueError(
            f"runtime.shapes.{tensor.name}: expected smallest, usual and largest sizes, as the"
            " model declares no shape; got nothing"
        )
    dynamic = [axis for axis, size in enumerate(tensor.shape) if size == DYNAMIC]
    if any(axis > 0 for axis in dynamic):
        axes = ", ".join(str(axis) for axis in dynamic if axis > 0)
        raise ValueError(
            f"runtime.shapes.{tensor.name}: expected smallest, usual and largest sizes, as its axes"
            f" {axes} are dynamic; got nothing"
        )
    first, full = list(tensor.shape), list(tensor.shape)
    if dynamic:
        first[0], full[0] = 1, rows
    return ShapeRange(tensor.name, tuple(first), tuple(full), tuple(full))


def order_of(target: Target, earlier: Compiled | None = None, delay_s: float = 0.0) -> BuildOrder:
    """Return the order of a build, with the compiler's measurements of the `earlier` one."""
    timing = earlier.timing_cache if earlier is not None else None
    return BuildOrder(
        compiler=target.compiler,
        ranges=target.ranges,
        tolerance=TOLERANCE,
        keeps_ordinary=target.keeps_ordinary,
        timing_key=earlier.timing_key if earlier is not None else "",
        timing_cache=CompiledFile(TIMING_CACHE, timing.size, timing.sha256) if timing else None,
        delay_s=delay_s,
    )


def estimate_s(target: Target, bundle: Bundle, done: list[tuple[Compiled, int]]) -> float | None:
    """Return how long a build will probably take, None without earlier ones.

    `done` are the earlier results with the sizes of their bundles in bytes. Builds of the same
    model count alone if there are any; else the time per byte of all with the same compiler.
    """
    like = [(one, size) for one, size in done if one.target.compiler == target.compiler]
    same = [
        one.build_s
        for one, _ in like
        if (one.target.bundle, one.target.model) == (target.bundle, target.model)
    ]
    if same:
        return mean(same)
    rates = [one.build_s / size for one, size in like if size]
    return mean(rates) * bundle.size if rates else None


def memory_mib(revision_mib: float, compiled: Iterable[Compiled]) -> float:
    """Return the memory of a replica, whichever of the compiled models it gets: that of both
    sessions if it keeps the ordinary one."""
    found = [
        revision_mib + one.memory_mib if one.target.keeps_ordinary else one.memory_mib
        for one in compiled
    ]
    return max(revision_mib, *found, 0.0)


def wants_trial(revision: Revision, compiler: CompilerName) -> BuildOrder | None:
    """Return the order that a trial gets to check that the compiler is there, None unless the
    manifest demands it."""
    wanted = revision.compilation
    if wanted is None or wanted.engine != "tensorrt":
        return None
    chosen = compiler_of(revision.device.kind, compiler) or "tensorrt"
    return BuildOrder(chosen, (), TOLERANCE)
