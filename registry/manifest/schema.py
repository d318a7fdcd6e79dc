"""Schema of function.toml: keys, types and ranges, and the rules of its input tables.

These classes exist only while parsing: `document` converts the values to plain dataclasses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from registry.errors import BadRequest
from registry.manifest.checks import NOTHING, Path, Section, Text, refused, validate
from registry.manifest.health import HealthTable
from registry.manifest.oip import OipTable
from registry.manifest.openai import OpenAITable
from registry.manifest.optimise import OptimiseTable
from registry.manifest.output import OutputTable
from registry.manifest.park import ParkTable
from registry.manifest.python import PythonTable
from registry.manifest.runtime import DIMENSION_MAX, RANK_MAX, RuntimeTable
from registry.manifest.server import ServerTable
from registry.model.functions import EXCHANGE_MAX_S
from registry.names import NAME_RULE, check_labels, is_name
from runtime_image.contract import dtypes
from runtime_image.contract.model import (
    CHANNELS,
    AudioForm,
    BytesForm,
    ImageForm,
    InputRule,
    form_shape,
)

RESERVED_ENGINES: Final = ("genai", "container")
LABELS_MAX: Final = 32
INPUTS_MAX: Final = 64
CHANNELS_MAX: Final = 3

SCHEMA: Final = 1
ENGINES: Final = "onnx, python, tensorrt or auto"
Side = Annotated[int, Field(ge=1, le=16_384)]
Number = Annotated[float, Field(ge=-1e9, le=1e9)]
PerChannel = Annotated[
    list[Number],
    Field(min_length=1, max_length=CHANNELS_MAX),
    BeforeValidator(lambda value: [value] if type(value) in (int, float) else value),
]
"""One number for all channels, or a list with one number per channel."""


class ScalingTable(Section):
    """Table [scaling]."""

    min: int = Field(default=0, ge=0, le=1000)
    """Replicas that are kept ready at all times."""
    max: int = Field(default=1, ge=1, le=1000, validate_default=True)
    """Maximum number of replicas over all revisions, at least `min`."""
    idle_s: float = Field(default=300.0, ge=0, le=31_536_000)
    """Idle seconds before a replica stops. A function whose file has no such key gets `FN_IDLE_S`
    as it is at the deploy, and keeps it until the next one or `fnctl scale NAME --idle`."""
    spread: bool = True
    """Whether replicas prefer different hosts."""
    file_hosts: int = Field(default=1, ge=0, le=100)
    """Number of hosts that keep the files of the model ahead of need."""
    preemptible: bool | None = None
    """Whether other users of a Kubernetes cluster may take the place of replicas, if their Pods are
    more important; by default if `min` is 0. Such an end is no failure, and calls that waited are
    placed anew. On this machine and on hosts by SSH, where fngate alone starts replicas, it has no
    effect."""

    @field_validator("max")
    @classmethod
    def _at_least_min(cls, value: int, info: ValidationInfo) -> int:
        least = info.data.get("min", 0)
        if value < least:
            raise PydanticCustomError("range", "at least scaling.min ({least})", {"least": least})
        return value


class DeviceTable(Section):
    """Table [device]."""

    kind: Literal["any", "cpu", "cuda"] = "any"
    """Device of the replicas. `any` prefers a GPU with room and falls back to a CPU slot. With
    `count` above 1 it means `cuda`."""
    memory_mib: int = Field(default=0, ge=0, le=4_194_304)
    """Memory cap of a replica in MiB; 0 for the server's default. With `[park]` a replica has
    beside it what a sleep takes, as the trial has measured; the trial itself has not."""
    share: float = Field(default=1.0, ge=0.01, le=1)
    """Share of a GPU that a replica takes. 1 gives it a GPU of its own."""
    count: int = Field(default=1, ge=1, le=64)
    """Number of GPUs of one host that a replica takes. More than one are whole, equal GPUs, no MIG
    slices, with `share = 1`. Only for servers, and for Python functions without a model."""
    host: dict[str, str] = Field(default={})
    """Labels that the host of a replica must have, such as `{zone = "a"}`. The local host has the
    labels of `FN_HOST_LABELS`."""

    @field_validator("host")
    @classmethod
    def _are_labels(cls, value: dict[str, str]) -> dict[str, str]:
        try:
            return check_labels(value)
        except BadRequest as error:
            expected = error.message.removeprefix("labels: expected ").partition("; got ")[0]
            raise PydanticCustomError("labels", "{text}", {"text": expected}) from None


class BatchingTable(Section):
    """Table [batching]."""

    mode: Literal["auto", "always", "off"] = "auto"
    """Whether requests share a run. `auto`: if an analysis of the graph proves that rows are
    independent. `always`: unless a comparison of runs refutes it. `off`: never."""
    max_size: int = Field(default=0, ge=0, le=65_536)
    """Maximum rows of a batch; 0 for the size beyond which the deploy measured no gain."""
    wait_ms: float = Field(default=0.0, ge=0, le=1000)
    """Milliseconds that an incomplete batch waits for more requests."""


class LimitsTable(Section):
    """Table [limits]; `server.limits` refuses the keys of the other kind of function."""

    timeout_s: float = Field(default=60.0, ge=0.1, le=86_400)
    """Maximum seconds of one run; with `[python]` also of one value of a stream. Refused with
    `[server]`, which has `max_s`."""
    wait_s: float = Field(default=55.0, ge=0, le=3600)
    """Maximum seconds that a request is held before it starts, unless it has `Prefer: wait`. The
    default with `[server]` is 1.5 times the start that the deploy measured, from 55 to 600."""
    queue: int = Field(default=2000, ge=1, le=100_000)
    """Maximum requests that each gateway process holds."""
    body_mib: int = Field(default=64, ge=1, le=256)
    """Maximum size of a request body in MiB. Refused with `[server]`, whose bodies are streams of
    any size."""
    retry: Literal["auto", "always", "never"] = "auto"
    """Whether a request that had started runs again after its replica died. `auto`: unless the
    function has a `handler.py`; with `[server]`, if its method is idempotent."""
    concurrency: int = Field(default=32, ge=1, le=10_000)
    """Maximum exchanges of a replica at once: requests, streams and WebSockets. Only with
    `[server]` and `[python]`. With `[python]` calls of `predict` at once, by default 1 of a `def`
    and 32 of an `async def`; with batches twice `batching.max_size`."""
    first_byte_s: float = Field(default=300.0, ge=0.1, le=86_400)
    """Maximum seconds from the sending of a request to the first byte of its answer. Only with
    `[server]` and `[python]`."""
    stall_s: float = Field(default=0.0, ge=0, le=86_400)
    """Maximum seconds between two bytes of an answer, also if its client reads none; 0 for no
    limit. Only with `[server]` and `[python]`."""
    max_s: float = Field(default=EXCHANGE_MAX_S, ge=0.1, le=86_400)
    """Maximum seconds of a whole exchange, such as a stream. WebSockets have no limit while this is
    600; another value ends them, too. Only with `[server]` and `[python]`."""
    drain_s: float | None = Field(default=None, ge=0, le=86_400)
    """Seconds that open exchanges have to end when their replica stops; then they are cut. `max_s`
    by default. Only with `[server]` and `[python]`."""
    websockets: Literal["count", "ignore"] = "count"
    """Whether WebSockets count as exchanges, or take no slot and keep no replica awake. Only with
    `[server]`."""


class InputTable(Section):
    """Table [input.NAME]; `input_rule` refuses keys that do not belong to `kind`."""

    kind: Literal["tensor", "image", "audio", "bytes", "json"] = "tensor"
    """Form of the input in a request. The other keys depend on it."""
    finite: bool = False
    """Whether NaN and infinity are refused."""
    dtype: str | None = Field(default=None, max_length=8)
    """Element type, such as `FP32`. Required for `engine = "python"` only; a model's graph declares
    its own."""
    shape: list[Annotated[int, Field(ge=-1, le=DIMENSION_MAX)]] | None = Field(
        default=None, max_length=RANK_MAX
    )
    """Dimensions, -1 for a dynamic one. Required for `engine = "python"` only."""
    size: list[Side] | None = Field(default=None, min_length=2, max_length=2)
    """`[height, width]` of the picture in pixels. Required for pictures."""
    mode: Literal["L", "RGB"] | None = None
    """Colour mode: grey (`L`) or `RGB`, the default."""
    layout: Literal["HW", "HWC", "CHW"] | None = None
    """Order of the tensor's axes, by default `CHW`. `HW` is for grey pictures."""
    scale: Number | None = None
    """Factor of each pixel: (pixel * `scale` - `mean`) / `std`. 1/255 by default. If none of the
    three is given, pixels are 0 to 1 in floats, 0 to 255 in integers and -128 to 127 in INT8."""
    mean: PerChannel | None = None
    """Number that is subtracted, or one number per channel. 0 by default."""
    std: PerChannel | None = None
    """Number that divides, or one number per channel. 1 by default."""
    invert: bool | None = None
    """Whether the picture is inverted before anything else. False by default."""
    rate_hz: int | None = Field(default=None, ge=1000, le=384_000)
    """Sample rate that a sound is converted to. 16000 by default."""
    samples: int | None = Field(default=None, ge=1, le=100_000_000)
    """Samples that a clip is cut to, or padded to with silence."""
    length: int | None = Field(default=None, ge=1, le=268_435_456)
    """Bytes that a body is cut to, or padded to with `pad`."""
    pad: int | None = Field(default=None, ge=0, le=255)
    """Byte for padding. 0 by default."""


