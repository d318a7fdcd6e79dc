"""A model's config.pbtxt as the settings that fngate has, with a finding for everything else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from admin.cli.repository.fields import MODEL, TYPES, Findings
from admin.cli.repository.text_format import MalformedText, parse_text
from admin.cli.repository.values import Values, read_values
from registry.bundles.foreign_formats import by_suffix

MODEL_FILE: Final = "model.onnx"
"""Triton's default for ONNX models."""
PLATFORMS: Final = ("", "onnxruntime_onnx")
BACKENDS: Final = ("", "onnxruntime")
WAIT_MS_MAX: Final = 1000
ROWS_MAX: Final = 65_536
REPLICAS_MAX: Final = 1000
_PYTHON: Final = "its model.py may become a handler.py"
_ENSEMBLE: Final = "call its models one after the other, or from a handler.py"
_TENSORFLOW: Final = "convert it: python -m tf2onnx.convert"
_INSTEAD: Final = {
    "tensorrt": by_suffix("model.plan"),
    "pytorch": by_suffix("model.pt"),
    "python": _PYTHON,
    "ensemble": _ENSEMBLE,
    "tensorflow": _TENSORFLOW,
}
"""Advice by the beginning of a platform's or backend's name."""
_DEVICES: Final = {"KIND_CPU": "cpu", "KIND_GPU": "cuda"}


@dataclass(frozen=True, slots=True)
class TensorConfig:
    """One `input` or `output`, without the axis of rows if `max_batch_size` is above 0."""

    side: Literal["input", "output"]
    name: str
    dtype: str
    dims: tuple[int, ...]
    line: int
    label_file: str = ""


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """Which versions are deployed: the `latest` highest ones, those of `specific`, or all."""

    kind: Literal["latest", "all", "specific"] = "latest"
    latest: int = 1
    specific: tuple[int, ...] = ()
    line: int = 0


@dataclass(frozen=True, slots=True)
class WarmupInput:
    """One input of the sample. `source` is "zero", "random", or a file's name after "@"."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    source: str
    line: int


@dataclass(frozen=True, slots=True)
class Warmup:
    """The first `model_warmup`: the request that becomes the sample."""

    rows: int
    inputs: tuple[WarmupInput, ...]
    line: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What is used of a config.pbtxt. `max_batch_size` is None and `replicas` 0 if not given;
    `wait_ms` is None without dynamic batching."""

    max_batch_size: int | None = None
    inputs: tuple[TensorConfig, ...] = ()
    outputs: tuple[TensorConfig, ...] = ()
    policy: VersionPolicy = VersionPolicy()
    replicas: int = 0
    device: str = ""
    wait_ms: float | None = None
    model_file: str = MODEL_FILE
    warmup: Warmup | None = None
    batch_line: int = 0

    @property
    def has_rows(self) -> bool:
        """Whether dims lack the axis of rows."""
        return bool(self.max_batch_size)


def read_config(text: str, folder: str, findings: Findings) -> ModelConfig:
    """Return what is used of the text of the config.pbtxt in the folder of that name."""
    try:
        source = parse_text(text)
    except MalformedText as error:
        findings.refuse(error.line, "", str(error))
        return ModelConfig()
    values = read_values(source, MODEL, findings)
    _check_identity(values, folder, findings)
    _say_parameters(values, findings)
    replicas, device = _instances(values, findings)
    rows = _rows(values, findings)
    return ModelConfig(
        max_batch_size=rows,
        inputs=_tensors(values, "input", findings),
        outputs=_tensors(values, "output", findings),
        policy=_policy(values, findings),
        replicas=replicas,
        device=device,
        wait_ms=_wait_ms(values, rows, findings),
        model_file=_model_file(values, findings),
        warmup=_warmup(values, findings),
        batch_line=values.line_of("max_batch_size"),
    )


def _check_identity(values: Values, folder: str, findings: Findings) -> None:
    name = values.text("name")
    if name not in ("", folder):
        text = f"expected {folder!r}, the folder's name, got {name!r}"
        findings.refuse(values.line_of("name"), "name", text)
    for key, expected in (("platform", PLATFORMS), ("backend", BACKENDS)):
        got = values.text(key)
        if got not in expected:
            advice = next((text for start, text in _INSTEAD.items() if got.startswith(start)), "")
            text = f"expected {expected[1]}, got {got!r}" + (f"; {advice}" if advice else "")
            findings.refuse(values.line_of(key), key, text)


def _say_parameters(values: Values, findings: Findings) -> None:
    for one in values.messages("parameters"):
        text = "fngate has no parameters of backends"
        findings.ignore(one.line, f"parameters.{one.text('key')[:80]}", text)


def _rows(values: Values, findings: Findings) -> int | None:
    key = "max_batch_size"
    if key not in values:
        return None
    rows, line = values.number(key), values.line_of(key)
    if rows < 0:
        findings.refuse(line, key, f"expected 0 or more, got {rows}")
    if rows > ROWS_MAX:
        findings.ignore(line, key, f"at most {ROWS_MAX} rows are joined")
    return max(0, min(rows, ROWS_MAX))


