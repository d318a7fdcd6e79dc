"""Specification of a model: inputs, batching, prepared files, sample.

A trial that prepares a model states so in its report and then listens on its data socket for FETCH
frames, whose `aux` is a `Part`. It answers each with PART frames of the same id and an END.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from pathlib import PurePosixPath
from typing import Any, Final, Literal, NotRequired, TypedDict

from runtime_image.contract import dtypes
from runtime_image.contract.compiled import (
    BuildOrder,
    CompiledModel,
    compiled_from_json,
    order_from_json,
)
from runtime_image.contract.precision import Optimisation, optimisation_from_json
from runtime_image.contract.signature import DYNAMIC, Signature, TensorSpec

InputKind = Literal["tensor", "image", "audio", "bytes", "json"]
CHANNELS: Final = {"L": 1, "RGB": 3}
"""Channels of a picture by mode."""
EqualAxes = tuple[tuple[tuple[str, int], ...], ...]
"""Groups of (input name, axis) whose sizes must be equal, as in `RowVerdict`."""


@dataclass(frozen=True, slots=True)
class ImageForm:
    """Conversion of a picture to a tensor.

    The picture is converted to `mode` ("L" or "RGB"), resized to `size` (height, width) and laid
    out as `layout` (HW, HWC or CHW) with a leading batch axis of 1. Each value is then
    (pixel * scale - mean) / std, with mean and std per channel. `scale` None: instead of
    pixel * scale, pixels are spread over the `media_range` of the input's type.
    """

    size: tuple[int, int]
    mode: str = "RGB"
    layout: str = "CHW"
    scale: float | None = None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    invert: bool = False


@dataclass(frozen=True, slots=True)
class AudioForm:
    """Conversion of a sound to a tensor: mono at `rate_hz`, [1, samples], over `media_range` of the
    input's type.

    With `samples` the clip is cut or padded with zeros at its end to that many samples.
    """

    rate_hz: int = 16000
    samples: int | None = None


def media_range(kind: InputKind, dtype: str) -> tuple[int, int]:
    """Return the smallest and largest value of a pixel ("image") or sample ("audio") in an input of
    this type, before mean and std.

    A sound takes the full range of an integer type. A pixel has 8 bits, so that it keeps its own
    number in the types that hold it; INT8 gets 128 less, as quantised models expect.
    """
    if dtype not in dtypes.INTEGER_RANGE:
        return (0, 1) if kind == "image" else (-1, 1)
    if kind == "audio" or dtype == "INT8":
        return dtypes.INTEGER_RANGE[dtype]
    return 0, 255


@dataclass(frozen=True, slots=True)
class BytesForm:
    """Conversion of a raw body to a uint8 tensor [1, length]: cut, or padded with `pad`."""

    length: int | None = None
    pad: int = 0


@dataclass(frozen=True, slots=True)
class InputRule:
    """The manifest's rule for one input, in addition to its entry in the signature.

    `dtype` and `shape` are set only for functions without a model file.
    `finite`: a NaN or an infinity in this input is refused.
    """

    kind: InputKind = "tensor"
    finite: bool = False
    dtype: str = ""
    shape: tuple[int, ...] = ()
    image: ImageForm | None = None
    audio: AudioForm | None = None
    bytes: BytesForm | None = None


def declared_signature(rules: dict[str, InputRule]) -> Signature | None:
    """Return the inputs that the manifest declares for a handler, None if the model defines
    them. A lone input of raw bytes is the body itself, unless it has a length."""
    if {rule.kind for rule in rules.values()} == {"json"}:
        return Signature("json", (), ())
    if len(rules) == 1 and all(map(_is_raw, rules.values())):
        return Signature("bytes", tuple(TensorSpec(name, dtypes.BYTES, (1,)) for name in rules), ())
    if not rules or not all(rule.dtype for rule in rules.values()):
        return None
    inputs = tuple(TensorSpec(name, rule.dtype, rule.shape) for name, rule in rules.items())
    return Signature("tensors", inputs, ())


def _is_raw(rule: InputRule) -> bool:
    has_length = rule.bytes is not None and rule.bytes.length is not None
    return rule.kind == "bytes" and not rule.dtype and not has_length


def form_shape(rule: InputRule) -> tuple[int, ...] | None:
    """Return the shape of the tensors that a form makes, with a dynamic first axis; None without a
    form."""
    if (picture := rule.image) is not None:
        if picture.layout == "HW":
            return (DYNAMIC, *picture.size)
        channels = CHANNELS[picture.mode]
        is_last = picture.layout == "HWC"
        return (DYNAMIC, *picture.size, channels) if is_last else (DYNAMIC, channels, *picture.size)
    if rule.audio is not None:
        return DYNAMIC, rule.audio.samples or DYNAMIC
    if rule.bytes is not None:
        return DYNAMIC, rule.bytes.length or DYNAMIC
    return None


@dataclass(frozen=True, slots=True)
class OutputRule:
    """Readable form of a JSON answer: the `top_k` best `labels` of output `tensor`."""

    tensor: str = ""
    labels: tuple[str, ...] = ()
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """Options of one session of a model file.

    `file` is relative to the model folder. `optimise`: rewrite the graph at load; files that were
    optimised ahead do not need it. `prepack`: copy the weights into the layout that the kernels
    prefer; without it they stay mapped from the file.
    """

    file: str
    optimise: bool = True
    prepack: bool = True


@dataclass(frozen=True, slots=True)
class Preparation:
    """Sessions of a prepared model, for one engine version on one kind of device.

    `key` identifies both; a replica with another key cannot use the preparation. `quick` has the
    shortest time to the first answer. `fast` uses the least CPU time once it is loaded; it is None
    if `quick` is as good or the memory does not hold both.
    """

    key: str
    quick: SessionPlan
    fast: SessionPlan | None = None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything a replica needs to load and serve one revision. `revision` is "digits@3".

    `model` and `handler` are file names inside the replica's model folder, "" for none.
    `batch_max` is 1 if batching is off; a partial batch waits `batch_wait_ms` for more rows.
    `sample` maps inputs to "@file" or JSON values. `prepare`: a trial also makes the files of a
    preparation. `batch_unproven`: the owner requests batching although no proof shows that rows
    are independent; a trial then refuses the model if its comparison refutes it. `equal_axes`
    as in `RowVerdict`: a request that violates one runs alone. `may_rerun`: the function allows a
    second run of a request. `oip_name` and `oip_version` name the model in answers of the Open
    Inference Protocol, "" for the parts of `revision`. `optimise`: a trial also makes candidates of
    other precision. `optimised` is the chosen one's file in the model folder, which is served
    instead of `model`, "" for none. `compiled` is the compiled model to serve with, if its key
    fits. `build`: what a replica with the role "build" compiles.
    """

    revision: str
    engine: str = "onnx"
    model: str = ""
    handler: str = ""
    inputs: dict[str, InputRule] = field(default_factory=dict)
    output: OutputRule = field(default_factory=OutputRule)
    batching: bool = True
    batch_max: int = 1
    batch_wait_ms: float = 0.0
    inline: bool = False
    timeout_s: float = 60.0
    sample: dict[str, Any] = field(default_factory=dict)
    preparation: Preparation | None = None
    prepare: bool = False
    batch_unproven: bool = False
    equal_axes: EqualAxes = ()
    may_rerun: bool = True
    oip_name: str = ""
    oip_version: str = ""
    optimise: Optimisation | None = None
    optimised: str = ""
    compiled: CompiledModel | None = None
    build: BuildOrder | None = None


