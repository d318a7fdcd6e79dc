"""Bodies that many programs write and that are no JSON are refused with the cause and a remedy."""

from __future__ import annotations

import json

import msgspec
import pytest

from runtime_image.codecs.arrays import to_arrays
from runtime_image.codecs.json_faults import bad_json
from runtime_image.codecs.request import RequestHead, parse
from runtime_image.contract.errors import BAD_INPUT, RequestError
from runtime_image.contract.model import InputRule
from runtime_image.contract.signature import Kind, Signature, TensorSpec

SHORT = '{"inputs":{"x":[1,%s]}}'
OIP = '{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","data":[1,%s]}]}'
HEAD = RequestHead("application/json")


def signature(dtype: str, kind: Kind = "tensors") -> Signature:
    return Signature(kind, (TensorSpec("x", dtype, (-1,)),), ())


def refusal(body: bytes, kind: Kind = "tensors", head: RequestHead = HEAD) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(head, body, signature("FP32", kind), {})
    assert caught.value.code == BAD_INPUT
    return caught.value


@pytest.mark.parametrize("kind", ["tensors", "json"])
@pytest.mark.parametrize("literal", ["NaN", "nan", "Infinity", "-Infinity", "inf", "-inf"])
def test_not_finite_literals_are_named(literal: str, kind: Kind) -> None:
    """NaN and infinities, which JSON does not have, are named with their position in every form."""
    for form in (SHORT, OIP) if kind == "tensors" else (SHORT,):
        body = (form % literal).encode()
        assert refusal(body, kind).got == f"{literal} at byte {body.index(literal.encode())}"
    body = (OIP % literal).encode()
    assert literal in refusal(body, head=RequestHead("application/json", "", len(body))).got


@pytest.mark.parametrize("mark", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("head", [HEAD, RequestHead(""), RequestHead("application/json", "", 20)])
def test_a_byte_order_mark_is_named(mark: str, head: RequestHead) -> None:
    """A byte order mark before the JSON is named, with what to do."""
    if not head.content_type and mark == "utf-16":
        return  # without a type, only UTF-8 can be taken for JSON
    for form in (SHORT, OIP):
        error = refusal((form % 2).encode(mark), head=head)
        assert "a byte order mark of UTF-" in error.got
        assert "UTF-8 without one" in error.got


@pytest.mark.parametrize(
    "body", ['{"NaN" 1}', '{"inputs":{"x":[nano]}}', "[Information]", '{"a":[1,}', '{"NaN":tru}']
)
def test_other_faults_keep_the_decoders_words(body: str) -> None:
    """A word that only contains a literal, and a literal before another fault, are not named."""
    with pytest.raises(msgspec.DecodeError) as caught:
        msgspec.json.decode(body.encode())
    assert bad_json("JSON", body.encode(), caught.value).got == str(caught.value)


@pytest.mark.parametrize("dtype", ["FP16", "FP32", "FP64"])
def test_what_answers_have_for_nan_is_taken(dtype: str) -> None:
    """Null becomes NaN in each JSON form, and is refused by its place in an input declared
    finite."""
    wanted = signature(dtype)
    for form in (SHORT, OIP.replace("FP32", dtype)):
        if form != SHORT and dtype == "FP16":
            continue  # the protocol has no JSON for it
        body = (form % "null").encode()
        array = to_arrays(parse(HEAD, body, wanted, {}), wanted, {})["x"]
        assert json.dumps(array.astype(float).tolist()) == "[1.0, NaN]"
        with pytest.raises(RequestError, match=r"finite \w+ values, got null.* at index \[1\]"):
            parse(HEAD, body, wanted, {"x": InputRule(finite=True)})
