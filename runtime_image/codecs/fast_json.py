"""Fast path of short JSON: reads bodies of numbers to lists, writes the answers of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from struct import pack_into
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from runtime_image.codecs.accept import JSON, media_type
from runtime_image.codecs.answer import best_places
from runtime_image.codecs.arrays import DTYPES
from runtime_image.codecs.tensors import nested_type
from runtime_image.contract.model import OutputRule
from runtime_image.contract.signature import Signature, TensorSpec

_FORMATS: Final = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}
"""`struct` format characters, native byte order. Missing types take the slow path: strings contain
quotes, BF16 cannot be decoded, UINT64 needs a check after decoding."""
_QUOTES_OF_ONE: Final = 4
_ACCEPTS: Final = frozenset({"", "*/*", JSON})
"""Accept headers that need no negotiation: a short request gets a short answer."""


def is_plain(content_type: str, accept: str, json_length: int) -> bool:
    """Whether a request with these headers may contain short JSON and gets a short answer."""
    if json_length >= 0 or accept not in _ACCEPTS:
        return False
    return content_type == JSON or media_type(content_type)[0] == JSON


def plain_reader(signature: Signature) -> PlainReader | None:
    """Return a reader if all inputs are numbers with only the first axis dynamic, else None."""
    if signature.kind != "tensors" or not signature.inputs:
        return None
    if not all(map(_is_readable, signature.inputs)):
        return None
    try:
        return PlainReader(signature)
    except ValueError:  # a name that msgspec refuses as a key: with a quote or backslash
        return None


def _is_readable(spec: TensorSpec) -> bool:
    if spec.dtype not in _FORMATS or spec.shape is None or not spec.has_dynamic_rows:
        return False
    return all(size > 0 for size in spec.shape[1:])


class PlainReader:
    """Reads the inputs of one signature from bodies, and joins those of many requests to arrays."""

    def __init__(self, signature: Signature) -> None:
        """Raise ValueError for a name that msgspec refuses as a key."""
        fields = [(f"input{at}", nested_type(spec)) for at, spec in enumerate(signature.inputs)]
        names = {f"input{at}": spec.name for at, spec in enumerate(signature.inputs)}
        inputs = msgspec.defstruct(
            "Inputs", fields, rename=names, forbid_unknown_fields=True, gc=False
        )
        body = msgspec.defstruct("Body", [("inputs", inputs)], forbid_unknown_fields=True, gc=False)
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(body).decode
        self._quotes = 2 + 2 * len(fields)  # two for each key, "inputs" included
        self._specs = signature.inputs

    def read(self, body: bytes) -> tuple[list[Any], ...] | None:
        """Return the nested lists of each input, with equal row counts, at least one. None for
        anything else: another form, or an error."""
        # Numbers contain no quotes and each key has two. More quotes mean a repeated name, of
        # which the decoder returns only the last value.
        if body.count(b'"') != self._quotes:
            return None
        try:
            inputs = self._decode(body).inputs
        except (ValueError, RecursionError):
            return None
        if self._quotes == _QUOTES_OF_ONE:
            return (inputs.input0,) if inputs.input0 else None
        values: tuple[list[Any], ...] = msgspec.structs.astuple(inputs)
        return values if values[0] and len(set(map(len, values))) == 1 else None

    def arrays(self, requests: Sequence[tuple[list[Any], ...]]) -> dict[str, NDArray[Any]]:
        """Return one array per input with the rows of all `requests`, in order."""
        return {
            spec.name: _joined(spec, [values[at] for values in requests])
            for at, spec in enumerate(self._specs)
        }


def _joined(spec: TensorSpec, parts: list[list[Any]]) -> Any:
    elements: Iterable[Any] = parts
    assert spec.shape is not None, "inputs of unknown rank are not readable"
    for _ in spec.shape:
        elements = chain.from_iterable(elements)
    rows = sum(map(len, parts))
    array: Any = np.empty((rows, *spec.shape[1:]), DTYPES[spec.dtype])
    # Takes 2/3 of the time of NumPy's conversions. The decoder has checked the range already.
    pack_into(f"{array.size}{_FORMATS[spec.dtype]}", array, 0, *elements)
    return array


_encoder: Final = msgspec.json.Encoder()
_NUMBERS: Final = frozenset("?bBhHiIlLqQefd")
"""NumPy type characters whose values JSON can represent: bool, integers, floats up to 64 bits."""


class PlainWriter:
    """Writes answers under one output rule; `revision` is "digits@3".

    Encodes every row of the batch once, in one call for all rows of an output; the text around the
    rows is the same in every answer.
    """

    def __init__(self, rule: OutputRule, revision: str) -> None:
        self._rule = rule
        self._labels = [_encoder.encode(label) for label in rule.labels]
        self._revision = _encoder.encode(revision)
        # Caches the last batch's frame only: a handler may change its output names every time.
        self._last: tuple[tuple[tuple[str, ...], bool], bytes] = (((), False), b"")

    def write(
        self, outputs: dict[str, Any], ranges: Sequence[tuple[int, int]]
    ) -> list[bytes] | None:
        """Return the answer of each request; `ranges` are its rows (start, stop), end to end. None
        if an output is not numeric or does not have one row per row of the batch."""
        if not _are_plain(outputs, ranges[-1][1]):
            return None
        scores = self._scores(outputs)
        if scores is not None and (scores.ndim == 1 or not scores.size):
            return None  # no row of scores per row of the batch
        rows = [_lines(value.tolist()) for value in outputs.values()]
        if scores is not None:
            rows.append(self._top(scores))
        frame = self._frame(tuple(outputs), scores is not None)
        if ranges[-1][1] == len(ranges):
            return [frame % row for row in zip(*rows, strict=False)][: len(ranges)]
        return [
            frame % tuple(b",".join(lines[start:stop]) for lines in rows) for start, stop in ranges
        ]

    def _scores(self, outputs: dict[str, Any]) -> NDArray[Any] | None:
        """Return the output whose `top_k` values the answer shows, None without such a rule."""
        rule = self._rule
        if not (rule.labels or rule.top_k):
            return None
        scores: NDArray[Any] | None = outputs.get(rule.tensor or next(iter(outputs), ""))
        return scores if scores is not None and scores.dtype.kind in "fiu" else None

    def _top(self, scores: NDArray[Any]) -> list[bytes]:
        """Return the best entries of each row as JSON, equal to those of `answer.top_rows`."""
        places, best = best_places(scores, self._rule)
        width = len(places[0])
        flat: list[bytes] = [b""] * (2 * width * len(places))
        flat[::2] = [self._label(at) for row in places for at in row]
        flat[1::2] = _lines(list(chain.from_iterable(best)))[:-1]
        frame = b"[" + b",".join([b'{"label":%b,"score":%b}'] * width) + b"]"
        step = 2 * width
        return [frame % tuple(flat[at : at + step]) for at in range(0, len(flat), step)]

    def _label(self, at: int) -> bytes:
        return self._labels[at] if at < len(self._labels) else b'"%d"' % at

    def _frame(self, names: tuple[str, ...], has_top: bool) -> bytes:
        """Return the answer's template, with a placeholder per output, and one for `top`."""
        last, frame = self._last
        if last != (names, has_top):
            frame = self._written(names, has_top)
            self._last = (names, has_top), frame
        return frame

    def _written(self, names: tuple[str, ...], has_top: bool) -> bytes:
        items = b",".join(_literal(_encoder.encode(name)) + b":[%b]" for name in names)
        top = b',"top":[%b]' if has_top else b""
        return b'{"outputs":{' + items + b'},"revision":' + _literal(self._revision) + top + b"}"


def _are_plain(outputs: dict[str, Any], rows: int) -> bool:
    for name, value in outputs.items():
        # A handler may use any value as an output's name; names in JSON are strings.
        if type(name) is not str or not isinstance(value, np.ndarray):
            return False
        if value.dtype.char not in _NUMBERS:
            return False
        if not value.ndim or value.shape[0] != rows:
            return False
    return bool(outputs)


def _lines(values: list[Any]) -> list[bytes]:
    """Return each value as JSON, plus an empty line at the end."""
    return _encoder.encode_lines(values).split(b"\n")


def _literal(text: bytes) -> bytes:
    return text.replace(b"%", b"%%")
