"""Compiled models: orders and results of builds, which compile a model for one kind of device.

A build is a replica with the role "build". It loads the model as a serving replica would, sends
LOADED, compiles, compares the outputs of both, and then answers FETCH like a trial.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, NotRequired, TypedDict

from runtime_image.contract.enrolment import FetchedFile

CompilerName = Literal["tensorrt", "onnxruntime"]
"""tensorrt: ONNX Runtime's TensorRT provider, for GPUs. onnxruntime: ONNX Runtime's own compiler
with the CPU provider, which shows every step of a build on a machine without a GPU."""
Form = Literal["context", "cache"]
"""context: one model whose whole graph is a compiled node (EPContext). cache: the model itself,
whose parts the provider finds compiled in a cache of engines."""
NODE: Final = b"EPContext"
"""`op_type` of a node that holds a compiled part, or the path of one: code of a device that its
author chose. Only a compiled model that a build of this server made may have such a node."""
FOLDER: Final = ".compiled"
"""Folder of compiled files in a replica's model folder; bundles must not contain this path."""
FILES_MAX: Final = 16
"""Max files of a compiled model."""
TIMING_CACHE: Final = "timing.cache"
"""Name of the file with a compiler's own measurements, which shorten later builds."""

OTHER_KEY: Final = "another key"
"""How `Loaded.not_compiled` begins if the files were made for another key: a new build helps."""


@dataclass(frozen=True, slots=True)
class ShapeRange:
    """Shapes of one input for which a model is compiled, both ends included.

    The three have the rank of the input; a fixed axis has the same size in all of them.
    """

    input: str
    smallest: tuple[int, ...]
    usual: tuple[int, ...]
    largest: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CompiledFile:
    """One file below `FOLDER`. Nothing but a file with this size and sha256 (hex) is opened."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class CompiledModel:
    """A model compiled for one kind of device.

    `key` names everything the files depend on: versions of ONNX Runtime, compiler and driver, the
    GPU's name and architecture, its MIG profile, the compiler's options, the ranges, the model. A
    replica with another key does not open them. The first of `files` is the one to load. Shapes
    outside `ranges` never reach the compiled session: they run in the ordinary one if the replica
    keeps it (`keeps_ordinary`, its memory is booked then), else the request is refused.
    """

    key: str
    compiler: CompilerName
    form: Form
    files: tuple[CompiledFile, ...]
    ranges: tuple[ShapeRange, ...]
    keeps_ordinary: bool = False


@dataclass(frozen=True, slots=True)
class BuildOrder:
    """Order of a build.

    `tolerance` bounds the relative difference between the outputs of both sessions. `timing_cache`
    is the file that an earlier build with this `timing_key` left, None without one. `delay_s` is
    added to the compilation, for trials of the machinery.
    """

    compiler: CompilerName
    ranges: tuple[ShapeRange, ...]
    tolerance: float
    keeps_ordinary: bool = False
    timing_key: str = ""
    timing_cache: CompiledFile | None = None
    delay_s: float = 0.0


class OutputParity(TypedDict):
    """Worst agreement of one output over all samples: compiled beside ordinary session."""

    output: str
    largest_difference: float
    relative_difference: float
    cosine: float


class BuildDescribed(TypedDict):
    """Description that a build sends for `Part.DESCRIPTION`. If `why_not` is not "", it is the
    reason why there are no files; `parity` is there whenever both sessions ran."""

    why_not: str
    compiled: NotRequired[dict[str, Any]]
    """`CompiledModel` as JSON; file `n` is sent for FETCH with aux `COMPILED_PART + n`."""
    timing_key: NotRequired[str]
    """Key of the timing cache; the cache is the file named `TIMING_CACHE`, if any."""
    parity: NotRequired[list[OutputParity]]
    samples: NotRequired[int]
    build_s: NotRequired[float]
    ordinary_ms: NotRequired[dict[str, float]]
    """Milliseconds per run of the ordinary session, by rows."""
    compiled_ms: NotRequired[dict[str, float]]
    load_ms: NotRequired[float]
    memory_mib: NotRequired[float]


COMPILED_PART: Final = 16
"""`aux` of the FETCH for the first file of a compiled model."""


class UpgradeRequest(TypedDict):
    """Body of UPGRADE: a compiled model whose files are now in the replica's model folder, or are
    to be fetched to it."""

    compiled: dict[str, Any]
    files: NotRequired[list[FetchedFile]]
    """Those to fetch."""


class UpgradeResult(TypedDict):
    """Body of UPGRADED: the session in use, and why it is not the compiled one, "" if it is."""

    session: str
    reason: str


def compiled_from_json(data: dict[str, Any]) -> CompiledModel:
    """Rebuild a compiled model from `asdict`. Raises TypeError on unknown or missing fields."""
    plain = dict(data)
    plain["files"] = tuple(CompiledFile(**file) for file in plain["files"])
    plain["ranges"] = ranges_from_json(plain["ranges"])
    return CompiledModel(**plain)


def order_from_json(data: dict[str, Any]) -> BuildOrder:
    """Rebuild a build's order from `asdict`. Raises TypeError on unknown or missing fields."""
    plain = {**data, "ranges": ranges_from_json(data["ranges"])}
    if (timing := plain.get("timing_cache")) is not None:
        plain["timing_cache"] = CompiledFile(**timing)
    return BuildOrder(**plain)


def ranges_from_json(data: Any) -> tuple[ShapeRange, ...]:
    """Rebuild shape ranges from `asdict`. Raises TypeError or ValueError on anything else."""
    return tuple(
        ShapeRange(
            str(one["input"]),
            *(tuple(map(int, one[end])) for end in ("smallest", "usual", "largest")),
        )
        for one in data
    )
