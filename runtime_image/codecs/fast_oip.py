"""Fast path of the Open Inference Protocol: plain requests of numbers, and the answers of a batch.

A client repeats the JSON part of its binary requests, and the members `outputs` and `parameters` of
its JSON requests. What they mean is parsed once by `request.parse`, and then looked up by their
bytes. Every other request, and every error, takes the ordinary path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from struct import pack
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from runtime_image.codecs.accept import OCTETS, AnswerForm
from runtime_image.codecs.answer import Answer, ServedModel
from runtime_image.codecs.arrays import DTYPES
from runtime_image.codecs.request import Parsed
from runtime_image.codecs.tensors import nested_type
from runtime_image.contract.model import InputRule
from runtime_image.contract.signature import DYNAMIC, Signature, TensorSpec

HEADS_MAX: Final = 64
"""Max number of remembered heads, and of members; all are forgotten at once."""
HEAD_MAX: Final = 2048
"""Max bytes of a remembered head or member."""
FRAMES_MAX: Final = 256
_FORMATS: Final = {
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP32": "f",
    "FP64": "d",
}
"""`struct` format characters. Missing types take the ordinary path, which checks their content."""
_WRITTEN: Final = {DTYPES[name]: name for name in (*_FORMATS, "BOOL", "UINT64")}
"""Datatypes of outputs whose rows JSON and bytes can represent without a check."""


class Found(NamedTuple):
    """A request that was read: arrays in the signature's order, form of the answer, and its id."""

    arrays: dict[str, Any]
    answer: AnswerForm
    id: str


class Missed(NamedTuple):
    """A request that the ordinary path must read. `head`: what to remember of it, b"" for none."""

    head: bytes


class _Tensor(NamedTuple):
    name: str
    dtype: np.dtype[Any]
    start: int
    elements: int
    shape: tuple[int, ...]


class _Head(NamedTuple):
    """What the JSON part of a binary request means. `size`: bytes of the whole request."""

    tensors: tuple[_Tensor, ...]
    size: int
    answer: AnswerForm
    id: str


PLAIN: Final = AnswerForm("oip")
_MISSED: Final = Missed(b"")


def oip_reader(signature: Signature, rules: Mapping[str, InputRule]) -> OipReader | None:
    """Return a reader if all inputs are numbers that need no check of their content, else None."""
    if signature.kind != "tensors" or not signature.inputs or rules:
        return None
    if not all(spec.dtype in _FORMATS for spec in signature.inputs):
        return None
    return OipReader(signature)


