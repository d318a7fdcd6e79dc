"""Interface common to all engines."""

from __future__ import annotations

from pathlib import Path

from runtime_image.contract.model import InputRule
from runtime_image.engines.base import Engine
from runtime_image.engines.onnx import OnnxEngine
from runtime_image.engines.python import Context, HandlerEngine
from tests.support import models


def test_both_engines_offer_the_same(tmp_path: Path) -> None:
    """The runner can use any engine without knowing its type."""
    handler = tmp_path / "handler.py"
    handler.write_text("def predict(inputs, ctx): return inputs\n")
    context = Context(tmp_path, "cpu", 1, None)
    engines: list[Engine] = [
        OnnxEngine(models.add_one(tmp_path), device_kind="cpu", threads=1),
        HandlerEngine(handler, context, {"x": InputRule("json")}),
    ]

    for engine in engines:
        engine.stop(engine.ticket())
        assert engine.signature.kind in ("tensors", "json")
