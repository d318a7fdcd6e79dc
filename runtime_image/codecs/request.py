"""A request body, by its content type, into named inputs that fit the signature.

Nothing here decodes numbers or imports numpy: the gateway checks cold requests with it before it
wakes a device, the replica hands the result to `arrays`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from runtime_image.codecs import json_short, npy, oip, raw
from runtime_image.codecs.accept import (
    JSON,
    NPY,
    OCTETS,
    SHORT,
    AnswerForm,
    choose,
    media_type,
)
from runtime_image.codecs.tensor.checks import RawInput, bad_body, shorten
from runtime_image.contract.errors import UNSUPPORTED_TYPE, RequestError
from runtime_image.contract.model import InputRule
from runtime_image.contract.signature import Signature

RequestForm = Literal["short", "oip", "npy", "raw"]
_URLENCODED: Final = "application/x-www-form-urlencoded"
_FIRST_KEY: Final = re.compile(rb'\s*+\{\s*+"inputs"\s*+:\s*+([\[{])')


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The headers a codec looks at. `json_length`: Inference-Header-Content-Length, bytes."""

    content_type: str
    accept: str = ""
    json_length: int | None = None


@dataclass(slots=True)
class Parsed:
    """A request that fits its function. `id` is the client's own (Open Inference Protocol)."""

    form: RequestForm
    inputs: dict[str, RawInput]
    answer: AnswerForm
    id: str = ""


class _Inputs(msgspec.Struct):
    inputs: msgspec.Raw


_inputs: Final = msgspec.json.Decoder(_Inputs)


def parse(
    head: RequestHead,
    body: bytes | memoryview,
    signature: Signature,
    rules: dict[str, InputRule],
) -> Parsed:
    """Read a body of any form this function takes.

    Raises RequestError: BAD_INPUT where the body does not fit, UNSUPPORTED_TYPE where the content
    type is none of `content_types`, NOT_ACCEPTABLE where Accept leaves no form for the answer.
    Payloads are views of `body`, which must stay as it is until they are decoded.
    """
    media, parameters = media_type(head.content_type)
    if signature.kind == "bytes":
        return _parse_body(head, media, body, signature)
    if not media and bytes(body[:64]).lstrip().startswith(b"{"):
        media = JSON
    if signature.kind == "json":
        if media != JSON:
            raise _unsupported(head, signature, rules)
        values = json_short.read_values(_whole(body))
        return Parsed("short", values, choose(head.accept, SHORT, signature))
    if head.json_length is not None and media in (JSON, OCTETS, ""):
        return _parse_oip(head, body, signature)
    if media == JSON:
        return _parse_json(head, _whole(body), signature)
    if media == NPY:
        inputs = npy.read(memoryview(body), signature, parameters.get("input", ""))
        return Parsed("npy", inputs, choose(head.accept, SHORT, signature))
    return _parse_raw(head, memoryview(body), signature, rules)


def content_types(signature: Signature, rules: dict[str, InputRule]) -> list[str]:
    """What a function takes, as it is told to a client that sent something else."""
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


def _parse_json(head: RequestHead, body: bytes, signature: Signature) -> Parsed:
    if _is_oip(body):
        return _parse_oip(head, body, signature)
    inputs = json_short.read(body, signature)
    return Parsed("short", inputs, choose(head.accept, SHORT, signature))


def _parse_oip(head: RequestHead, body: bytes | memoryview, signature: Signature) -> Parsed:
    request = oip.read(memoryview(body), head.json_length, signature)
    binary = request.binary_all or bool(request.binary)
    default = AnswerForm(
        "oip-binary" if binary else "oip",
        outputs=request.outputs,
        binary=request.binary,
        binary_all=request.binary_all,
    )
    return Parsed("oip", request.inputs, choose(head.accept, default, signature), request.id)


def _parse_body(
    head: RequestHead, media: str, body: bytes | memoryview, signature: Signature
) -> Parsed:
    if media in ("", _URLENCODED):
        raise _unsupported(head, signature, {})
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
        raise _unsupported(head, signature, rules)
    return Parsed("raw", inputs, choose(head.accept, SHORT, signature))


def _is_oip(body: bytes) -> bool:
    """Whether `inputs` is a list; the protocol's form has a list there, the short form an object.

    Usually the first key tells; else the body is skimmed once.
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
    head: RequestHead, signature: Signature, rules: dict[str, InputRule]
) -> RequestError:
    types = content_types(signature, rules)
    expected = "one of: " + ", ".join(types)
    media, _ = media_type(head.content_type)
    got = shorten(head.content_type) if media else "no Content-Type"
    hint = f"; send Content-Type: {types[0]}" if media in ("", _URLENCODED) else ""
    return RequestError(
        UNSUPPORTED_TYPE,
        f"content type: expected {expected}, got {got}{hint}",
        expected=expected,
        got=got,
    )