class Document(Section):
    """The whole file."""

    schema_: int = Field(alias="schema")
    """Version of this format: 1."""
    name: str = ""
    """Name of the function. `fnctl deploy --name` overrides it; without either, the file's or
    folder's name is used."""
    model: Path = ""
    """Model file, relative to this folder. Optional if the folder has exactly one `.onnx` file."""
    labels: dict[Text, Text] = Field(default={}, max_length=LABELS_MAX)
    """Labels of the function for people and dashboards."""
    runtime: RuntimeTable = RuntimeTable()
    """Engine."""
    server: ServerTable = ServerTable()
    """HTTP server of the function."""
    python: PythonTable = PythonTable()
    """Python packages of the function, whose code is `handler.py`, or a command of `[server]`; an
    empty table for one with all defaults."""
    openai: OpenAITable = OpenAITable()
    """API of a server that answers at fngate's `/v1`; an empty table for one with all defaults."""
    oip: OipTable = OipTable()
    """Name and version in the Open Inference Protocol."""
    scaling: ScalingTable = ScalingTable()
    """Number of replicas."""
    device: DeviceTable = DeviceTable()
    """Device of each replica."""
    batching: BatchingTable = BatchingTable()
    """Batching of requests."""
    optimise: OptimiseTable = OptimiseTable()
    """Precision of the model."""
    limits: LimitsTable = LimitsTable()
    """Limits of requests."""
    health: HealthTable = HealthTable()
    """How the server is watched while it serves; only with `[server]`."""
    park: ParkTable = ParkTable()
    """How the server sleeps instead of being stopped; only with `[server]`."""
    input: dict[Text, InputTable] = Field(default={}, max_length=INPUTS_MAX)
    """Form of one input. The table is named after the input."""
    output: OutputTable = OutputTable()
    """Labels in answers."""
    sample: dict[Text, Any] = Field(default={}, max_length=INPUTS_MAX)
    """Example value of each input: JSON, or `"@FILE"` for a file of the folder. A deploy runs it;
    `fnctl invoke` without an input sends it. With `[server]` it is a request, or a list of
    requests; with `[python]` inputs as of a model."""


