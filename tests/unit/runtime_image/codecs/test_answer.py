"""Answers in every format contain the outputs and nothing that cannot be read back."""

import datetime
import io
import json
import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from runtime_image.codecs.accept import AnswerForm
from runtime_image.codecs.answer import Answer, encode, served_model
from runtime_image.contract.errors import BAD_INPUT, FUNCTION_FAILED, NOT_ACCEPTABLE, RequestError
from runtime_image.contract.model import OutputRule
from runtime_image.contract.signature import Signature, TensorSpec

SIGNATURE = Signature(
    "tensors", (), (TensorSpec("y", "FP32", (-1, 2)), TensorSpec("s", "BYTES", (-1,)))
)
MODEL = served_model("digits@3")
Y = np.array([[0.5, 1.5]], np.float32)
S = np.array(["a", b"\xff"], object)


def answer(
    given: dict[str, Any], form: str = "short", rule: OutputRule | None = None, **more: Any
) -> Answer:
    wanted = AnswerForm(form, **more)  # type: ignore[arg-type]  # a parameter of the test
    return encode(given, wanted, SIGNATURE, rule or OutputRule(), MODEL, "id 1")


def document(given: dict[str, Any], *args: Any, **more: Any) -> Any:
    return json.loads(answer(given, *args, **more).body)


def test_short_answers_name_outputs_and_revision() -> None:
    """The short form holds arrays as nested lists under their names."""
    found = answer({"y": Y})
    assert (found.content_type, found.json_length) == ("application/json", 0)
    assert json.loads(found.body) == {"outputs": {"y": [[0.5, 1.5]]}, "revision": "digits@3"}


def test_an_answer_of_the_protocol_names_the_model_as_deployed() -> None:
    """Name and version of the Open Inference Protocol replace the revision's parts one by one."""
    asked = [("", ""), ("My.Model", ""), ("My.Model", "17")]
    found = []
    for name, version in asked:
        model = served_model("digits@3", name, version)
        made = encode({"y": Y}, AnswerForm("oip"), SIGNATURE, OutputRule(), model, "")
        body = json.loads(made.body)
        found.append((body["model_name"], body["model_version"]))
    assert found == [("digits", "3"), ("My.Model", "3"), ("My.Model", "17")]


def test_nan_and_infinity_of_tensors_become_null() -> None:
    """NaN and infinities in tensors become null in both JSON forms."""
    array = np.array([np.nan, np.inf, 1], np.float32)
    assert document({"y": array})["outputs"]["y"] == [None, None, 1.0]
    assert document({"y": array}, "oip")["outputs"][0]["data"] == [None, None, 1.0]


def test_plain_values_of_handlers_are_written() -> None:
    """Numbers, strings, bytes, dicts and nested NumPy scalars have a JSON form."""
    value = {"n": np.int64(1), "f": [np.float32(0.5), True], "a": np.ones(2, np.uint8), "b": b"ab"}
    found = document({"v": value, "t": "text"})["outputs"]
    assert found == {"v": {"n": 1, "f": [0.5, True], "a": [1, 1], "b": "YWI="}, "t": "text"}


@dataclass
class Scores:
    """A type that only the handler knows."""

    scores: list[float]


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"scores": [0.5, 1, 2, float("nan")]}, r"\$\.scores\[3\], got nan"),
        ({"a": {"b": ({"c": -np.inf},)}}, r"\$\.a\.b\[0\]\.c, got -inf"),
        ({"f": np.float32("inf"), "n": None}, r"\$\.f, got inf"),
        ({"d": Scores([1.0, math.nan])}, r"\$\.d\.scores\[1\], got nan"),
    ],
)
def test_a_handlers_nan_fails_with_its_place(given: dict[str, Any], path: str) -> None:
    """A NaN or infinity outside a tensor fails with its path instead of becoming null."""
    with pytest.raises(RequestError, match=path) as caught:
        answer(given)
    assert caught.value.code == FUNCTION_FAILED


