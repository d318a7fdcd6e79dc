"""The short JSON form gives one value per input of the signature, no more and no fewer."""

import pytest

from runtime_image.codecs import request
from runtime_image.contract.errors import BAD_INPUT, RequestError
from runtime_image.contract.signature import Signature, TensorSpec

SIGNATURE = Signature(
    "tensors",
    (TensorSpec("input.1", "FP32", (-1, 2)), TensorSpec('say "s"', "BYTES", (-1,))),
    (),
)


def test_inputs_are_read_by_name() -> None:
    """Names of any characters are found and values keep their shape."""
    body = rb'{"inputs": {"say \"s\"": ["\"input.1\": "], "input.1": [[1, 2]]}}'
    inputs = request.read_short_json(body, SIGNATURE)
    assert inputs["input.1"].shape == (1, 2)
    assert inputs["input.1"].payload == [[1.0, 2.0]]
    assert inputs['say "s"'].payload == ['"input.1": ']


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"inputs": {"input.1": [[1, 2]]}}', "this input is missing"),
        (b'{"inputs": {"image": [[1, 2]]}}', "an unknown name"),
        (rb'{"inputs":{"input.1":[[1,2]],"say \"s\"":["a"],"input.1":[[3,4]]}}', "given twice"),
        (rb'{"inputs":{},"inputs":{"input.1":[[1,2]],"say \"s\"":["a"]}}', "given twice"),
        (rb'{"inputs":{"input.1":[[1,2]],"say \"s\"":["a","b"]}}', "expected 1 rows"),
        (b'{"inputs": 3}', "got Expected `object`"),
        (b'{"input": {}}', "unknown field"),
        (b"[]", "JSON object"),
        (b"{", "truncated"),
        (b'{"inputs":{"\xff":1}}', "utf-8"),
        (b'{"inputs":' + b"[" * 100_000, "expected a JSON object"),
    ],
)
def test_other_bodies_are_refused(body: bytes, words: str) -> None:
    """Missing, unknown and repeated names and other JSON are BAD_INPUT."""
    with pytest.raises(RequestError) as caught:
        request.read_short_json(body, SIGNATURE)
    assert caught.value.code == BAD_INPUT
    assert words in caught.value.message


def test_any_json_object_is_taken_as_it_is() -> None:
    """A json signature takes values of any type unchanged."""
    inputs = request.read_values(b'{"inputs": {"a": {"b": [1, null]}, "c": "d"}}')
    assert {name: raw.payload for name, raw in inputs.items()} == {"a": {"b": [1, None]}, "c": "d"}
    assert inputs["a"].encoding == "object"


@pytest.mark.parametrize("body", [b'{"inputs": []}', b"{}", b'{"inputs":{"a":' + b"[" * 100_000])
def test_values_need_an_object(body: bytes) -> None:
    """Without an object under inputs, or nested too deep, a json function refuses."""
    with pytest.raises(RequestError, match="expected a JSON object"):
        request.read_values(body)
