"""How the manifest's input tables become rules, and the signature where no graph gives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from registry.manifest.schema import NOTHING, InputTable, refused
from runtime_image.contract import dtypes
from runtime_image.contract.model import AudioForm, BytesForm, ImageForm, InputRule
from runtime_image.contract.signature import DYNAMIC, Signature, TensorSpec

_KEYS_OF: Final[dict[str, frozenset[str]]] = {
    "image": frozenset({"size", "mode", "layout", "scale", "mean", "std", "invert"}),
    "audio": frozenset({"rate_hz", "samples"}),
    "bytes": frozenset({"length", "pad"}),
    "tensor": frozenset({"dtype", "shape"}),
    "json": frozenset(),
}
_CHANNELS: Final = {"L": 1, "RGB": 3}
_PIXELS_MAX: Final = 50_000_000


def input_rule(name: str, table: InputTable, engine: str) -> InputRule:
    """One input table as a rule. Raises BadManifest where keys do not go together."""
    at = f"input.{name}"
    _check_keys(at, table)
    if engine == "python":
        _check_declared(at, table)
    else:
        _check_left_to_the_graph(at, table)
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
    """The rules of a function without a model file, each with the dtype and shape it gives.

    Pictures, clips and bytes of a length get what their form makes of them, with a dynamic first
    axis; a sole input of raw bytes and json inputs have neither. Raises BadManifest where there
    are no rules, or json beside another kind.
    """
    kinds = {rule.kind for rule in rules.values()}
    if not rules:
        raise refused("input", 'at least one [input.NAME] for engine = "python"', NOTHING)
    if "json" in kinds and len(kinds) > 1:
        raise refused("input", 'only kind = "json" beside an input of that kind', sorted(kinds))
    if len(rules) == 1 and _is_raw(next(iter(rules.values()))):
        return dict(rules)
    return {name: _with_tensor(rule) for name, rule in rules.items()}


def signature_from_rules(rules: Mapping[str, InputRule]) -> Signature:
    """What a function without a model file takes; nothing is known of its outputs.

    Inputs of kind "json" make a json signature; a sole input of kind "bytes" without a length a
    bytes signature, which names it as BYTES [1]. All else makes tensors. Raises BadManifest.
    """
    complete = declared(rules)
    kinds = {rule.kind for rule in complete.values()}
    if kinds == {"json"}:
        return Signature("json", (), ())
    if kinds == {"bytes"} and not any(rule.dtype for rule in complete.values()):
        return Signature("bytes", tuple(TensorSpec(n, dtypes.BYTES, (1,)) for n in complete), ())
    inputs = (TensorSpec(name, rule.dtype, rule.shape) for name, rule in complete.items())
    return Signature("tensors", tuple(inputs), ())


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


def _check_left_to_the_graph(at: str, table: InputTable) -> None:
    if table.kind == "json":
        raise refused(f"{at}.kind", 'tensor, image, audio or bytes for engine = "onnx"', "json")
    for key, value in (("dtype", table.dtype), ("shape", table.shape)):
        if value is not None:
            raise refused(f"{at}.{key}", "nothing, for the model's graph says it", value)


def _image(at: str, table: InputTable) -> ImageForm:
    if table.size is None:
        raise refused(f"{at}.size", "[height, width] in pixels", NOTHING)
    height, width = table.size
    if height * width > _PIXELS_MAX:
        raise refused(f"{at}.size", f"at most {_PIXELS_MAX} pixels", table.size)
    mode, layout = table.mode or "RGB", table.layout or "CHW"
    if layout == "HW" and mode != "L":
        raise refused(f"{at}.layout", "HWC or CHW, for mode RGB has channels", layout)
    if table.scale == 0:
        raise refused(f"{at}.scale", "a number other than 0", table.scale)
    std = _per_channel(f"{at}.std", table.std, mode, 1.0)
    if 0 in std:
        raise refused(f"{at}.std", "numbers other than 0", table.std)
    return ImageForm(
        size=(height, width),
        mode=mode,
        layout=layout,
        scale=1 / 255 if table.scale is None else table.scale,
        mean=_per_channel(f"{at}.mean", table.mean, mode, 0.0),
        std=std,
        invert=bool(table.invert),
    )


def _per_channel(
    key: str, value: list[float] | None, mode: str, default: float
) -> tuple[float, ...]:
    if value is None:
        return (default,)
    if len(value) not in (1, _CHANNELS[mode]):
        raise refused(key, f"1 or {_CHANNELS[mode]} numbers for mode {mode}", value)
    return tuple(value)


def _audio(table: InputTable) -> AudioForm:
    return AudioForm(rate_hz=table.rate_hz or 16000, samples=table.samples)


def _bytes(table: InputTable) -> BytesForm:
    return BytesForm(length=table.length, pad=table.pad or 0)


def _is_raw(rule: InputRule) -> bool:
    return rule.kind == "bytes" and (rule.bytes is None or rule.bytes.length is None)


def _with_tensor(rule: InputRule) -> InputRule:
    if rule.image is not None:
        return replace(rule, dtype="FP32", shape=(DYNAMIC, *_pixels(rule.image)))
    if rule.audio is not None:
        return replace(rule, dtype="FP32", shape=(DYNAMIC, rule.audio.samples or DYNAMIC))
    if rule.bytes is not None:
        return replace(rule, dtype="UINT8", shape=(DYNAMIC, rule.bytes.length or DYNAMIC))
    return rule


def _pixels(form: ImageForm) -> tuple[int, ...]:
    channels = _CHANNELS[form.mode]
    if form.layout == "HW":
        return form.size
    return (*form.size, channels) if form.layout == "HWC" else (channels, *form.size)
