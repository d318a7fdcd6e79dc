"""Reads the body of a call to the arguments of `predict`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from python_runner.connections import Request
from python_runner.handlers import Handler
from python_runner.kinds import Unfit, read_tensor
from python_runner.parameters import Parameter, unfit
from runtime_image.codecs import multipart
from runtime_image.codecs.accept import JSON, NPY, OCTETS, SHORT, AnswerForm, media_type
from runtime_image.codecs.raw import BODY
from runtime_image.codecs.request import RequestHead, content_types, parse
from runtime_image.codecs.tensors import bad_body, shorten
from runtime_image.contract.errors import BAD_INPUT, UNSUPPORTED_TYPE, RequestError, bad_input
from runtime_image.contract.model import InputRule
from runtime_image.contract.signature import Signature, TensorSpec

FORM: Final = "multipart/form-data"
URLENCODED: Final = "application/x-www-form-urlencoded"
FIELDS_MAX: Final = multipart.FIELDS_MAX
LENGTH: Final = "inference-header-content-length"
_RAW: Final = {
    NPY: NPY,
    "image/png": "image/*",
    "audio/wav": "audio/*",
    "text/plain": "text/plain",
    OCTETS: OCTETS,
}
"""Types of bodies that are one parameter, and how a refusal names them."""
_JSON_STARTS: Final = ("[", "{", '"')


class Given(msgspec.Struct, frozen=True):
    """Arguments of one call: one value if all inputs are one parameter, else values by name.
    `answer` and `id` are for the answer to tensors."""

    arguments: Any
    answer: AnswerForm = SHORT
    id: str = ""


def read_body(request: Request, handler: Handler) -> Given:
    """Return the arguments of a call. Raises RequestError."""
    fields = request.head.fields
    content_type = fields.get("content-type", "")
    media = media_type(content_type)[0]
    if not media and request.body.lstrip()[:1] in (b"", b"{"):
        media = JSON
    if media in (FORM, URLENCODED) and (handler.signature is None or media == FORM):
        values = _form(request.body, content_type, media, handler)
        return Given(_form_arguments(values, handler))
    if handler.signature is not None:
        return _tensors(request, handler, handler.signature)
    if media == JSON:
        body = request.body or b'{"inputs":{}}'
        return Given(_ruled(handler.parameters.from_json(body), handler.parameters.rules))
    name = _taker(handler, media, content_type)
    return Given(_form_arguments({name: [request.body]}, handler))


def _tensors(request: Request, handler: Handler, signature: Signature) -> Given:
    """Read a body of tensors, or one raw body, as models do."""
    fields = request.head.fields
    length = fields.get(LENGTH)
    if length is not None and not (length.isascii() and length.isdigit() and len(length) < 16):
        raise bad_body("Inference-Header-Content-Length in digits", shorten(length))
    head = RequestHead(
        fields.get("content-type", ""),
        fields.get("accept", ""),
        None if length is None else int(length),
    )
    rules = handler.parameters.rules
    parsed = parse(head, request.body, signature, rules)
    if signature.kind == "tensors":
        from runtime_image.codecs.arrays import to_arrays

        arguments = to_arrays(parsed, signature, rules)
    else:
        arguments = {name: raw.payload for name, raw in parsed.inputs.items()}
    return Given(_checked(handler, arguments), parsed.answer, parsed.id)


def _checked(handler: Handler, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by name. The manifest may declare what `predict` does not take."""
    parameters = handler.parameters
    if parameters.whole or parameters.takes_others:
        return arguments
    known = {one.name for one in parameters.named}
    return {name: value for name, value in arguments.items() if name in known}


def _form(
    body: bytes, content_type: str, media: str, handler: Handler
) -> dict[str, list[str | bytes]]:
    """Return the fields of a form: texts, and the bytes of files. Raises RequestError."""
    if media == URLENCODED:
        return _urlencoded(body, handler)
    try:
        kind = multipart.form_type(content_type.encode("latin-1"))
        if kind.charset:
            raise multipart.BadForm("Content-Type: expected texts in UTF-8, got another charset")
        found: dict[str, list[str | bytes]] = {}
        for part in multipart.parts(body, kind):
            if part is not None:
                name = _utf8(part.name.encode("latin-1"), "a name")
                value = body[part.begin : part.end]
                found.setdefault(name, []).append(_field(name, part, value))
    except multipart.BadForm as error:
        raise RequestError(BAD_INPUT, str(error)) from None
    return found


def _field(name: str, part: multipart.Part, value: bytes) -> str | bytes:
    coding = part.head.get(b"content-transfer-encoding", b"binary").lower()
    if coding not in (b"binary", b"8bit", b"7bit"):
        got = multipart.shown(coding)
        raise multipart.BadForm(f"Content-Transfer-Encoding: expected binary, got {got}")
    if part.is_file or part.media()[0] not in (b"text/plain", b"application/json"):
        return value
    return _utf8(value, shorten(name))


