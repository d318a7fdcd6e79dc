"""Hints of `predict`: values become them, and what does not fit is refused with its path."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from enum import Enum
from io import BytesIO
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import numpy as np
import pydantic
import pytest
from numpy.typing import NDArray
from PIL import Image

from python_runner.parameters import read_parameters
from runtime_image.contract.errors import LoadError, RequestError


class Colour(Enum):
    """Two values."""

    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    """A dataclass."""

    x: int
    y: float = 0.5


class Item(pydantic.BaseModel):
    """A model of pydantic."""

    name: str
    prices: list[float] = []


class Words(TypedDict):
    """A typed dict."""

    first: str
    second: NotRequired[int]


class Record(msgspec.Struct):
    """A struct."""

    at: date


def png(size: tuple[int, int] = (3, 2)) -> bytes:
    """Return a picture."""
    buffer = BytesIO()
    Image.new("RGB", size).save(buffer, "PNG")
    return buffer.getvalue()


def given(hint: Any, value: Any) -> Any:
    """Return what a parameter of a type gets for a value in JSON."""
    parameters = read_parameters(function_of(hint), {}, is_batch=False)
    return parameters.from_json(json.dumps({"inputs": {"value": value}}).encode())["value"]


def function_of(hint: Any) -> Callable[..., Any]:
    """Return a function with one parameter of a type."""

    def predict(value): ...  # type: ignore[no-untyped-def]  # the hint is set below

    predict.__annotations__["value"] = hint
    return predict


@pytest.mark.parametrize(
    ("hint", "value", "wanted"),
    [
        (int, 3, 3),
        (float, 3, 3.0),
        (str, "a", "a"),
        (bytes, b64encode(b"abc").decode(), b"abc"),
        (bool, True, True),
        (int | None, None, None),
        (list[int], [1, 2], [1, 2]),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (tuple[int, str], [1, "a"], (1, "a")),
        (Literal["a", "b"], "b", "b"),
        (Colour, "red", Colour.RED),
        (Point, {"x": 1}, Point(1)),
        (Words, {"first": "a"}, {"first": "a"}),
        (Record, {"at": "2026-01-02"}, Record(date(2026, 1, 2))),
        (Item, {"name": "a", "prices": [1]}, Item(name="a", prices=[1.0])),
        (list[Item], [{"name": "a"}], [Item(name="a")]),
        (Annotated[int, msgspec.Meta(ge=1)], 1, 1),
        (Any, {"a": [None]}, {"a": [None]}),
    ],
)
def test_a_value_becomes_its_hint(hint: Any, value: Any, wanted: Any) -> None:
    """Types of Python, msgspec and pydantic."""
    assert given(hint, value) == wanted


def test_numbers_and_pictures_become_theirs() -> None:
    """Nested lists are arrays, base64 is a picture; Pillow's module stands for its class."""
    array = given(NDArray[np.float32], [[1, 2], [3, 4]])
    assert array.dtype == np.float32
    assert array.tolist() == [[1, 2], [3, 4]]
    assert given(np.ndarray, [1.5]).tolist() == [1.5]
    text = b64encode(png()).decode()
    assert given(Image.Image, text).size == (3, 2)
    assert given(Image, text).size == (3, 2)
    assert given(list[Image.Image], [text])[0].size == (3, 2)


