"""A body is read by its content type; what a function does not take is told with what it does."""

import json
import subprocess
import sys

import pytest

from runtime_image.codecs.request import RequestHead, content_types, parse
from runtime_image.contract.errors import BAD_INPUT, NOT_ACCEPTABLE, UNSUPPORTED_TYPE, RequestError
from runtime_image.contract.model import AudioForm, ImageForm, InputRule
from runtime_image.contract.signature import Signature, TensorSpec

SIGNATURE = Signature(
    "tensors", (TensorSpec("x", "FP32", (-1, 1)),), (TensorSpec("y", "FP32", (-1,)),)
)
SHORT = b'{"inputs": {"x": [[1]]}}'
OIP = b'{"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}'
NPY = (
    b"\x93NUMPY\x01\x00\x3d\x00"
    + b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1), }".ljust(61)
    + bytes(4)
)
ANY_BYTES = Signature("bytes", (), ())
ANY_JSON = Signature("json", (), ())


@pytest.mark.parametrize(
    ("content_type", "body", "form"),
    [
        ("application/json", SHORT, "short"),
        ("Application/JSON; charset=utf-8", SHORT, "short"),
        ("", b" \n" + SHORT, "short"),
        ("application/json", OIP, "oip"),
        ("application/json", b'{"id": "1", ' + OIP[1:], "oip"),
        ("application/x-npy", NPY, "npy"),
        ("application/x-npy; input=x", NPY, "npy"),
    ],
)
def test_the_content_type_and_first_key_tell_the_form(
    content_type: str, body: bytes, form: str
) -> None:
    """Every form is recognised, given as bytes or as a view."""
    for given in (body, memoryview(body)):
        parsed = parse(RequestHead(content_type), given, SIGNATURE, {})
        assert parsed.form == form
        assert parsed.inputs["x"].shape == (1, 1)


@pytest.mark.parametrize("content_type", ["application/octet-stream", "application/json", ""])
def test_a_json_length_means_the_open_inference_protocol(content_type: str) -> None:
    """Inference-Header-Content-Length marks the protocol's binary form."""
    item = {"name": "x", "shape": [1, 1], "datatype": "FP32", "parameters": {"binary_data_size": 4}}
    head = json.dumps({"id": "a", "inputs": [item]}).encode()
    parsed = parse(RequestHead(content_type, "", len(head)), head + bytes(4), SIGNATURE, {})
    assert (parsed.form, parsed.answer.form, parsed.id) == ("oip", "oip", "a")


def test_binary_outputs_are_answered_in_binary() -> None:
    """A request for binary outputs gets the protocol's binary form."""
    body = OIP[:-1] + b', "parameters": {"binary_data_output": true}}'
    answer = parse(RequestHead("application/json"), body, SIGNATURE, {}).answer
    assert (answer.form, answer.binary_all) == ("oip-binary", True)


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("", b"x=1"),
        ("application/x-www-form-urlencoded", SHORT),
        ("text/plain", SHORT),
        ("application/octet-stream", b"abc"),
        ("image/png", b"\x89PNG\r\n\x1a\n"),
        ("audio/wav", b"RIFF"),
        ("n" * 5000, b""),
    ],
)
def test_other_types_are_told_what_is_taken(content_type: str, body: bytes) -> None:
    """An undeclared type is UNSUPPORTED_TYPE with the list of those that are taken."""
    with pytest.raises(RequestError) as caught:
        parse(RequestHead(content_type), body, SIGNATURE, {})
    assert caught.value.code == UNSUPPORTED_TYPE
    assert "one of: application/json, application/octet-stream with" in caught.value.message
    hinted = content_type in ("", "application/x-www-form-urlencoded")
    assert ("send Content-Type: application/json" in caught.value.message) == hinted
    assert len(caught.value.message) < 500


@pytest.mark.parametrize("body", [b"", b"{", b"null", b'{"inputs": null}', b'{"inputs": [1]}'])
def test_other_json_is_bad_input(body: bytes) -> None:
    """Empty, cut and foreign JSON is BAD_INPUT."""
    with pytest.raises(RequestError) as caught:
        parse(RequestHead("application/json"), body, SIGNATURE, {})
    assert caught.value.code == BAD_INPUT


def test_an_answer_nobody_accepts_is_refused_with_the_request() -> None:
    """Accept is checked before the request is run."""
    with pytest.raises(RequestError) as caught:
        parse(RequestHead("application/json", "text/html"), SHORT, SIGNATURE, {})
    assert caught.value.code == NOT_ACCEPTABLE


@pytest.mark.parametrize(
    ("rule", "content_type", "body"),
    [
        (InputRule("bytes"), "application/octet-stream", b"a"),
        (InputRule("image", image=ImageForm((1, 1))), "image/png", b"\x89PNG\r\n\x1a\n"),
        (InputRule("audio", audio=AudioForm()), "audio/x-wav", b"RIFF\0\0\0\0WAVE" + bytes(40)),
    ],
)
def test_declared_kinds_take_raw_bodies_and_plain_tensors(
    rule: InputRule, content_type: str, body: bytes
) -> None:
    """A declared kind opens its content type and leaves JSON open."""
    rules = {"x": rule}
    parsed = parse(RequestHead(content_type), body, SIGNATURE, rules)
    assert (parsed.form, parsed.inputs["x"].encoding) == ("raw", rule.kind)
    assert parse(RequestHead("application/json"), SHORT, SIGNATURE, rules).form == "short"
    assert content_types(SIGNATURE, rules)[-1].split("/")[0] == content_type.split("/")[0]


def test_a_bytes_function_takes_any_named_type() -> None:
    """One raw body is taken under any type but none and curl's default."""
    parsed = parse(RequestHead("text/plain"), memoryview(b"abc"), ANY_BYTES, {})
    assert parsed.inputs["body"].payload == b"abc"
    for content_type in ("", "application/x-www-form-urlencoded"):
        with pytest.raises(RequestError, match="send Content-Type: application/octet-stream"):
            parse(RequestHead(content_type), b"abc", ANY_BYTES, {})


def test_types_are_listed_for_what_a_function_has() -> None:
    """npy is only offered where one tensor is all a function needs."""
    two = Signature("tensors", (*SIGNATURE.inputs, TensorSpec("z", "FP32", (1,))), ())
    assert "application/x-npy" in content_types(SIGNATURE, {})
    assert "application/x-npy" not in content_types(two, {})


def test_a_json_function_takes_json_only() -> None:
    """Any object under inputs is taken, other types are not."""
    parsed = parse(RequestHead("application/json"), b'{"inputs": {"a": 1}}', ANY_JSON, {})
    assert parsed.inputs["a"].payload == 1
    with pytest.raises(RequestError, match="expected one of: application/json, got text/plain"):
        parse(RequestHead("text/plain"), b"", ANY_JSON, {})


def test_checking_loads_no_numbers() -> None:
    """The half that the gateway imports loads no numpy, Pillow, engine or asyncio."""
    program = (
        "import sys, runtime_image.codecs.request, runtime_image.codecs.request\n"
        "heavy = {'numpy', 'PIL', 'onnxruntime', 'asyncio'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