def check_document(data: Mapping[str, Any]) -> Document:
    """Validate the whole file. Raises BadManifest."""
    schema = data.get("schema", NOTHING)
    if type(schema) is not int or schema != SCHEMA:
        raise refused("schema", str(SCHEMA), schema)
    runtime = data.get("runtime")
    engine = runtime.get("engine") if isinstance(runtime, dict) else None
    if engine in RESERVED_ENGINES:
        raise refused("runtime.engine", ENGINES, engine, "is reserved, not available yet")
    document = validate(Document, data)
    check_manifest_name(document.name)
    return document


def check_manifest_name(name: str) -> None:
    """Raise BadManifest if a name is given and is not valid."""
    if name and not is_name(name):
        raise refused("name", NAME_RULE, name)


_KEYS_OF: Final[dict[str, frozenset[str]]] = {
    "image": frozenset({"size", "mode", "layout", "scale", "mean", "std", "invert"}),
    "audio": frozenset({"rate_hz", "samples"}),
    "bytes": frozenset({"length", "pad"}),
    "tensor": frozenset({"dtype", "shape"}),
    "json": frozenset(),
}
_PIXELS_MAX: Final = 50_000_000


def input_rule(name: str, table: InputTable, engine: str, handler: str = "") -> InputRule:
    """Convert one input table to a rule. Only with a `handler` an input of engine "onnx" may be
    JSON. Raises BadManifest if its keys contradict each other."""
    at = f"input.{name}"
    _check_keys(at, table)
    if engine == "python":
        _check_declared(at, table)
    else:
        _check_left_to_the_graph(at, table, handler)
    return InputRule(
        kind=table.kind,
        finite=table.finite,
        dtype=table.dtype or "",
        shape=tuple(table.shape or ()),
        image=_image(at, table) if table.kind == "image" else None,
        audio=_audio(table) if table.kind == "audio" else None,
        bytes=_bytes(table) if table.kind == "bytes" else None,
    )


