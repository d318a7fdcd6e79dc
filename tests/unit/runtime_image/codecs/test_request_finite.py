"""NaN and infinities are found where an input is declared finite, and only there."""

import numpy as np
import pytest

from runtime_image.codecs import request
from runtime_image.codecs.accept import SHORT
from runtime_image.codecs.request import Parsed
from runtime_image.codecs.tensors import RawInput
from runtime_image.contract.errors import RequestError
from runtime_image.contract.model import InputRule

RULES = {"x": InputRule(finite=True)}


def parsed(array: np.ndarray, dtype: str) -> Parsed:
    data = memoryview(array.tobytes())
    return Parsed("npy", {"x": RawInput("binary", dtype, array.shape, data)}, SHORT)


@pytest.mark.parametrize(("dtype", "descr"), [("FP16", "<f2"), ("FP32", "<f4"), ("FP64", "<f8")])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_first_bad_element_is_named(dtype: str, descr: str, bad: float) -> None:
    """The error names the index of the first element that is not finite."""
    array = np.ones((2, 3), descr)
    request.check_finite(parsed(array, dtype), RULES)
    array[1, 1:] = bad
    with pytest.raises(RequestError, match=rf"finite {dtype} values, got .* at index \[1, 1\]"):
        request.check_finite(parsed(array, dtype), RULES)


def test_bf16_is_read_by_its_bits() -> None:
    """The exponent bits of BF16 tell an infinity from one."""
    data = memoryview(np.array([0x3F80, 0x7F80], np.uint16).tobytes())
    assert request.first_not_finite("BF16", data) == 1


def test_a_sum_that_overflows_refuses_nothing() -> None:
    """Large finite numbers whose sum is infinite are finite."""
    request.check_finite(parsed(np.full(3, 1.7e308), "FP64"), RULES)


def test_only_declared_binary_floats_are_looked_at() -> None:
    """Inputs without the rule, integers and JSON pass."""
    nan = np.array([np.nan], np.float32)
    request.check_finite(parsed(nan, "FP32"), {})
    request.check_finite(parsed(nan, "FP32"), {"x": InputRule()})
    request.check_finite(parsed(np.array([-1], np.int32), "INT32"), RULES)
    request.check_finite(
        Parsed("short", {"x": RawInput("json", "FP32", (1,), [1.0])}, SHORT), RULES
    )


def test_a_single_number_has_an_empty_index() -> None:
    """A tensor of rank 0 is named without an index."""
    assert request.refusal("x", "FP32", (), 0).got.endswith("at index []")
