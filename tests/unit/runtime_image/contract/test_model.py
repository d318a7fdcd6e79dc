"""What a replica is bound to, as data."""

from __future__ import annotations

import json

import pytest

from runtime_image.contract.model import (
    AudioForm,
    BytesForm,
    ImageForm,
    InputRule,
    ModelSpec,
    OutputRule,
    Preparation,
    SessionPlan,
    from_json,
    to_json,
)

FULL = ModelSpec(
    "digits@3",
    engine="python",
    model="model.onnx",
    handler="handler.py",
    inputs={
        "picture": InputRule(
            "image", image=ImageForm((28, 28), "L", "HW", 1.0, (0.1,), (0.3,), invert=True)
        ),
        "sound": InputRule("audio", audio=AudioForm(8000, 100)),
        "text": InputRule("bytes", bytes=BytesForm(64, 32)),
        "row": InputRule("tensor", finite=True, dtype="FP32", shape=(-1, 4)),
    },
    output=OutputRule("y", ("zero", "one"), 2),
    batching=False,
    batch_max=8,
    batch_wait_ms=1.5,
    inline=True,
    timeout_s=5.0,
    sample={"picture": "@seven.png"},
    preparation=Preparation(
        "ort-1.31/cpu",
        SessionPlan("prepared/model.onnx", optimise=False),
        SessionPlan("model.onnx"),
    ),
)


@pytest.mark.parametrize("spec", [ModelSpec("digits@1"), FULL])
def test_a_spec_survives_the_link(spec: ModelSpec) -> None:
    """Every field comes back from JSON with its type, tuples too."""
    assert from_json(json.loads(json.dumps(to_json(spec)))) == spec


def test_an_unknown_field_is_an_error() -> None:
    """A spec of another version is not half understood."""
    with pytest.raises(TypeError, match="surprise"):
        from_json({**to_json(FULL), "surprise": 1})