class OipReader:
    """Reads requests of one signature. Thread-safe: what it remembers is replaced, not changed."""

    def __init__(self, signature: Signature) -> None:
        self._specs = signature.inputs
        self._heads: dict[bytes, _Head] = {}
        self._forms: dict[bytes, AnswerForm] = {}
        self._decode = self._decoder() if len({spec.dtype for spec in self._specs}) == 1 else None

    def _decoder(self) -> Callable[[bytes], Any]:
        data = nested_type(TensorSpec("", self._specs[0].dtype, (DYNAMIC,)))
        maybe, unset = msgspec.Raw | msgspec.UnsetType, msgspec.UNSET
        tensor = msgspec.defstruct(
            "Tensor",
            [
                ("name", str),
                ("shape", list[int]),
                ("datatype", str),
                ("data", data),
                ("parameters", maybe, unset),
            ],
        )
        body = msgspec.defstruct(
            "Body",
            [
                ("inputs", list[tensor]),  # type: ignore[valid-type]  # built at run time
                ("id", str, ""),
                ("outputs", maybe, unset),
                ("parameters", maybe, unset),
            ],
        )
        return msgspec.json.Decoder(body).decode

    def read(self, body: bytes, json_length: int) -> Found | Missed:
        """Read a request. `json_length`: bytes of its JSON part, -1 if it is all JSON."""
        if json_length < 0:
            return self._read_json(body)
        if json_length > HEAD_MAX:
            return _MISSED
        text = body[:json_length]
        head = self._heads.get(text)
        if head is None or len(body) != head.size:
            return Missed(text)
        arrays = {}
        for name, dtype, start, count, shape in head.tensors:
            if start % dtype.itemsize:  # engines use aligned loads
                flat = np.frombuffer(body[start : start + count * dtype.itemsize], dtype)
            else:
                flat = np.frombuffer(body, dtype, count, start)
            arrays[name] = flat.reshape(shape)
        return Found(arrays, head.answer, head.id)

    def _read_json(self, body: bytes) -> Found | Missed:
        if self._decode is None:
            return _MISSED
        try:
            request = self._decode(body)
        except (ValueError, RecursionError):
            return _MISSED
        arrays = self._arrays(request.inputs)
        if arrays is None:
            return _MISSED
        if request.outputs is msgspec.UNSET and request.parameters is msgspec.UNSET:
            return Found(arrays, PLAIN, request.id)
        members = _members(request)
        form = self._forms.get(members)
        if form is None:
            return Missed(members)
        return Found(arrays, form, request.id)

    def _arrays(self, tensors: Sequence[Any]) -> dict[str, Any] | None:
        """Return the arrays of flat data, None for anything unusual."""
        given = {tensor.name: tensor for tensor in tensors}
        if len(given) != len(self._specs) or len(tensors) != len(self._specs):
            return None
        arrays: dict[str, Any] = {}
        for spec in self._specs:
            tensor = given.get(spec.name)
            if tensor is None or tensor.datatype != spec.dtype:
                return None
            shape, data = tuple(tensor.shape), tensor.data
            if tensor.parameters is not msgspec.UNSET or not spec.accepts(shape):
                return None
            if not data or len(data) != math.prod(shape):
                return None
            packed = pack(f"<{len(data)}{_FORMATS[spec.dtype]}", *data)
            arrays[spec.name] = np.frombuffer(packed, DTYPES[spec.dtype]).reshape(shape)
        return arrays

    def remember(self, missed: Missed, size: int, json_length: int, parsed: Parsed) -> None:
        """Remember what the ordinary path has read from a request of `size` bytes."""
        text = missed.head
        if not text or len(text) > HEAD_MAX:
            return
        if json_length < 0:
            kept = self._forms if len(self._forms) < HEADS_MAX else {}
            self._forms = {**kept, text: parsed.answer}
            return
        tensors = []
        # In the order of the body, which is that of the client.
        start = json_length
        for name, raw in parsed.inputs.items():
            count = math.prod(raw.shape)
            if raw.encoding != "binary" or not count:
                return
            tensors.append(_Tensor(name, DTYPES[raw.dtype], start, count, raw.shape))
            start += count * DTYPES[raw.dtype].itemsize
        by_name = {tensor.name: tensor for tensor in tensors}
        ordered = tuple(by_name[spec.name] for spec in self._specs)
        heads = self._heads if len(self._heads) < HEADS_MAX else {}
        self._heads = {**heads, text: _Head(ordered, size, parsed.answer, parsed.id)}


def _members(request: Any) -> bytes:
    """Return the members that choose the form of the answer, b"" if they are too long."""
    parts = [
        b"" if value is msgspec.UNSET else bytes(value)
        for value in (request.outputs, request.parameters)
    ]
    # No JSON text contains a zero byte.
    return b"\0".join(parts) if sum(map(len, parts)) < HEAD_MAX else b""


_encoder: Final = msgspec.json.Encoder()


class _Part(NamedTuple):
    """One output of a batch, in one form. `rows`: its rows in JSON, or its bytes."""

    is_binary: bool
    rows: Any
    row_bytes: int


