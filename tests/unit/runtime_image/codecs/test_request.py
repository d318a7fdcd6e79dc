"""Bodies are read by content type; refusals list the accepted formats."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from runtime_image.codecs import accept, request
from runtime_image.codecs.request import Parsed, RequestHead, content_types, parse
from runtime_image.codecs.tensors import RawInput
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
    """Content type and first key identify every format, for bytes and for a view."""
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
def test_a_refused_type_gets_the_accepted_types(content_type: str, body: bytes) -> None:
    """An undeclared type is UNSUPPORTED_TYPE with the list of accepted types."""
    with pytest.raises(RequestError) as caught:
        parse(RequestHead(content_type), body, SIGNATURE, {})
    assert caught.value.code == UNSUPPORTED_TYPE
    assert "one of: application/json, application/octet-stream with" in caught.value.message
    hinted = content_type in ("", "application/x-www-form-urlencoded")
    assert ("send Content-Type: application/json" in caught.value.message) == hinted
    assert len(caught.value.message) < 500


@pytest.mark.parametrize("body", [b"", b"{", b"null", b'{"inputs": null}', b'{"inputs": [1]}'])
def test_other_json_is_bad_input(body: bytes) -> None:
    """Empty, truncated and foreign JSON is BAD_INPUT."""
    with pytest.raises(RequestError) as caught:
        parse(RequestHead("application/json"), body, SIGNATURE, {})
    assert caught.value.code == BAD_INPUT


def test_accept_is_checked_before_the_run() -> None:
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
    """A declared kind enables its content type and keeps JSON enabled."""
    rules = {"x": rule}
    parsed = parse(RequestHead(content_type), body, SIGNATURE, rules)
    assert (parsed.form, parsed.inputs["x"].encoding) == ("raw", rule.kind)
    assert parse(RequestHead("application/json"), SHORT, SIGNATURE, rules).form == "short"
    assert content_types(SIGNATURE, rules)[-1].split("/")[0] == content_type.split("/")[0]


PNG = b"\x89PNG\r\n\x1a\n"
IMAGE = InputRule("image", image=ImageForm((1, 1)))
AUDIO = InputRule("audio", audio=AudioForm())


@pytest.mark.parametrize(
    ("rule", "body", "kind"),
    [
        (IMAGE, PNG, "image/png"),
        (IMAGE, b"\xff\xd8\xff\xe0", "image/jpeg"),
        (IMAGE, b"GIF89a", "image/gif"),
        (IMAGE, b"BM\0\0", "image/bmp"),
        (IMAGE, b"RIFF\0\0\0\0WEBP", "image/webp"),
        (AUDIO, b"RIFF\0\0\0\0WAVE", "audio/wav"),
        (AUDIO, b"fLaC", "audio/flac"),
        (AUDIO, b"OggS", "audio/ogg"),
        (IMAGE, b"\x93NUMPY\x01\0", "application/x-npy"),
        (IMAGE, b"fLaC", "application/json"),
        (AUDIO, PNG, "application/json"),
        (IMAGE, b"", "application/json"),
        (InputRule(), PNG, "application/json"),
    ],
)
def test_a_body_without_a_type_is_told_its_own(rule: InputRule, body: bytes, kind: str) -> None:
    """The refusal of no type, and of the one that curl sends, names that of the body's first bytes
    if the function takes it, and curl's options."""
    for content_type in ("", "application/x-www-form-urlencoded"):
        with pytest.raises(RequestError) as caught:
            parse(RequestHead(content_type), body, SIGNATURE, {"x": rule})
        assert caught.value.code == UNSUPPORTED_TYPE
        hint = f"send Content-Type: {kind}"
        if content_type and kind != "application/json":
            hint = f"; with curl: -H 'Content-Type: {kind}' --data-binary @FILE"
        assert caught.value.message.endswith(hint)


def test_a_picture_that_lost_its_line_ends_is_told_why() -> None:
    """`curl -d @FILE` removes them."""
    with pytest.raises(RequestError, match="needs --data-binary @FILE, not -d"):
        parse(RequestHead("image/png"), b"\x89PNG\x1a\0", SIGNATURE, {"x": IMAGE})