def test_null_from_a_handler_stays_null() -> None:
    """None stays null, and a NaN in a tensor becomes null anywhere in a handler's answer."""
    when = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    given = {"a": None, "b": [{"c": np.array([np.nan])}, "null"], "d": when, "e": b"null"}
    assert document(given)["outputs"]["b"] == [{"c": [None]}, "null"]


def looped() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize("value", [object(), 1j, np.array([1j]), looped(), {(1, 2): object()}])
def test_values_without_json_fail_the_function(value: Any) -> None:
    """A value without a JSON form fails the function; the error names its type."""
    with pytest.raises(RequestError, match="cannot be written") as caught:
        answer({"v": value})
    assert caught.value.code == FUNCTION_FAILED


def test_the_best_labels_stand_first() -> None:
    """Each row lists its best classes, by label if there is one; ties are ordered by index."""
    scores = np.array([[1, 3, 2], [5, 5, np.nan]], np.float32)
    rule = OutputRule("y", ("zero", "one"), 2)
    assert document({"y": scores}, rule=rule)["top"] == [
        [{"label": "one", "score": 3.0}, {"label": "2", "score": 2.0}],
        [{"label": "zero", "score": 5.0}, {"label": "one", "score": 5.0}],
    ]


@pytest.mark.parametrize(
    ("rule", "scores", "labels"),
    [
        (OutputRule(labels=("a", "b")), np.array([1, 2]), [["b"]]),
        (OutputRule(top_k=9), np.array([[1, 2]], np.uint8), [["1", "0"]]),
        (OutputRule(top_k=1), np.array([[[1], [2]]]), [["1"]]),
    ],
)
def test_labels_have_defaults(rule: OutputRule, scores: np.ndarray, labels: list[Any]) -> None:
    """Defaults: the first output, one class, never more classes than exist."""
    top = document({"y": scores}, rule=rule)["top"]
    assert [[item["label"] for item in row] for row in top] == labels


@pytest.mark.parametrize("value", ["text", S, np.float32(1), np.array(1)])
def test_outputs_without_scores_have_no_top(value: Any) -> None:
    """Only numeric arrays get labels."""
    assert "top" not in document({"y": value}, rule=OutputRule("y", ("a",), 1))


def test_protocol_answers_are_flat_and_named() -> None:
    """A protocol answer has model, version, id, and outputs with name, shape, datatype and
    row-major data."""
    assert document({"y": Y, "n": np.array(7)}, "oip") == {
        "model_name": "digits",
        "model_version": "3",
        "id": "id 1",
        "outputs": [
            {"name": "y", "shape": [1, 2], "datatype": "FP32", "data": [0.5, 1.5]},
            {"name": "n", "shape": [], "datatype": "INT64", "data": [7]},
        ],
    }


def test_wanted_outputs_limit_and_order_the_answer() -> None:
    """Only the requested outputs are sent, in that order; an unknown output is refused."""
    found = document({"y": Y, "n": np.array([7])}, "oip", outputs=("n",))
    assert [item["name"] for item in found["outputs"]] == ["n"]
    with pytest.raises(RequestError, match="expected one of y") as caught:
        answer({"y": Y}, "oip", outputs=("w",))
    assert caught.value.code == BAD_INPUT


def test_binary_answers_put_tensors_behind_the_json() -> None:
    """Raw tensors follow the JSON part in order, each with its size in the JSON; strings have
    length prefixes."""
    found = answer(
        {"y": Y.astype(">f4").T, "n": np.array([7]), "s": S}, "oip-binary", binary=("y", "s")
    )
    assert found.content_type == "application/octet-stream"
    head = json.loads(found.body[: found.json_length])
    y, n, s = head["outputs"]
    assert (y["parameters"], y["shape"]) == ({"binary_data_size": 8}, [2, 1])
    assert (n["data"], s["parameters"]) == ([7], {"binary_data_size": 10})
    raw = struct.pack("<ff", 0.5, 1.5) + b"\x01\0\0\0a\x01\0\0\0\xff"
    assert found.body[found.json_length :] == raw