def declared(rules: Mapping[str, InputRule]) -> dict[str, InputRule]:
    """Return the rules of a function without a model file, each completed with dtype and shape.

    Images, audio clips and bytes get the tensor that their form produces, with a dynamic first
    axis. A single input of raw bytes, and json inputs, get none. Raises BadManifest if there are no
    rules, or if json is combined with another kind.
    """
    if not rules:
        raise refused("input", 'at least one [input.NAME] for engine = "python"', NOTHING)
    check_json_alone(rules)
    if len(rules) == 1 and _is_raw(next(iter(rules.values()))):
        return dict(rules)
    return {name: _with_tensor(rule) for name, rule in rules.items()}


def check_json_alone(rules: Mapping[str, InputRule]) -> None:
    """Raise BadManifest if JSON is combined with another kind: it has no tensors."""
    kinds = {rule.kind for rule in rules.values()}
    if "json" in kinds and len(kinds) > 1:
        raise refused("input", 'only kind = "json" beside an input of that kind', sorted(kinds))


def _check_keys(at: str, table: InputTable) -> None:
    given = table.model_fields_set - {"kind", "finite"}
    for key in sorted(given - _KEYS_OF[table.kind]):
        owners = [kind for kind, keys in _KEYS_OF.items() if key in keys]
        raise refused(f"{at}.kind", f"{owners[0]!r} where there is {key!r}", table.kind)
    if table.finite and table.kind in ("bytes", "json"):
        raise refused(f"{at}.finite", f"false with kind = {table.kind!r}", True)


def _check_declared(at: str, table: InputTable) -> None:
    if table.kind != "tensor":
        return
    if table.dtype not in dtypes.SERVED:
        expected = f"one of {', '.join(sorted(dtypes.SERVED))}"
        raise refused(f"{at}.dtype", expected, table.dtype or NOTHING)
    if table.shape is None:
        raise refused(f"{at}.shape", "a list of dimensions, -1 for a dynamic one", NOTHING)
    if 0 in table.shape:
        raise refused(f"{at}.shape", "dimensions of 1 and more, or -1", table.shape)


def _check_left_to_the_graph(at: str, table: InputTable, handler: str) -> None:
    if table.kind == "json" and not handler:
        expected = "tensor, image, audio or bytes for a model without handler.py"
        raise refused(f"{at}.kind", expected, "json")
    for key, value in (("dtype", table.dtype), ("shape", table.shape)):
        if value is not None:
            raise refused(f"{at}.{key}", "nothing, because the model's graph defines it", value)


def _image(at: str, table: InputTable) -> ImageForm:
    if table.size is None:
        raise refused(f"{at}.size", "[height, width] in pixels", NOTHING)
    height, width = table.size
    if height * width > _PIXELS_MAX:
        raise refused(f"{at}.size", f"at most {_PIXELS_MAX} pixels", table.size)
    mode, layout = table.mode or "RGB", table.layout or "CHW"
    if layout == "HW" and mode != "L":
        raise refused(f"{at}.layout", "HWC or CHW, because mode RGB has channels", layout)
    if table.scale == 0:
        raise refused(f"{at}.scale", "a number other than 0", table.scale)
    std = _per_channel(f"{at}.std", table.std, mode, 1.0)
    if 0 in std:
        raise refused(f"{at}.std", "numbers other than 0", table.std)
    return ImageForm(
        size=(height, width),
        mode=mode,
        layout=layout,
        scale=_scale(table),
        mean=_per_channel(f"{at}.mean", table.mean, mode, 0.0),
        std=std,
        invert=bool(table.invert),
    )


def _scale(table: InputTable) -> float | None:
    """Return the factor of each pixel, None for the range of the input's type. A mean or a std
    alone is for pixels of 0 to 1."""
    if table.scale is None and (table.mean is not None or table.std is not None):
        return 1 / 255
    return table.scale


def _per_channel(
    key: str, value: list[float] | None, mode: str, default: float
) -> tuple[float, ...]:
    if value is None:
        return (default,)
    if len(value) not in (1, CHANNELS[mode]):
        raise refused(key, f"1 or {CHANNELS[mode]} numbers for mode {mode}", value)
    return tuple(value)


def _audio(table: InputTable) -> AudioForm:
    return AudioForm(rate_hz=table.rate_hz or 16000, samples=table.samples)


def _bytes(table: InputTable) -> BytesForm:
    return BytesForm(length=table.length, pad=table.pad or 0)


def _is_raw(rule: InputRule) -> bool:
    return rule.kind == "bytes" and (rule.bytes is None or rule.bytes.length is None)


def _with_tensor(rule: InputRule) -> InputRule:
    shape = form_shape(rule)
    if shape is None:
        return rule
    return replace(rule, dtype="UINT8" if rule.kind == "bytes" else "FP32", shape=shape)