def test_a_bytes_function_takes_any_named_type() -> None:
    """A bytes function accepts one raw body of any content type except none and curl's default."""
    parsed = parse(RequestHead("text/plain"), memoryview(b"abc"), ANY_BYTES, {})
    assert parsed.inputs["body"].payload == b"abc"
    for content_type in ("", "application/x-www-form-urlencoded"):
        with pytest.raises(RequestError, match="Content-Type: application/octet-stream"):
            parse(RequestHead(content_type), b"abc", ANY_BYTES, {})


def test_accepted_types_depend_on_the_signature() -> None:
    """Accepted types depend on the signature: npy is listed only if one tensor suffices."""
    two = Signature("tensors", (*SIGNATURE.inputs, TensorSpec("z", "FP32", (1,))), ())
    assert "application/x-npy" in content_types(SIGNATURE, {})
    assert "application/x-npy" not in content_types(two, {})


def test_a_json_function_takes_json_only() -> None:
    """A JSON function accepts any object under "inputs" and no other content type."""
    parsed = parse(RequestHead("application/json"), b'{"inputs": {"a": 1}}', ANY_JSON, {})
    assert parsed.inputs["a"].payload == 1
    with pytest.raises(RequestError, match="expected one of: application/json, got text/plain"):
        parse(RequestHead("text/plain"), b"", ANY_JSON, {})


def test_checking_loads_no_numbers() -> None:
    """The part imported by the gateway loads neither numpy, Pillow, an engine nor asyncio."""
    program = (
        "import sys, runtime_image.codecs.request, runtime_image.codecs.request\n"
        "heavy = {'numpy', 'PIL', 'onnxruntime', 'asyncio'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


SIGNATURE_NPY = Signature("tensors", (TensorSpec("x", "FP32", (-1, 2)),), ())


def file(array: Any, version: tuple[int, int] | None = None) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array), version=version)
    return buffer.getvalue()


def with_header(header: bytes, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_numpy_writes_is_read(version: tuple[int, int]) -> None:
    """npy versions 1.0 to 3.0 yield dtype, shape and the untouched elements."""
    array = np.array([[1, 2]], np.float32)
    raw = request.read_npy(memoryview(file(array, version)), SIGNATURE_NPY)["x"]
    assert (raw.dtype, raw.shape, bytes(raw.payload)) == ("FP32", (1, 2), array.tobytes())


@pytest.mark.parametrize(
    "header",
    [
        b"{'shape': (1, 2), 'fortran_order': False, 'descr': '<f4'}",
        b"{\"descr\": '<f4', 'fortran_order' : False,'shape':(1,2,),}\n",
    ],
)
def test_other_writers_headers_are_read(header: bytes) -> None:
    """npy headers with another entry order or white space are read."""
    assert request.read_npy(memoryview(with_header(header, bytes(8))), SIGNATURE_NPY)[
        "x"
    ].shape == (
        1,
        2,
    )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "begins with"),
        (b"\x93NUMPY", "version bytes missing"),
        (b"\x93NUMPY\x04\x00", "version bytes 0400"),
        (b"\x93NUMPY\x01\x00\xff\xff", "at most 0 bytes, got 65535"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(9000), "at most 4096 bytes"),
        (with_header(b"{'descr': '<f4', 'fortran_order': False}"), "header with descr"),
        (with_header(b"{'descr':'<f4','descr':'<f4','descr':'<f4'}"), "header with descr"),
        (with_header(b"{" * 4000), "header with descr"),
        (with_header(b"{" + b" " * 4000), "header with descr"),
        (with_header(b"__import__('os')"), "header with descr"),
        (with_header(b"{'descr':'<f4','fortran_order':False,'shape':(1,,2)}"), "shape of integers"),
        (with_header(b"{'descr':'<f4','fortran_order':False,'shape':(1 2)}"), "shape of integers"),
        (with_header(b"{'descr':'|O','fortran_order':False,'shape':(1,)}"), "got |O"),
        (with_header(b"{'descr':'>f4','fortran_order':False,'shape':(1,2)}"), "got >f4"),
        (file(np.asfortranarray(np.ones((2, 2), np.float32))), "fortran_order: True"),
        (file(np.ones((1, 2), np.float64)), "dtype FP64"),
        (file(np.ones((1, 3), np.float32)), "shape [1, 3]"),
        (file(np.ones((1, 2), np.float32)) + b"x", "expected 8 bytes"),
        (file(np.ones((1, 2), np.float32))[:-1], "expected 8 bytes"),
        (file(np.float32(1)), "shape []"),
    ],
)
def test_other_bodies_are_refused(body: bytes, words: str) -> None:
    """Corrupt files, pickles, foreign byte orders, Fortran order and wrong tensors are refused."""
    with pytest.raises(RequestError) as caught:
        request.read_npy(memoryview(body), SIGNATURE_NPY)
    assert words in caught.value.message