def test_binary_answers_hold_every_output_when_asked() -> None:
    """binary_all sends all outputs raw; an empty tensor has no bytes."""
    found = answer({"y": Y[:0], "b": np.array([True])}, "oip-binary", binary_all=True)
    assert found.body[found.json_length :] == b"\x01"


def test_plain_values_take_the_declared_dtype() -> None:
    """Lists returned by a handler become tensors of the signature's dtype, or of NumPy's choice."""
    outputs = document({"y": [[1, 2]], "s": ["a"], "n": [1.5], "u": np.array(["b"])}, "oip")
    assert [item["datatype"] for item in outputs["outputs"]] == ["FP32", "BYTES", "FP64", "BYTES"]


@pytest.mark.parametrize("value", [{"a": 1}, [[1], [1, 2]], "text", np.array([1j])])
def test_other_values_make_no_tensor(value: Any) -> None:
    """In tensor formats a dict, a ragged list or a foreign dtype fails the function."""
    with pytest.raises(RequestError, match="output 'y': expected a tensor") as caught:
        answer({"y": value}, "oip")
    assert caught.value.code == FUNCTION_FAILED


def test_npy_answers_hold_one_output() -> None:
    """An npy answer holds the named or first output in C order."""
    for tensor in ("y", ""):
        found = answer({"y": np.asfortranarray(np.ones((2, 2))), "n": 1}, "npy", tensor=tensor)
        assert found.content_type == "application/x-npy"
        assert b"'fortran_order': False" in found.body
        assert np.load(io.BytesIO(found.body)).tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize(("outputs", "tensor"), [({"y": Y}, "w"), ({}, ""), ({"s": S}, "s")])
def test_npy_answers_need_a_numeric_output(outputs: dict[str, Any], tensor: str) -> None:
    """A missing output and a string output are not available as npy."""
    with pytest.raises(RequestError) as caught:
        answer(outputs, "npy", tensor=tensor)
    assert caught.value.code == NOT_ACCEPTABLE


def test_classes_of_an_output_are_text_in_both_forms() -> None:
    """A classification is BYTES in JSON and in binary; only the output with labels gets them."""
    outputs = {"y": np.array([[0.5, 1.5], [3, 2]], np.float32), "s": np.array([7, 9])}
    rule = OutputRule("y", ("cat", "dog"))
    classes = (("y", 1), ("s", 2))
    model = served_model("digits@3", is_batched=True)
    form = AnswerForm("oip", classes=classes)
    found = json.loads(encode(outputs, form, SIGNATURE, rule, model, "").body)["outputs"]
    texts = ["1.500000:1:dog", "3.000000:0:cat"]
    assert found[0] == {"name": "y", "shape": [2, 1], "datatype": "BYTES", "data": texts}
    assert found[1] == {"name": "s", "shape": [2, 1], "datatype": "BYTES", "data": ["7:0", "9:0"]}
    form = AnswerForm("oip-binary", outputs=("y",), binary=("y",), classes=classes)
    packed = encode(outputs, form, SIGNATURE, rule, model, "")
    raw = b"".join(struct.pack("<I", len(text)) + text.encode() for text in texts)
    assert packed.body[packed.json_length :] == raw
    found = json.loads(packed.body[: packed.json_length])["outputs"]
    assert found[0]["parameters"] == {"binary_data_size": len(raw)}


def test_the_first_output_has_the_labels_if_no_rule_names_one() -> None:
    """Without a batch, the whole first output is one row; its labels are used."""
    form = AnswerForm("oip", outputs=("y",), classes=(("y", 9),))
    rule = OutputRule(labels=("a",))
    found = encode({"y": Y, "s": S}, form, SIGNATURE, rule, served_model("digits@3"), "")
    item = json.loads(found.body)["outputs"][0]
    assert (item["shape"], item["data"]) == ([2], ["1.500000:1", "0.500000:0:a"])