def to_json(spec: ModelSpec) -> dict[str, Any]:
    """Return the spec as plain JSON data; `from_json` is its inverse."""
    return asdict(spec)


def from_json(data: dict[str, Any]) -> ModelSpec:
    """Rebuild a spec from `to_json`. Raises TypeError on unknown fields."""
    plain = dict(data)
    plain["inputs"] = {name: _rule(rule) for name, rule in plain.get("inputs", {}).items()}
    output = dict(plain.get("output", {}))
    plain["output"] = OutputRule(**{**output, "labels": tuple(output.get("labels", ()))})
    for name, rebuild in _OPTIONAL.items():
        if plain.get(name) is not None:
            plain[name] = rebuild(plain[name])
    plain["equal_axes"] = equal_axes_from_json(plain.get("equal_axes", ()))
    return ModelSpec(**plain)


def equal_axes_from_json(data: Any) -> EqualAxes:
    """Rebuild `ModelSpec.equal_axes`. Raises TypeError or ValueError on anything else."""
    return tuple(tuple((str(name), int(axis)) for name, axis in group) for group in data)


def preparation_from_json(data: dict[str, Any]) -> Preparation:
    """Rebuild a preparation from `asdict`. Raises TypeError on unknown or missing fields."""
    plain = dict(data)
    plain["quick"] = SessionPlan(**plain["quick"])
    if plain.get("fast") is not None:
        plain["fast"] = SessionPlan(**plain["fast"])
    return Preparation(**plain)


