"""Parses a request body, by its content type, to named inputs that fit the signature.

This module decodes no numbers and does not import numpy: the gateway checks cold requests with it
before it starts a replica, and a replica passes the result to `arrays`. It parses short JSON,
{"inputs": {name: nested list}}, and npy, one tensor per body.
Source for npy: NumPy's NEP 1 and `numpy.lib.format`: magic, version, little-endian header length (2
bytes in version 1.0, 4 in 2.0 and 3.0), then a Python dict literal with descr, fortran_order and
shape.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from runtime_image.codecs import oip, raw, tensors
from runtime_image.codecs.accept import (
    JSON,
    NPY,
    OCTETS,
    OIP,
    SHORT,
    AnswerForm,
    choose,
    media_type,
)
from runtime_image.codecs.json_faults import bad_json
from runtime_image.codecs.tensors import (
    RawInput,
    bad_body,
    check_names,
    from_binary,
    shorten,
)
from runtime_image.contract import dtypes
from runtime_image.contract.errors import UNSUPPORTED_TYPE, RequestError, bad_input
from runtime_image.contract.model import InputRule
from runtime_image.contract.signature import Signature

RequestForm = Literal["short", "oip", "npy", "raw"]
_URLENCODED: Final = "application/x-www-form-urlencoded"
_FIRST_KEY: Final = re.compile(rb'\s*+\{\s*+"inputs"\s*+:\s*+([\[{])')
_EXPECTED: Final = 'a JSON object {"inputs": {name: value}}'
_JSON_START: Final = re.compile(rb"(?:\xef\xbb\xbf)?+\s*+\{")
_QUOTE: Final = b'"'
_EXPONENT: Final = {"FP16": 0x7C00, "BF16": 0x7F80}
"""IEEE 754: all exponent bits set means an infinity or a NaN."""
HEADER_MAX: Final = 4096
"""Bytes. NumPy writes 118 for small ranks; int() of this many digits is still cheap."""
_MAGIC: Final = b"\x93NUMPY"
_LENGTH_BYTES: Final = {b"\x01\x00": 2, b"\x02\x00": 4, b"\x03\x00": 4}
# Three entries in any order. Possessive quantifiers prevent backtracking on hostile headers.
_HEADER: Final = re.compile(
    r"""\s*+\{\s*+(?:(?:
        ['"]descr['"]\s*+:\s*+(?:'(?P<descr>[^'\\]*+)'|(?P<fields>\[))
        |['"]fortran_order['"]\s*+:\s*+(?P<fortran>True|False)
        |['"]shape['"]\s*+:\s*+\((?P<shape>[\d,\s]*+)\)
    )\s*+,?+\s*+){3}\}\s*+""",
    re.VERBOSE | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class RequestHead:
    """Request headers that codecs need. `json_length`: Inference-Header-Content-Length in bytes."""

    content_type: str
    accept: str = ""
    json_length: int | None = None


@dataclass(slots=True)
class Parsed:
    """A parsed request. `id` is the client's request id (Open Inference Protocol)."""

    form: RequestForm
    inputs: dict[str, RawInput]
    answer: AnswerForm
    id: str = ""


class _Inputs(msgspec.Struct):
    inputs: msgspec.Raw


class _Tensors(msgspec.Struct, forbid_unknown_fields=True):
    inputs: dict[str, msgspec.Raw]


class _Values(msgspec.Struct, forbid_unknown_fields=True):
    inputs: dict[str, Any]


_inputs: Final = msgspec.json.Decoder(_Inputs)
_tensors: Final = msgspec.json.Decoder(_Tensors)
_values: Final = msgspec.json.Decoder(_Values)


def parse(
    head: RequestHead,
    body: bytes | memoryview,
    signature: Signature,
    rules: dict[str, InputRule],
) -> Parsed:
    """Parse a body in any form that the function accepts.

    Raises RequestError: BAD_INPUT if the body does not fit, UNSUPPORTED_TYPE if the content type is
    not in `content_types`, NOT_ACCEPTABLE if Accept allows no form of the answer.
    Payloads are views of `body`, which must not change until they are decoded.
    """
    media, parameters = media_type(head.content_type)
    if signature.kind == "bytes":
        return _parse_body(head, media, body, signature)
    if not media and _JSON_START.match(bytes(body[:64])):
        media = JSON
    if signature.kind == "json":
        if media != JSON:
            raise _unsupported(head, signature, rules, memoryview(body))
        values = read_values(_whole(body))
        return Parsed("short", values, choose(head.accept, SHORT, signature))
    if media == OIP or (head.json_length is not None and media in (JSON, OCTETS, "")):
        return _parse_oip(head, body, signature, rules)
    if media == JSON:
        return _parse_json(head, _whole(body), signature, rules)
    if media == NPY:
        inputs = read_npy(memoryview(body), signature, parameters.get("input", ""))
        return Parsed("npy", inputs, choose(head.accept, SHORT, signature))
    return _parse_raw(head, memoryview(body), signature, rules)


def content_types(signature: Signature, rules: dict[str, InputRule]) -> list[str]:
    """Return the content types that a function accepts, for the error about any other; [] for a
    server function, which decides by itself."""
    if signature.kind == "http":
        return []
    if signature.kind == "bytes":
        return [OCTETS, "any other type but " + _URLENCODED]
    if signature.kind == "json":
        return [JSON]
    types = [JSON, f"{OCTETS} with Inference-Header-Content-Length"]
    if len(signature.inputs) == 1:
        types.append(NPY)
    if raw.declared(signature, rules, "bytes"):
        types.append(OCTETS)
    if raw.declared(signature, rules, "image"):
        types.append("image/*")
    if raw.declared(signature, rules, "audio"):
        types.append(raw.AUDIO_TYPES[0])
    return types


def _parse_json(
    head: RequestHead, body: bytes, signature: Signature, rules: dict[str, InputRule]
) -> Parsed:
    if _is_oip(body):
        return _parse_oip(head, body, signature, rules)
    inputs = read_short_json(body, signature, rules)
    return Parsed("short", inputs, choose(head.accept, SHORT, signature))


def _parse_oip(
    head: RequestHead,
    body: bytes | memoryview,
    signature: Signature,
    rules: dict[str, InputRule],
) -> Parsed:
    request = oip.read(memoryview(body), head.json_length, signature, rules)
    binary = request.binary_all or bool(request.binary)
    default = AnswerForm(
        "oip-binary" if binary else "oip",
        outputs=request.outputs,
        binary=request.binary,
        binary_all=request.binary_all,
        classes=request.classes,
    )
    return Parsed("oip", request.inputs, choose(head.accept, default, signature), request.id)


def _parse_body(
    head: RequestHead, media: str, body: bytes | memoryview, signature: Signature
) -> Parsed:
    if media in ("", _URLENCODED):
        raise _unsupported(head, signature, {}, memoryview(body))
    answer = choose(head.accept, SHORT, signature)
    return Parsed("raw", raw.read_body(memoryview(body), signature), answer)


def _parse_raw(
    head: RequestHead, body: memoryview, signature: Signature, rules: dict[str, InputRule]
) -> Parsed:
    media, _ = media_type(head.content_type)
    if media == OCTETS and (name := raw.declared(signature, rules, "bytes")):
        inputs = raw.read_bytes(body, signature, rules[name], name)
    elif media.startswith("image/") and (name := raw.declared(signature, rules, "image")):
        inputs = raw.read_image(body, signature, name)
    elif media in raw.AUDIO_TYPES and (name := raw.declared(signature, rules, "audio")):
        inputs = raw.read_audio(body, signature, name)
    else:
        raise _unsupported(head, signature, rules, body)
    return Parsed("raw", inputs, choose(head.accept, SHORT, signature))


def _is_oip(body: bytes) -> bool:
    """Whether `inputs` is a list (Open Inference Protocol) and not an object (short form).

    Usually the first key shows it; otherwise the body is scanned once.
    """
    first = _FIRST_KEY.match(body)
    if first is not None:
        return first[1] == b"["
    try:
        return bytes(_inputs.decode(body).inputs).startswith(b"[")
    except (ValueError, RecursionError):
        return False


def _whole(body: bytes | memoryview) -> bytes:
    if not body:
        raise bad_body("a JSON object", "an empty body")
    return bytes(body)


def _unsupported(
    head: RequestHead, signature: Signature, rules: dict[str, InputRule], body: memoryview
) -> RequestError:
    types = content_types(signature, rules)
    expected = "one of: " + ", ".join(types)
    media, _ = media_type(head.content_type)
    got = shorten(head.content_type) if media else "no Content-Type"
    hint = _hint(media, types, body) if media in ("", _URLENCODED) else ""
    return RequestError(
        UNSUPPORTED_TYPE,
        f"content type: expected {expected}, got {got}{hint}",
        expected=expected,
        got=got,
    )


def _hint(media: str, types: list[str], body: memoryview) -> str:
    """Return which of the accepted `types` a body without a type of its own needs."""
    kind = NPY if bytes(body[: len(_MAGIC)]) == _MAGIC else raw.media_of(body)
    family = kind.partition("/")[0]
    is_sound = family == "audio" and raw.AUDIO_TYPES[0] in types
    if not (kind in types or f"{family}/*" in types or is_sound):
        is_raw = OCTETS in types and not _JSON_START.match(bytes(body[:64]))
        what = f"the body is {kind}, which this function does not take: " if kind else ""
        if not is_raw:
            return f"; {what}send Content-Type: {types[0]}"
        kind = OCTETS
    if media == _URLENCODED:
        return f"; with curl: -H 'Content-Type: {kind}' --data-binary @FILE"
    return f"; send Content-Type: {kind}"


def check_finite(parsed: Parsed, rules: dict[str, InputRule]) -> None:
    """Raise BAD_INPUT with the first element that is not finite in an input declared finite.

    Only binary elements can be such numbers: `parse` has refused them in JSON. Views are read in
    native byte order, which is little-endian on every platform for which a replica's wheels exist.
    """
    for name, tensor in parsed.inputs.items():
        rule = rules.get(name)
        if rule is None or not rule.finite:
            continue
        if tensor.encoding != "binary" or tensor.dtype not in dtypes.FLOATS:
            continue
        index = first_not_finite(tensor.dtype, tensor.payload)
        if index is not None:
            raise refusal(name, tensor.dtype, tensor.shape, index)


def first_not_finite(dtype: str, data: memoryview) -> int | None:
    """Return the position of the first NaN or infinity in `data`, or None."""
    mask = _EXPONENT.get(dtype)
    if mask is not None:
        bits = data.cast("B").cast("H")
        return next((at for at, value in enumerate(bits) if value & mask == mask), None)
    octets = data.cast("B")
    values = (octets.cast("f") if dtype == "FP32" else octets.cast("d")).tolist()
    # A sum with a NaN or infinity is never finite, so a finite sum clears all elements at once.
    if math.isfinite(sum(values)):
        return None
    return next((at for at, value in enumerate(values) if not math.isfinite(value)), None)


def refusal(name: str, dtype: str, shape: tuple[int, ...], position: int) -> RequestError:
    """Return the error for the element at row-major `position` of a tensor of `shape`."""
    index: list[int] = []
    for size in reversed(shape):
        position, place = divmod(position, size)
        index.insert(0, place)
    return bad_input(name, f"finite {dtype} values", f"NaN or infinity at index {index}")


def read_short_json(
    body: bytes, signature: Signature, rules: dict[str, InputRule]
) -> dict[str, RawInput]:
    """Return the inputs of a function with tensors; raises BAD_INPUT."""
    try:
        given = _tensors.decode(body).inputs
    except (ValueError, RecursionError) as error:
        raise bad_json(_EXPECTED, body, error) from None
    check_names(given, signature)
    inputs: dict[str, RawInput] = {}
    for spec in signature.inputs:
        null = tensors.has_null(spec, rules)
        value, shape = tensors.read(spec, given[spec.name], null=null)
        inputs[spec.name] = RawInput("json", spec.dtype, shape, value)
    _check_repeated(body, given, signature)
    return inputs


def read_values(body: bytes) -> dict[str, RawInput]:
    """Return the inputs of a function that accepts any JSON object; raises BAD_INPUT.

    The last value of a repeated name counts, as in most JSON parsers.
    """
    try:
        given = _values.decode(body).inputs
    except (ValueError, RecursionError) as error:
        raise bad_json(_EXPECTED, body, error) from None
    return {name: RawInput("object", "", (), value) for name, value in given.items()}


def _check_repeated(body: bytes, given: dict[str, msgspec.Raw], signature: Signature) -> None:
    """Raise BAD_INPUT for a repeated name, of which the decoder returns only the last value.

    Every key has two quotes and numbers have none: more quotes mean another key.
    """
    quotes = body.count(_QUOTE)
    wanted = 2
    for spec in signature.inputs:
        wanted += 2 + spec.name.count('"')
        if spec.dtype == dtypes.BYTES:
            quotes -= bytes(given[spec.name]).count(_QUOTE)
    if quotes > wanted:
        names = ", ".join(given)
        raise bad_input(shorten(names), "each input to be given once", "a name given twice")


def read_npy(body: memoryview, signature: Signature, name: str = "") -> dict[str, RawInput]:
    """Return the tensor as input `name`, or as the only input; raises BAD_INPUT."""
    if not name and len(signature.inputs) == 1:
        name = signature.inputs[0].name
    if not name:
        names = ", ".join(spec.name for spec in signature.inputs) or "no input at all"
        raise bad_body(f"an application/x-npy body for one input, of: {names}", "no input=NAME")
    check_names([name], signature)
    header, data = _split_npy(body)
    dtype, shape = _parse_npy_header(name, header)
    return {name: from_binary(signature.inputs[0], dtype, shape, data)}


def _split_npy(body: memoryview) -> tuple[str, memoryview]:
    if bytes(body[:6]) != _MAGIC:
        raise bad_body("an npy file, which begins with \\x93NUMPY", "other bytes")
    version = bytes(body[6:8])
    width = _LENGTH_BYTES.get(version)
    if width is None:
        raise bad_body("npy version 1.0, 2.0 or 3.0", f"version bytes {version.hex() or 'missing'}")
    start = 8 + width
    length = int.from_bytes(body[8:start], "little")
    if length > HEADER_MAX or len(body) < start + length:
        at_most = min(HEADER_MAX, max(0, len(body) - start))
        raise bad_body(f"an npy header of at most {at_most} bytes", f"{length} bytes")
    # latin-1 decodes any byte; non-ASCII names occur only in structured dtypes, refused below.
    return str(body[start : start + length], "latin-1"), body[start + length :]


def _parse_npy_header(name: str, header: str) -> tuple[str, tuple[int, ...]]:
    found = _HEADER.fullmatch(header)
    if found is None or None in (found["fortran"], found["shape"]):
        raise bad_input(
            name, "an npy header with descr, fortran_order and shape", repr(shorten(header))
        )
    dtype = dtypes.FROM_NPY.get(found["descr"] or "")
    if dtype is None:
        known = ", ".join(dtypes.FROM_NPY)
        got = found["descr"] or "a structured dtype"
        raise bad_input(name, f"an npy descr of: {known}", shorten(got))
    if found["fortran"] == "True":
        raise bad_input(name, "C order (numpy.ascontiguousarray)", "fortran_order: True")
    sizes = [size.strip() for size in found["shape"].split(",")]
    if sizes[-1] == "":
        sizes.pop()
    if not all(size.isdecimal() for size in sizes):
        raise bad_input(name, "an npy shape of integers", f"({shorten(found['shape'])})")
    return dtype, tuple(int(size) for size in sizes)
