"""The numbers that pictures and sounds become are stated where they are integers."""

from __future__ import annotations

import pytest

from registry.media_values import media_values
from runtime_image.contract.model import AudioForm, BytesForm, ImageForm, InputRule
from runtime_image.contract.signature import Signature, TensorSpec

PICTURE = ImageForm((1, 1))
SOUND = AudioForm()


@pytest.mark.parametrize(
    ("dtype", "form", "text"),
    [
        ("UINT8", PICTURE, "x 0 to 255 (UINT8)"),
        ("INT8", PICTURE, "x -128 to 127 (INT8)"),
        ("INT64", PICTURE, "x 0 to 255 (INT64)"),
        ("UINT8", ImageForm((1, 1), scale=1 / 255), "x 0 to 1 (UINT8)"),
        ("INT8", ImageForm((1, 1), scale=1.0), "x 0 to 127 (INT8)"),
        ("INT16", ImageForm((1, 1), scale=2.0, mean=(0.0, 9.0, 1.0)), "x -9 to 510 (INT16)"),
        ("UINT8", ImageForm((1, 1), scale=1 / 255, std=(-1 / 255,)), "x 0 to 0 (UINT8)"),
        ("INT16", SOUND, "x -32768 to 32767 (INT16)"),
        ("UINT8", SOUND, "x 0 to 255 (UINT8)"),
        ("FP32", PICTURE, ""),
        ("FP16", SOUND, ""),
        ("UINT8", BytesForm(), ""),
        ("UINT8", None, ""),
    ],
)
def test_integers_have_their_range(
    dtype: str, form: ImageForm | AudioForm | BytesForm | None, text: str
) -> None:
    """Pictures and sounds in integers are named with the smallest and the largest number."""
    rule = InputRule(
        image=form if isinstance(form, ImageForm) else None,
        audio=form if isinstance(form, AudioForm) else None,
        bytes=form if isinstance(form, BytesForm) else None,
    )
    signature = Signature("tensors", (TensorSpec("x", dtype, (-1, 3)),), ())
    assert media_values(signature, {"x": rule}) == text
    assert media_values(signature, {}) == ""
