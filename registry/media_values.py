"""What numbers a model gets from pictures and sounds, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from runtime_image.contract import dtypes
from runtime_image.contract.model import ImageForm, InputRule, media_range
from runtime_image.contract.signature import Signature

_WHITE: Final = 255


def media_values(signature: Signature, rules: Mapping[str, InputRule]) -> str:
    """Return the range of each picture or sound that becomes integers: "x 0 to 255 (UINT8)"; ""
    for none."""
    found = []
    for spec in signature.inputs:
        rule = rules.get(spec.name)
        if rule is None or spec.dtype not in dtypes.INTEGER_RANGE:
            continue
        if rule.image is not None:
            low, high = _pixels(rule.image, spec.dtype)
        elif rule.audio is not None:
            low, high = media_range("audio", spec.dtype)
        else:
            continue
        found.append(f"{spec.name} {low} to {high} ({spec.dtype})")
    return ", ".join(found)


def _pixels(form: ImageForm, dtype: str) -> tuple[int, int]:
    low, high = map(float, media_range("image", dtype))
    if form.scale is not None:
        low, high = 0.0, form.scale * _WHITE
    size = max(len(form.mean), len(form.std))
    ends = [
        (end - form.mean[at % len(form.mean)]) / form.std[at % len(form.std)]
        for at in range(size)
        for end in (low, high)
    ]
    least, most = dtypes.INTEGER_RANGE[dtype]
    return max(least, min(round(min(ends)), most)), max(least, min(round(max(ends)), most))
