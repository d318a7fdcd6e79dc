"""BF16 from a body to arrays and back."""

import json
import struct

import numpy as np
import pytest

from runtime_image.codecs.accept import OIP, SHORT, AnswerForm
from runtime_image.codecs.answer import encode, served_model
from runtime_image.codecs.arrays import to_arrays
from runtime_image.codecs.bfloat16 import BF16, bits, from_bits, widened
from runtime_image.codecs.request import RequestHead, parse
from runtime_image.contract.errors import BAD_INPUT, NOT_ACCEPTABLE, RequestError
from runtime_image.contract.model import InputRule, OutputRule
from runtime_image.contract.signature import Signature, TensorSpec

SPEC = TensorSpec("x", "BF16", (-1, 2))
SIGNATURE = Signature("tensors", (SPEC,), (SPEC,))
BITS = np.array([[0x3F80, 0xC000], [0x0001, 0x7F7F]], np.uint16)
"""1, -2, the smallest and the largest number."""
MODEL = served_model("f@1", is_batched=True)


def body(values: np.ndarray, pad: str = "") -> tuple[bytes, int]:
    item = {"name": "x", "shape": list(values.shape), "datatype": "BF16"}
    item["parameters"] = {"binary_data_size": values.nbytes}
    head = json.dumps({"inputs": [item]}).encode() + pad.encode()
    return head + values.tobytes(), len(head)


@pytest.mark.parametrize("pad", ["", " "])
def test_bf16_survives_the_binary_form(pad: str) -> None:
    """Raw elements at any place of a body have the bits of the array, and of the answer."""
    given, length = body(BITS, pad)
    parsed = parse(RequestHead(OIP, "", length), given, SIGNATURE, {})
    (array,) = to_arrays(parsed, SIGNATURE, {}).values()
    assert (array.dtype, array.shape) == (BF16, (2, 2))
    assert bits(array).ctypes.data % 2 == 0
    form = AnswerForm("oip-binary", binary_all=True)
    answer = encode({"x": array}, form, SIGNATURE, OutputRule(), MODEL, "")
    assert json.loads(answer.body[: answer.json_length])["outputs"][0]["datatype"] == "BF16"
    assert answer.body[answer.json_length :] == BITS.tobytes()


def test_arrays_are_cut_and_joined() -> None:
    """Rows of several requests become one array, as with every other type."""
    array = from_bits(BITS)
    joined = np.concatenate([array, array[1:]])
    assert bits(joined[2:]).tolist() == BITS[1:].tolist()


def test_the_upper_half_of_fp32_is_bf16() -> None:
    """Numbers are those of FP32 with the same upper half."""
    wanted = [struct.unpack("<f", struct.pack("<HH", 0, one))[0] for one in BITS.ravel().tolist()]
    assert widened(from_bits(BITS)).ravel().tolist() == wanted


def test_numbers_that_are_not_finite_are_found() -> None:
    """NaN and infinity are refused where an input is declared finite."""
    given, length = body(np.array([[0x3F80, 0x7F80]], np.uint16))
    parsed = parse(RequestHead(OIP, "", length), given, SIGNATURE, {})
    with pytest.raises(RequestError, match=r"NaN or infinity at index \[0, 1\]"):
        to_arrays(parsed, SIGNATURE, {"x": InputRule(finite=True)})


@pytest.mark.parametrize(
    ("form", "code"), [(SHORT, NOT_ACCEPTABLE), (AnswerForm("oip"), BAD_INPUT)]
)
def test_bf16_has_no_json(form: AnswerForm, code: str) -> None:
    """An answer in JSON is refused with the way to get the output."""
    with pytest.raises(
        RequestError, match="BF16 has no JSON form: request it with binary"
    ) as caught:
        encode({"x": from_bits(BITS)}, form, SIGNATURE, OutputRule(), MODEL, "")
    assert caught.value.code == code


def test_bf16_has_classes() -> None:
    """A classification shows the numbers."""
    form = AnswerForm("oip", classes=(("x", 1),))
    answer = encode({"x": from_bits(BITS)[:1]}, form, SIGNATURE, OutputRule(), MODEL, "")
    assert json.loads(answer.body)["outputs"][0]["data"] == ["1.000000:0"]