def _wait_ms(values: Values, rows: int | None, findings: Findings) -> float | None:
    if "dynamic_batching" not in values:
        return None
    batching = values.message("dynamic_batching")
    key = "max_queue_delay_microseconds"
    wait_us, at = batching.number(key), f"dynamic_batching.{key}"
    if rows == 0:
        findings.ignore(batching.line, "dynamic_batching", "max_batch_size is 0")
        return None
    if wait_us < 0:
        findings.refuse(batching.line_of(key), at, f"expected 0 or more, got {wait_us}")
    if wait_us > WAIT_MS_MAX * 1000:
        findings.ignore(batching.line_of(key), at, f"a batch waits at most {WAIT_MS_MAX} ms")
    return min(max(0, wait_us) / 1000, float(WAIT_MS_MAX))


def _instances(values: Values, findings: Findings) -> tuple[int, str]:
    """Return the maximum of replicas, 0 if it is not given, and the kind of device, "" for any."""
    total, kinds = 0, set()
    for group in values.messages("instance_group"):
        at, gpus = "instance_group", len(group.numbers("gpus"))
        if group.flag("passive"):
            findings.ignore(group.line_of("passive"), f"{at}.passive", "the group is left out")
            continue
        count = group.number("count")
        if count < 0:
            findings.refuse(group.line_of("count"), f"{at}.count", f"expected 1, got {count}")
        total += max(1, count) * max(1, gpus)
        kinds.add(group.text("kind"))
        if gpus:
            text = "the server chooses the GPUs; scaling.max counts a replica for each"
            findings.ignore(group.line_of("gpus"), f"{at}.gpus", text)
    if len(kinds) > 1:
        text = f"a function has one kind of device: any, instead of {', '.join(sorted(kinds))}"
        findings.ignore(values.line_of("instance_group"), "instance_group.kind", text)
        kinds = set()
    if total > REPLICAS_MAX:
        text = f"a function has at most {REPLICAS_MAX} replicas"
        findings.ignore(values.line_of("instance_group"), "instance_group.count", text)
    return min(total, REPLICAS_MAX), _DEVICES.get(next(iter(kinds), ""), "")


def _tensors(
    values: Values, side: Literal["input", "output"], findings: Findings
) -> tuple[TensorConfig, ...]:
    found: dict[str, TensorConfig] = {}
    for one in values.messages(side):
        name, dims = one.text("name"), one.numbers("dims")
        path = f"{side}.{name}" if name else side
        if not name:
            findings.refuse(one.line, path, "expected a name, got none")
        elif name in found:
            findings.refuse(one.line, path, f"there are two {side}s of that name")
        dtype = TYPES.get(one.text("data_type"), "")
        if not dtype:
            findings.refuse(one.line_of("data_type"), path, "expected a data_type, got none")
        if "reshape" in one and one.message("reshape").numbers("shape") != dims:
            shape = list(one.message("reshape").numbers("shape"))
            text = f"shapes go through unchanged: clients would have to send {shape}, not"
            findings.refuse(one.line_of("reshape"), f"{path}.reshape", f"{text} {list(dims)}")
        if any(size < -1 or size == 0 for size in dims):
            text = f"expected dims of 1 and more, or -1, got {list(dims)}"
            findings.refuse(one.line_of("dims"), path, text)
        found[name] = TensorConfig(side, name, dtype, dims, one.line, one.text("label_filename"))
    return tuple(found.values())


def _policy(values: Values, findings: Findings) -> VersionPolicy:
    policy = values.message("version_policy")
    line, at = values.line_of("version_policy"), "version_policy"
    given = [kind for kind in ("latest", "all", "specific") if kind in policy]
    if len(given) > 1:
        findings.refuse(line, at, f"expected one policy, got {' and '.join(given)}")
    if "all" in policy:
        return VersionPolicy("all", line=line)
    if "specific" in policy:
        versions = policy.message("specific").numbers("versions")
        if not versions:
            findings.refuse(line, f"{at}.specific", "expected versions, got none")
        return VersionPolicy("specific", specific=versions, line=line)
    latest = policy.message("latest").number("num_versions", 1)
    if latest < 0:
        findings.refuse(line, f"{at}.latest", f"expected 1 or more, got {latest}")
    return VersionPolicy("latest", max(1, latest), line=line)


def _model_file(values: Values, findings: Findings) -> str:
    key = "default_model_filename"
    name = values.text(key)
    if name in (".", "..") or "/" in name or "\0" in name:
        findings.refuse(values.line_of(key), key, f"expected a file's name, got {name!r}")
        return MODEL_FILE
    return name or MODEL_FILE


def _warmup(values: Values, findings: Findings) -> Warmup | None:
    samples = values.messages("model_warmup")
    for other in samples[1:]:
        findings.ignore(other.line, "model_warmup", "the first is the sample; there is one")
    if not samples:
        return None
    first, inputs = samples[0], {}
    for entry in first.messages("inputs"):
        name, value = entry.text("key"), entry.message("value")
        file = value.text("input_data_file")
        source = "random" if value.flag("random_data") else "zero"
        inputs[name] = WarmupInput(
            name,
            TYPES.get(value.text("data_type"), ""),
            value.numbers("dims"),
            f"@{file}" if file else source,
            entry.line,
        )
    return Warmup(max(1, first.number("batch_size", 1)), tuple(inputs.values()), first.line)