class OipWriter:
    """Writes the answers of one model. Every row is encoded once, and the text around the rows is
    remembered."""

    def __init__(self, model: ServedModel) -> None:
        names = _encoder.encode(model.name), _encoder.encode(model.version)
        self._start = b'{"model_name":%b,"model_version":%b' % names
        # Frames of the last outputs only: a handler may return others every time.
        self._frames: tuple[Any, dict[Any, bytes]] = (), {}

    def write(
        self,
        outputs: dict[str, Any],
        ranges: Sequence[tuple[int, int]],
        wanted: Sequence[tuple[AnswerForm, str]],
    ) -> list[bytes | Answer | None] | None:
        """Return the answer of each request: JSON, or another form with its JSON part's length.

        `wanted`: form and id of each. None for a request of another protocol, or for all if an
        output is not numeric or does not have one row per row of the batch.
        """
        if not _are_plain(outputs, ranges[-1][1]):
            return None
        layout = tuple((name, array.dtype, array.shape[1:]) for name, array in outputs.items())
        last, frames = self._frames
        if last != layout or len(frames) > FRAMES_MAX:
            frames = {}
            self._frames = layout, frames
        parts: dict[tuple[str, bool], _Part] = {}
        return [
            self._answer(outputs, place, form, id, parts, frames)
            for place, (form, id) in zip(ranges, wanted, strict=True)
        ]

    def _answer(
        self,
        outputs: dict[str, Any],
        place: tuple[int, int],
        form: AnswerForm,
        id: str,
        parts: dict[tuple[str, bool], _Part],
        frames: dict[Any, bytes],
    ) -> bytes | Answer | None:
        if form.form not in ("oip", "oip-binary") or form.classes:
            return None
        start, stop = place
        names = form.outputs or tuple(outputs)
        chosen = []
        for name in names:
            is_binary = form.binary_all or name in form.binary
            part = parts.get((name, is_binary))
            if part is None:
                if name not in outputs:
                    return None
                part = parts[name, is_binary] = _part(outputs[name], is_binary=is_binary)
            chosen.append(part)
        frame = frames.get((form, stop - start))
        if frame is None:
            frame = self._frame(outputs, names, chosen, stop - start)
            frames[form, stop - start] = frame
        shown = b',"id":' + _encoder.encode(id) if id else b""
        text = frame % (
            shown,
            *(b",".join(part.rows[start:stop]) for part in chosen if not part.is_binary),
        )
        if form.form == "oip":
            return text
        raw = (
            part.rows[start * part.row_bytes : stop * part.row_bytes]
            for part in chosen
            if part.is_binary
        )
        return Answer(OCTETS, len(text), b"".join([text, *raw]))

    def _frame(
        self, outputs: dict[str, Any], names: Sequence[str], parts: Sequence[_Part], rows: int
    ) -> bytes:
        """Return the text around the rows, with a placeholder for the id and for each output."""
        items = []
        for name, part in zip(names, parts, strict=True):
            array = outputs[name]
            item: dict[str, Any] = {
                "name": name,
                "shape": [rows, *array.shape[1:]],
                "datatype": _WRITTEN[array.dtype],
            }
            if part.is_binary:
                item["parameters"] = {"binary_data_size": rows * part.row_bytes}
            text = _encoder.encode(item).replace(b"%", b"%%")
            items.append(text if part.is_binary else text[:-1] + b',"data":[%b]}')
        return self._start.replace(b"%", b"%%") + b'%b,"outputs":[' + b",".join(items) + b"]}"


def _are_plain(outputs: Mapping[str, Any], rows: int) -> bool:
    """Whether every output is an array of plain numbers with one row per row of the batch."""
    for name, value in outputs.items():
        if type(name) is not str or type(value) is not np.ndarray or not value.size:
            return False
        if value.dtype not in _WRITTEN or not value.ndim or value.shape[0] != rows:
            return False
    return bool(outputs)


def _part(array: NDArray[Any], *, is_binary: bool) -> _Part:
    row_bytes = array.nbytes // len(array)
    if is_binary:
        return _Part(True, np.ascontiguousarray(array).data.cast("B"), row_bytes)
    if array.ndim == 1:
        return _Part(False, _lines(array.tolist()), row_bytes)
    rows = _lines(array.reshape(len(array), -1).tolist())
    return _Part(False, [row[1:-1] for row in rows], row_bytes)


def _lines(values: list[Any]) -> list[bytes]:
    """Return each value as JSON."""
    return _encoder.encode_lines(values).split(b"\n")[:-1]