@pytest.mark.parametrize(
    ("hint", "value", "detail"),
    [
        (int, "3", "value: expected int, got str"),
        (int, 3.5, "value: expected int, got float"),
        (list[int], [1, "a"], "value[1]: expected int, got str"),
        (dict[str, int], {"a": None}, "value[...]: expected int, got null"),
        (Point, {"x": "a"}, "value.x: expected int, got str"),
        (Point, {}, "value.x: expected a value, got nothing: it is missing"),
        (Item, {"prices": []}, "value.name: expected a value, got nothing"),
        (Item, {"name": "a", "prices": [1, {}]}, "value.prices[1]: expected a valid number"),
        (list[Item], [{"name": 1}], "value[0].name: expected a valid string, got int"),
        (Literal["a", "b"], "c", "value: expected one of: 'a', 'b', got 'c'"),
        (Colour, "x", "value: expected one of: 'red', 'blue', got 'x'"),
        (Annotated[int, msgspec.Meta(ge=1)], 0, "value: expected int >= 1, got another value"),
        (NDArray[np.int64], [1.5], "value: expected INT64"),
        (NDArray[np.float32], ["1.5"], "value: expected FP32"),
        (NDArray[np.float32], [[1], [1, 2]], "value: expected lists of one length"),
        (NDArray[np.float32], "&", "value: expected lists of numbers, or an npy file in base64"),
        (np.ndarray, [[1], [1, 2]], "value: expected lists of equal lengths, got ragged lists"),
        (np.ndarray, ["a"], "value: expected lists of numbers, got an array of <U1"),
        (Image.Image, b64encode(b"hello").decode(), "value: expected a picture (PNG"),
        (Image.Image, b64encode(png()[:-9]).decode(), "value: expected an intact picture"),
        (Image.Image, 3, "value: expected a picture (PNG, JPEG, GIF, BMP, WEBP) as a file, or in"),
        (bytes, "&", "value: expected a valid base64"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_path(hint: Any, value: Any, detail: str) -> None:
    """The text says where, what was expected and what came."""
    with pytest.raises(RequestError) as refused:
        given(hint, value)

    assert refused.value.message.startswith(detail)
    assert refused.value.input == "value"


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"{}", "inputs: expected a value, got nothing: it is missing"),
        (b'{"inputs":{}}', "a: expected a value, got nothing: it is missing"),
        (b'{"inputs":{"a":1,"z":2}}', "z: expected one of: a, b, got an unknown name"),
        (b'{"inputs":{"a":1},"more":2}', "more: expected"),
        (b'{"inputs":[1]}', "body: expected object, got array"),
        (b"[]", "body: expected object, got array"),
        (b"{'a'}", "body: expected a JSON object"),
        (b'{"inputs":{"a":NaN}}', "body: expected JSON, where a float tensor has null for NaN"),
        (b"\xef\xbb\xbf{}", "body: expected JSON that begins with {"),
        (b'{"inputs":{"a":' + b"[" * 10_000, "body: expected a JSON object"),
    ],
)
def test_a_body_that_is_no_such_object_is_refused(body: bytes, detail: str) -> None:
    """Names that are missing or unknown, and what is no JSON."""

    def predict(a: Any, b: int = 2) -> None: ...

    with pytest.raises(RequestError) as refused:
        read_parameters(predict, {}, is_batch=False).from_json(body)

    assert refused.value.message.startswith(detail)


def test_defaults_are_those_of_the_function() -> None:
    """A value that is not sent is not passed."""

    def predict(a: int, b: list[int] = [], *, ctx: Any) -> None: ...  # noqa: B006

    parameters = read_parameters(predict, {}, is_batch=False)
    assert parameters.from_json(b'{"inputs":{"a":1}}') == {"a": 1}
    assert parameters.takes_context


def test_other_names_may_be_taken() -> None:
    """`**more` gets every other input, as it is."""

    def predict(a: int, **more: Any) -> None: ...

    parameters = read_parameters(predict, {}, is_batch=False)
    assert parameters.from_json(b'{"inputs":{"a":1,"z":[2]}}') == {"a": 1, "z": [2]}


def test_one_parameter_may_take_all_inputs() -> None:
    """`inputs`, alone or beside the context, is the object of all of them."""

    def plain(inputs, ctx): ...  # type: ignore[no-untyped-def]  # as handlers are written

    def typed(inputs: Item) -> None: ...

    body = b'{"inputs":{"name":"a"}}'
    assert read_parameters(plain, {}, is_batch=False).from_json(body) == {"name": "a"}
    assert read_parameters(typed, {}, is_batch=False).from_json(body) == Item(name="a")


def test_arrays_alone_are_tensors() -> None:
    """A function of arrays has a signature, and so every form of the protocol."""

    def tensors(a: NDArray[np.float32], b: NDArray[np.int64]) -> None: ...

    def mixed(a: NDArray[np.float32], b: int) -> None: ...

    found = read_parameters(tensors, {}, is_batch=False).signature
    assert found is not None
    assert [(spec.name, spec.dtype, spec.shape) for spec in found.inputs] == [
        ("a", "FP32", None),
        ("b", "INT64", None),
    ]
    assert read_parameters(mixed, {}, is_batch=False).signature is None


class Strange:
    """A class that nobody can read."""


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (Strange, "type Strange has no form in a request"),
        (list[Strange], "type Strange has no form in a request"),
        ("Missing", "its hints cannot be read: NameError"),
        (Image.Image | int, "its hints cannot be read: Type unions"),
    ],
)
def test_a_hint_that_nobody_can_read_is_refused_at_load(hint: Any, text: str) -> None:
    """Not at the first call."""
    with pytest.raises(LoadError, match=text):
        read_parameters(function_of(hint), {}, is_batch=False)


def test_parameters_without_names_are_refused() -> None:
    """They cannot be sent."""

    def predict(*values: int) -> None: ...

    with pytest.raises(LoadError, match="expected parameters with names"):
        read_parameters(predict, {}, is_batch=False)


def test_in_batches_each_parameter_is_a_list() -> None:
    """A call has one item of it."""

    def predict(a: list[int], b: list[str] = []) -> None: ...  # noqa: B006

    def wrong(a: int) -> None: ...

    parameters = read_parameters(predict, {}, is_batch=True)
    assert parameters.from_json(b'{"inputs":{"a":1}}') == {"a": 1}
    with pytest.raises(LoadError, match="a: expected list"):
        read_parameters(wrong, {}, is_batch=True)