def test_structured_dtypes_are_refused() -> None:
    """A structured dtype (a list as descr) does not match the expected header."""
    with pytest.raises(RequestError, match="descr"):
        request.read_npy(memoryview(file(np.zeros(1, [("a", "<f4")]))), SIGNATURE_NPY)


def test_the_input_is_named_or_the_only_one() -> None:
    """With several inputs the name is required, and the other inputs are then missing."""
    two = Signature("tensors", (*SIGNATURE_NPY.inputs, TensorSpec("y", "FP32", (1,))), ())
    body = memoryview(file(np.ones((1, 2), np.float32)))
    assert list(request.read_npy(body, SIGNATURE_NPY, "x")) == ["x"]
    with pytest.raises(RequestError, match="unknown name"):
        request.read_npy(body, SIGNATURE_NPY, "z")
    with pytest.raises(RequestError, match="input=NAME"):
        request.read_npy(body, two)
    with pytest.raises(RequestError, match=r"'y': expected FP32 .* missing"):
        request.read_npy(body, two, "x")


RULES = {"x": InputRule(finite=True)}


def parsed(array: np.ndarray, dtype: str) -> Parsed:
    data = memoryview(array.tobytes())
    return Parsed("npy", {"x": RawInput("binary", dtype, array.shape, data)}, accept.SHORT)


@pytest.mark.parametrize(("dtype", "descr"), [("FP16", "<f2"), ("FP32", "<f4"), ("FP64", "<f8")])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_first_bad_element_is_named(dtype: str, descr: str, bad: float) -> None:
    """The error names the index of the first non-finite element."""
    array = np.ones((2, 3), descr)
    request.check_finite(parsed(array, dtype), RULES)
    array[1, 1:] = bad
    with pytest.raises(RequestError, match=rf"finite {dtype} values, got .* at index \[1, 1\]"):
        request.check_finite(parsed(array, dtype), RULES)


def test_bf16_is_read_by_its_bits() -> None:
    """A BF16 infinity is detected by its exponent bits."""
    data = memoryview(np.array([0x3F80, 0x7F80], np.uint16).tobytes())
    assert request.first_not_finite("BF16", data) == 1


def test_a_sum_that_overflows_refuses_nothing() -> None:
    """Finite values whose sum overflows are accepted."""
    request.check_finite(parsed(np.full(3, 1.7e308), "FP64"), RULES)


def test_only_declared_binary_floats_are_looked_at() -> None:
    """Inputs without the finite rule, integers and JSON are not checked."""
    nan = np.array([np.nan], np.float32)
    request.check_finite(parsed(nan, "FP32"), {})
    request.check_finite(parsed(nan, "FP32"), {"x": InputRule()})
    request.check_finite(parsed(np.array([-1], np.int32), "INT32"), RULES)
    request.check_finite(
        Parsed("short", {"x": RawInput("json", "FP32", (1,), [1.0])}, accept.SHORT), RULES
    )


def test_a_single_number_has_an_empty_index() -> None:
    """A tensor of rank 0 is named without an index."""
    assert request.refusal("x", "FP32", (), 0).got.endswith("at index []")


SIGNATURE_SHORT = Signature(
    "tensors",
    (TensorSpec("input.1", "FP32", (-1, 2)), TensorSpec('say "s"', "BYTES", (-1,))),
    (),
)


