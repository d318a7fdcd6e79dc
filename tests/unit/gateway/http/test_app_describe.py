"""Tests of what a function says about itself."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from gateway.http.app import describe, example
from registry.catalog import Deployed
from registry.exchange import PoolEndpoints
from registry.model import Limits
from runtime_image.codecs.request import RequestHead, parse
from runtime_image.contract.model import InputRule
from runtime_image.contract.signature import Signature, TensorSpec
from tests.support import nouns

ORIGIN = "http://127.0.0.1:8080"


def deployed(**fields: Any) -> Deployed:
    """A revision of the function digits."""
    return Deployed(nouns.function(), nouns.revision(**fields))


def takes(dtype: str, shape: tuple[int, ...]) -> Signature:
    """One input called x."""
    return Signature("tensors", (TensorSpec("x", dtype, shape),), ())


def test_a_description_says_all_that_a_caller_needs() -> None:
    """Signature, content types, limits, state and an example are there."""
    shown = PoolEndpoints([], "waking", "1 held")
    function = nouns.function(limits=Limits(timeout_s=5.0, wait_s=10.0, body_mib=1))
    found = describe(Deployed(function, nouns.revision()), shown, ORIGIN)

    assert (found["name"], found["revision"]) == ("digits", "digits@1")
    assert (found["state"], found["reason"]) == ("waking", "1 held")
    assert found["signature"]["inputs"] == [{"name": "x", "dtype": "FP32", "shape": [-1, 4]}]
    assert found["content_types"][0] == "application/json"
    assert found["limits"] == {"timeout_s": 5.0, "wait_s": 10.0, "body_mib": 1}
    assert found["example"].startswith(f"curl {ORIGIN}/fn/digits ")
    assert json.dumps(found)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("FP32", (-1, 4)),
        ("INT64", (2, 2)),
        ("BOOL", (-1,)),
        ("BYTES", (3,)),
        ("FP64", ()),
        ("UINT8", (1, 16, 16)),
    ],
)
def test_an_example_fits_the_signature_it_is_for(dtype: str, shape: tuple[int, ...]) -> None:
    """Whoever pastes the example sends a body that the function takes."""
    signature = takes(dtype, shape)
    words = shlex.split(example(deployed(signature=signature), ORIGIN))
    body = words[words.index("-d") + 1].encode()

    parsed = parse(RequestHead("application/json"), body, signature, {})

    assert set(parsed.inputs) == {"x"}


def test_a_large_input_is_only_described() -> None:
    """No example is longer than a reader's patience."""
    text = example(deployed(signature=takes("FP32", (-1, 3, 224, 224))), ORIGIN)

    assert "<FP32 [1, 3, 224, 224]>" in text


@pytest.mark.parametrize(
    ("rule", "content_type"),
    [
        (InputRule(kind="image"), "image/png"),
        (InputRule(kind="audio"), "audio/wav"),
        (InputRule(kind="bytes"), "application/octet-stream"),
    ],
)
def test_a_file_is_sent_as_a_file(rule: InputRule, content_type: str) -> None:
    """Where the manifest declares a picture, sound or bytes, the example sends such a file."""
    text = example(deployed(inputs={"x": rule}), ORIGIN)

    assert f"Content-Type: {content_type}" in text
    assert "--data-binary @" in text