def _utf8(value: bytes, what: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise multipart.BadForm(
            f"{what}: expected UTF-8, got other bytes at {error.start}"
        ) from None


def _urlencoded(body: bytes, handler: Handler) -> dict[str, list[str | bytes]]:
    from urllib.parse import parse_qsl

    if body.lstrip()[:1] in (b"{", b"["):
        # What `curl -d` sends for JSON.
        raise _unsupported(handler, URLENCODED, f"; with curl: -H 'Content-Type: {JSON}'")
    found: dict[str, list[str | bytes]] = {}
    try:
        pairs = parse_qsl(
            body.decode(),
            keep_blank_values=True,
            strict_parsing=bool(body),
            errors="strict",
            max_num_fields=FIELDS_MAX,
        )
    except ValueError as error:
        raise bad_body(f"at most {FIELDS_MAX} fields name=value in UTF-8", str(error)) from None
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


def _form_arguments(values: Mapping[str, list[str | bytes]], handler: Handler) -> Any:
    """Return the arguments that the fields of a form, or a raw body, are. Raises RequestError."""
    parameters = handler.parameters
    known = {one.name: one for one in parameters.named}
    rules = dict(parameters.rules)
    if handler.signature is not None and handler.signature.kind == "tensors":
        return _checked(handler, _form_tensors(values, handler.signature, rules))
    found: dict[str, Any] = {}
    for name, items in values.items():
        one = known.get(name, Parameter(name, Any, has_default=False))
        if one.is_many:
            found[name] = [_item(one, item) for item in items]
        else:
            found[name] = _item(one, _single(name, items))
    return _ruled(parameters.from_values(found), rules)


def _form_tensors(
    values: Mapping[str, list[str | bytes]], signature: Signature, rules: dict[str, InputRule]
) -> dict[str, Any]:
    known = ", ".join(spec.name for spec in signature.inputs)
    for name in values:
        if signature.input(name) is None:
            raise unfit(name, f"one of: {known}", "an unknown name")
    found = {}
    for spec in signature.inputs:
        if spec.name not in values:
            raise unfit(spec.name, "a value", "nothing: it is missing")
        item = _single(spec.name, values[spec.name])
        found[spec.name] = _tensor(spec, item, rules.get(spec.name))
    return found


def _tensor(spec: TensorSpec, item: str | bytes | list[Any], rule: InputRule | None) -> Any:
    try:
        value = msgspec.json.decode(item) if isinstance(item, str) else item
        return read_tensor(spec, value, rule)
    except Unfit as error:
        raise bad_input(spec.name, error.expected, error.got) from None
    except (ValueError, RecursionError):
        raise unfit(spec.name, "lists of numbers in JSON, or a file", "other text") from None


def _ruled(arguments: Any, rules: Mapping[str, InputRule]) -> Any:
    """Return arguments of which those with a rule are what it makes of them: files and lists are
    arrays."""
    if not isinstance(arguments, dict):
        return arguments
    for name, rule in rules.items():
        value = arguments.get(name)
        is_plain = rule.kind == "json" or not (rule.dtype or rule.image or rule.audio)
        if value is None or is_plain or not isinstance(value, bytes | list | str):
            continue
        spec = TensorSpec(name, rule.dtype or "FP32", rule.shape or None)
        arguments[name] = _tensor(spec, value, rule)
    return arguments


def _single(name: str, items: list[str | bytes]) -> str | bytes:
    if len(items) != 1:
        raise unfit(name, "to be given once", f"{len(items)} values")
    return items[0]


def _item(one: Parameter, item: str | bytes) -> Any:
    """Return one field of a form as something that msgspec converts to the parameter's type."""
    if one.item is Any:
        return item
    if one.item is bytes or one.takes("picture"):
        return item.encode() if one.item is bytes and isinstance(item, str) else item
    if one.takes("array") and isinstance(item, bytes):
        return item
    if isinstance(item, bytes):
        try:
            item = item.decode()
        except UnicodeDecodeError:
            raise unfit(one.name, "text in UTF-8", "other bytes") from None
    if one.item is not str and item.lstrip()[:1] in _JSON_STARTS:
        try:
            return msgspec.json.decode(item)
        except (ValueError, RecursionError):
            return item
    return item


def _taker(handler: Handler, media: str, content_type: str) -> str:
    """Return the parameter that takes a body as a whole. Raises UNSUPPORTED_TYPE."""
    parameters = handler.parameters
    if parameters.whole:
        if parameters.hint == dict[str, Any] and media:
            return BODY
        raise _unsupported(handler, content_type)
    for names in _candidates(handler, media):
        if len(names) == 1:
            return names[0]
    raise _unsupported(handler, content_type)


def _candidates(handler: Handler, media: str) -> list[list[str]]:
    """Return the parameters that could take a body of a type, in the order of their fitness."""
    named = handler.parameters.named
    rules = handler.parameters.rules
    family = media.partition("/")[0]
    raw = [one.name for one in named if one.item is bytes and not one.is_many]
    found = []
    if media == NPY:
        found.append([one.name for one in named if one.takes("array") and not one.is_many])
    if family == "image":
        found.append([one.name for one in named if one.takes("picture") and not one.is_many])
    if family in ("image", "audio"):
        found.append([name for name, rule in rules.items() if rule.kind == family])
    if media.startswith("text/"):
        found.append([one.name for one in named if one.item is str and not one.is_many])
    return [*found, raw]


def accepted(handler: Handler) -> list[str]:
    """Return the content types that calls may have."""
    if handler.signature is not None:
        return [*content_types(handler.signature, handler.parameters.rules), FORM]
    types = [JSON, FORM, URLENCODED]
    if handler.parameters.whole:
        return [*types, "any other type"] if handler.parameters.hint == dict[str, Any] else types
    for media, shown in _RAW.items():
        if any(len(names) == 1 for names in _candidates(handler, media)):
            types.append(shown)
    return types


def _unsupported(handler: Handler, content_type: str, hint: str = "") -> RequestError:
    expected = "one of: " + ", ".join(accepted(handler))
    got = shorten(content_type) or "no Content-Type"
    text = f"content type: expected {expected}, got {got}{hint}"
    return RequestError(UNSUPPORTED_TYPE, text, expected=expected, got=got)