def test_inputs_are_read_by_name() -> None:
    """Names with any characters are found, and values keep their shape."""
    body = rb'{"inputs": {"say \"s\"": ["\"input.1\": "], "input.1": [[1, 2]]}}'
    inputs = request.read_short_json(body, SIGNATURE_SHORT, {})
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
        (b'{"inputs": 3}', "got Expected `object`"),
        (b'{"input": {}}', "unknown field"),
        (b"[]", "JSON object"),
        (b"{", "truncated"),
        (b'{"inputs":{"\xff":1}}', "utf-8"),
        (b'{"inputs":' + b"[" * 100_000, "expected a JSON object"),
    ],
)
def test_other_bodies_are_refused_short(body: bytes, words: str) -> None:
    """Missing, unknown or repeated names and other JSON are BAD_INPUT."""
    with pytest.raises(RequestError) as caught:
        request.read_short_json(body, SIGNATURE_SHORT, {})
    assert caught.value.code == BAD_INPUT
    assert words in caught.value.message


def test_any_json_object_is_taken_as_it_is() -> None:
    """A json signature accepts values of any type unchanged."""
    inputs = request.read_values(b'{"inputs": {"a": {"b": [1, null]}, "c": "d"}}')
    assert {name: raw.payload for name, raw in inputs.items()} == {"a": {"b": [1, None]}, "c": "d"}
    assert inputs["a"].encoding == "object"


@pytest.mark.parametrize("body", [b'{"inputs": []}', b"{}", b'{"inputs":{"a":' + b"[" * 100_000])
def test_values_need_an_object(body: bytes) -> None:
    """A json function refuses a body without an object under "inputs", or nested too deeply."""
    with pytest.raises(RequestError, match="expected a JSON object"):
        request.read_values(body)


FILES = {
    "image/png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "image/jpeg": b"\xff\xd8\xff\xe0\0\x10JFIF\0",
    "image/gif": b"GIF89a\1\0\1\0",
    "image/bmp": b"BM\x10\0\0\0\0\0\0\0",
    "image/webp": b"RIFF\x10\0\0\0WEBPVP8 ",
    "audio/wav": b"RIFF\xec\0\0\0WAVEfmt ",
    "audio/flac": b"fLaC\0\0\0\x22",
    "audio/ogg": b"OggS\0\2",
}
"""First bytes of files, by their content type."""
TAKES = {
    "image": InputRule("image", image=ImageForm((1, 1))),
    "audio": InputRule("audio", audio=AudioForm()),
    "bytes": InputRule("bytes"),
}
FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("takes", TAKES)
def test_a_file_sent_as_a_form_is_told_how_to_send_it(takes: str, kind: str, is_cut: bool) -> None:
    """A function that takes the file names its type, one of raw bytes theirs, another none.

    `curl -d` has cut line ends and zero bytes.
    """
    body = FILES[kind].translate(None, b"\r\n\0") if is_cut else FILES[kind]
    with pytest.raises(RequestError) as caught:
        parse(RequestHead(FORM), body, SIGNATURE, {"x": TAKES[takes]})
    said = caught.value.message
    if takes == "bytes" or kind.startswith(takes):
        sent = "application/octet-stream" if takes == "bytes" else kind
        assert said.endswith(f"; with curl: -H 'Content-Type: {sent}' --data-binary @FILE")
    else:
        assert f"; the body is {kind}, which this function does not take: send" in said


@pytest.mark.parametrize("body", [b"hello", bytes(40), b"\xff" * 40])
def test_a_function_of_raw_bytes_proposes_them(body: bytes) -> None:
    """Bytes that are no JSON and no known file go to it as raw bytes."""
    with pytest.raises(RequestError, match="Content-Type: application/octet-stream' --data-binary"):
        parse(RequestHead(FORM), body, SIGNATURE, {"x": TAKES["bytes"]})
    with pytest.raises(RequestError, match="send Content-Type: application/json"):
        parse(RequestHead(FORM), SHORT, SIGNATURE, {"x": TAKES["bytes"]})
