"""Section of the surface: bodies of calls and answers of functions, in each JSON form."""

from __future__ import annotations

import json

import numpy as np

from runtime_image.codecs.accept import AnswerForm
from runtime_image.codecs.answer import encode, served_model
from runtime_image.codecs.oip import _Body
from runtime_image.codecs.request import _Inputs
from runtime_image.contract.model import CONTENT_TYPES, OutputRule
from runtime_image.contract.signature import Signature, TensorSpec
from tests.surface.shapes import JsonShape, fields_of

SIGNATURE = Signature("tensors", (), (TensorSpec("y", "FP32", (-1, 2)),))


def bodies() -> list[str]:
    """List requests, answers, and the content types of samples."""
    shape = JsonShape()
    rule = OutputRule(tensor="y", labels=("a", "b"), top_k=1)
    outputs = {"y": np.array([[0.5, 1.5]], np.float32)}
    for form in ("short", "oip", "oip-binary"):
        wanted = AnswerForm(form, binary_all=form == "oip-binary")  # type: ignore[arg-type]
        answer = encode(outputs, wanted, SIGNATURE, rule, served_model("f@1"), "id")
        length = answer.json_length or len(answer.body)
        shape.add(f"answer {form}", json.loads(bytes(answer.body)[:length]))
    requests = [*fields_of("request short", _Inputs), *fields_of("request oip", _Body)]
    samples = [f"sample {suffix} {kind}" for suffix, kind in CONTENT_TYPES.items()]
    return [*requests, *shape.lines(), *samples]