_OPTIONAL: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "preparation": preparation_from_json,
    "optimise": optimisation_from_json,
    "compiled": compiled_from_json,
    "build": order_from_json,
}


def _rule(data: dict[str, Any]) -> InputRule:
    plain = dict(data)
    plain["shape"] = tuple(plain.get("shape", ()))
    if plain.get("image") is not None:
        image = plain["image"]
        tuples = {key: tuple(image[key]) for key in ("size", "mean", "std") if key in image}
        plain["image"] = ImageForm(**{**image, **tuples})
    if plain.get("audio") is not None:
        plain["audio"] = AudioForm(**plain["audio"])
    if plain.get("bytes") is not None:
        plain["bytes"] = BytesForm(**plain["bytes"])
    return InputRule(**plain)


FOLDER: Final = ".prepared"
"""Folder of prepared files in a replica's model folder; bundles must not contain this path."""
GRAPH_FILE: Final = "graph.onnx"
WEIGHTS_FILE: Final = "weights.bin"
"""Location of the weights, as the prepared graph names it."""
PART_MAX: Final = 1024 * 1024
"""Max bytes of one PART."""
DESCRIPTION_MAX: Final = 64 * 1024
PREPARES: Final = "prepares"
"""Key of a trial's report: whether the trial now prepares the model."""


class Part(IntEnum):
    """Part of a prepared model; `aux` of a FETCH."""

    DESCRIPTION = 0
    GRAPH = 1
    WEIGHTS = 2
    OPTIMISED = 3


class Timing(TypedDict):
    """Times of one kind of session: load and first run in milliseconds, CPU time per run in
    milliseconds by rows."""

    load_ms: float
    first_ms: float
    cpu_ms: dict[str, float]


class Described(TypedDict):
    """Description of prepared files. If `why_not` is not "", it is the reason why there are none,
    and the other keys are missing."""

    why_not: str
    preparation: NotRequired[dict[str, Any]]
    """`Preparation` as JSON."""
    sizes: NotRequired[list[int]]
    """Bytes of the graph file and of the weights file, 0 for a missing file."""
    original: NotRequired[Timing]
    quick: NotRequired[Timing]
    fast: NotRequired[Timing | None]


def files_max(bundle_bytes: int) -> int:
    """Return the max bytes of all prepared files of a bundle. Constant folding makes graphs larger;
    the bound keeps one graph from filling the disk."""
    return 2 * bundle_bytes + 64 * 1024 * 1024


def patience_s(bundle_bytes: int) -> float:
    """Return the seconds a trial has to prepare a model, and its server to fetch the files."""
    return 30.0 + 30.0 * bundle_bytes / 2**30


JSON: Final = "application/json"
OCTETS: Final = "application/octet-stream"
CONTENT_TYPES: Final = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
    ".bmp": "image/bmp",
    ".gif": "image/gif",
    ".wav": "audio/wav",
    ".flac": "audio/flac",
    ".ogg": "audio/ogg",
    ".npy": "application/x-npy",
    ".json": JSON,
}
"""Content types of sample files by suffix; any other file is sent as raw bytes."""


def content_type(path: str) -> str:
    """Return the content type with which a sample file is sent."""
    return CONTENT_TYPES.get(PurePosixPath(path).suffix.lower(), OCTETS)


def file_of(sample: Mapping[str, Any]) -> str:
    """Return the bundle path of the sample's file, "" if the sample consists of JSON values.

    Raises ValueError if there are other inputs beside a file: it is the request's whole body.
    """
    files = [value[1:] for value in sample.values() if _is_file(value)]
    if files and len(sample) > 1:
        raise ValueError("a sample with a file must have that file as its only input")
    return files[0] if files else ""


def _is_file(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("@")
