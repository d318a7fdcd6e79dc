"""Writes what `predict` returns, or yields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from python_runner import kinds
from python_runner.bodies import Given
from python_runner.handlers import Handler
from python_runner.settings import Output
from runtime_image.codecs import plain_json
from runtime_image.codecs.accept import JSON, NPY, OCTETS, SHORT, best_of
from runtime_image.contract.errors import FUNCTION_FAILED, RequestError
from runtime_image.contract.model import OutputRule
from runtime_image.contract.signature import Signature

TEXT: Final = "text/plain"
TEXT_UTF8: Final = "text/plain; charset=utf-8"
EVENTS: Final = "text/event-stream"
LINES: Final = "application/x-ndjson"
OUTPUT: Final = "output"
"""Name of a result that is no dict, in JSON."""
_NO_SIGNATURE: Final = Signature("json", (), ())
_JSON: Final = {"content-type": JSON}
_LENGTH: Final = "inference-header-content-length"


class Answer(msgspec.Struct, frozen=True, gc=False):
    """Fields and body of an answer."""

    fields: Mapping[str, str]
    body: bytes


class Writer:
    """Writes the answers of one handler."""

    def __init__(self, handler: Handler, output: Output, revision: str) -> None:
        self._signature = handler.signature or _NO_SIGNATURE
        self._output = output
        self._rule = OutputRule(output.tensor, output.labels, output.top_k)
        self._revision = revision
        self._is_short = output.kind in ("", "json") and not (output.labels or output.top_k)

    def write(self, result: Any, given: Given, accept: str) -> Answer:
        """Return the answer of a result. Raises FUNCTION_FAILED, NOT_ACCEPTABLE or BAD_INPUT."""
        is_any = accept in ("", "*/*")
        if self._is_short and is_any and type(result) is dict and given.answer is SHORT:
            return self._short(result)
        kind = self._output.kind or _kind_of(result)
        if kind in ("text", "bytes"):
            return self._octets(kind, result, accept)
        if kind == "image":
            _check_accept(accept, kinds.PNG)
            return Answer({"content-type": kinds.PNG}, _picture(result))
        outputs = result if isinstance(result, dict) else _outputs(result)
        if kind == "npy" or self._is_tensors(given, accept, outputs):
            return self._tensors(outputs, given, accept, is_npy=kind == "npy")
        _check_accept(accept, JSON)
        return self._short(outputs)

    def _short(self, outputs: dict[str, Any]) -> Answer:
        body: dict[str, Any] = {"outputs": outputs}
        if self._revision:
            body["revision"] = self._revision
        return Answer(_JSON, plain_json.encode_outputs(body, kinds.encoder, kinds.write))

    def _octets(self, kind: str, result: Any, accept: str) -> Answer:
        data = result.encode() if isinstance(result, str) else result
        if not isinstance(data, bytes | bytearray | memoryview):
            raise _failed(f"expected str or bytes for output kind {kind}", result)
        content_type = self._output.content_type or (TEXT_UTF8 if kind == "text" else OCTETS)
        media = content_type.partition(";")[0].strip().lower()
        if kind == "text" and accept and best_of(accept, (media, JSON))[0] == JSON:
            body = {"outputs": {OUTPUT: bytes(data).decode()}}
            return Answer({"content-type": JSON}, plain_json.encode(body))
        _check_accept(accept, media)
        return Answer({"content-type": content_type}, bytes(data))

    def _is_tensors(self, given: Given, accept: str, outputs: dict[str, Any]) -> bool:
        """Whether outputs are written as those of models are: their forms, labels, npy."""
        if given.answer.form != "short" or self._rule.top_k or self._rule.labels:
            return True
        if not accept or self._signature.kind == "tensors":
            return False
        return (
            any(map(plain_json.is_array, outputs.values()))
            and best_of(accept, (JSON, NPY, "*/*"))[0] == NPY
        )

    def _tensors(
        self, outputs: dict[str, Any], given: Given, accept: str, *, is_npy: bool
    ) -> Answer:
        from runtime_image.codecs.accept import AnswerForm
        from runtime_image.codecs.answer import encode, served_model

        form = given.answer
        if form.form == "short" and (is_npy or not (self._rule.top_k or self._rule.labels)):
            _check_accept(accept, NPY)
            form = AnswerForm("npy", tensor=self._rule.tensor)
        model = served_model(self._revision)
        found = encode(outputs, form, self._signature, self._rule, model, given.id)
        fields = {"content-type": found.content_type}
        if found.json_length:
            fields[_LENGTH] = str(found.json_length)
        return Answer(fields, found.body)


def _kind_of(result: Any) -> str:
    if type(result) is dict:
        return "json"
    if isinstance(result, str):
        return "text"
    if isinstance(result, bytes | bytearray | memoryview):
        return "bytes"
    return "image" if kinds.family_of(type(result)) == "picture" else "json"


def _outputs(result: Any) -> dict[str, Any]:
    """Return the members of an object as outputs, or any other result as one output."""
    family = kinds.family_of(type(result))
    if family == "model":
        return {name: getattr(result, name) for name in type(result).model_fields}
    if family is None and not plain_json.is_number(result):
        plain = msgspec.to_builtins(result, enc_hook=lambda value: value)
        if isinstance(plain, dict) and not isinstance(result, Mapping):
            return plain
    return {OUTPUT: result}


def _picture(result: Any) -> bytes:
    if plain_json.is_array(result):
        from PIL import Image

        try:
            result = Image.fromarray(result)
        except (TypeError, ValueError) as error:
            raise _failed(f"expected an array that is a picture ({error})", result) from None
    if kinds.family_of(type(result)) != "picture":
        raise _failed("expected a picture of Pillow or an array for output kind image", result)
    try:
        return kinds.png(result)
    except (OSError, ValueError) as error:
        raise _failed(f"expected a picture with a form as PNG ({error})", result) from None


def _check_accept(accept: str, media: str) -> None:
    """Raise NOT_ACCEPTABLE unless a client takes a media type."""
    if accept and accept != "*/*":
        best_of(accept, (media,))


def _failed(expected: str, result: Any) -> RequestError:
    return RequestError(FUNCTION_FAILED, f"predict: {expected}, got {type(result).__name__}")


class Stream:
    """The form of one stream, which its first value decides."""

    def __init__(self, accept: str, output: Output) -> None:
        self.fields: dict[str, str] = {}
        self.has_begun = False
        self._accept = accept
        self._output = output
        self._media = ""

    def begin(self, first: Any) -> bytes:
        """Return the first value. Raises NOT_ACCEPTABLE if the client takes no form of such
        values."""
        if isinstance(first, bytes | bytearray | memoryview):
            shown = self._output.content_type or OCTETS
            _check_accept(self._accept, shown.partition(";")[0].strip().lower())
            self.fields = {"content-type": shown}
        else:
            self._media = self._choose(is_text=isinstance(first, str))
            shown = self._media
            if shown == TEXT:
                shown = self._output.content_type or TEXT_UTF8
            self.fields = {"content-type": shown, "cache-control": "no-store"}
        part = self.part(first)
        self.has_begun = True
        return part

    def _choose(self, *, is_text: bool) -> str:
        if self._accept in ("", "*/*"):
            return TEXT if is_text and self._output.kind == "text" else EVENTS
        return best_of(self._accept, (EVENTS, LINES, TEXT) if is_text else (EVENTS, LINES))[0]

    def part(self, value: Any) -> bytes:
        """Return one value. Raises FUNCTION_FAILED for one that this form cannot have."""
        is_octets = isinstance(value, bytes | bytearray | memoryview)
        if is_octets and not self._media:
            return bytes(value)
        if is_octets or not self._media:
            expected = (
                "bytes, like the first value" if not self._media else "str or a value of JSON"
            )
            text = f"predict: expected to yield {expected}, got {type(value).__name__}"
            raise RequestError(FUNCTION_FAILED, text)
        if isinstance(value, str) and self._media != LINES:
            return value.encode() if self._media == TEXT else _event(value)
        written = plain_json.encode_outputs({"outputs": value}, kinds.encoder, kinds.write)
        written = written[len(b'{"outputs":') : -1]
        if self._media == EVENTS:
            return b"data: %b\n\n" % written
        return written + b"\n"

    def failure(self, problem: bytes) -> bytes | None:
        """Return the last part of a stream that failed, None for a form that has none: it is
        cut."""
        return b"event: error\ndata: %b\n\n" % problem if self._media == EVENTS else None


def _event(text: str) -> bytes:
    """Return a text as one event. A line end in it begins another line of data (HTML standard,
    9.2.6)."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "".join([*(f"data: {line}\n" for line in lines), "\n"]).encode()
