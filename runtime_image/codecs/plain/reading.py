"""Short JSON of numbers into lists, in one pass over the body."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from struct import pack_into
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from runtime_image.codecs.accept import JSON, media_type
from runtime_image.codecs.arrays import DTYPES
from runtime_image.codecs.tensor.elements import nested_type
from runtime_image.contract.signature import DYNAMIC, Signature, TensorSpec

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
"""How `struct` writes elements in this machine's byte order. The others are left out: text has
quotes of its own, BF16 cannot be decoded, UINT64 has a check after decoding."""
_QUOTES_OF_ONE: Final = 4
_ACCEPTS: Final = frozenset({"", "*/*", JSON})
"""Those with which a short request has a short answer, without a choice to be made."""


def is_plain(content_type: str, accept: str, json_length: int) -> bool:
    """Whether a request with these headers may hold short JSON and is answered with it."""
    if json_length >= 0 or accept not in _ACCEPTS:
        return False
    return content_type == JSON or media_type(content_type)[0] == JSON


def plain_reader(signature: Signature) -> PlainReader | None:
    """A reader for inputs that are all numbers with only the first axis dynamic, else None."""
    if signature.kind != "tensors" or not signature.inputs:
        return None
    if not all(map(_is_readable, signature.inputs)):
        return None
    try:
        return PlainReader(signature)
    except ValueError:  # a name that msgspec takes for no key: with a quote, a backslash
        return None


def _is_readable(spec: TensorSpec) -> bool:
    if spec.dtype not in _FORMATS or not spec.shape or spec.shape[0] != DYNAMIC:
        return False
    return all(size > 0 for size in spec.shape[1:])


class PlainReader:
    """Reads bodies with the inputs of one signature, and makes arrays of those of many requests."""

    def __init__(self, signature: Signature) -> None:
        """Raises ValueError for a name that msgspec takes for no key."""
        fields = [(f"input{at}", nested_type(spec)) for at, spec in enumerate(signature.inputs)]
        names = {f"input{at}": spec.name for at, spec in enumerate(signature.inputs)}
        inputs = msgspec.defstruct(
            "Inputs", fields, rename=names, forbid_unknown_fields=True, gc=False
        )
        body = msgspec.defstruct("Body", [("inputs", inputs)], forbid_unknown_fields=True, gc=False)
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(body).decode
        self._quotes = 2 + 2 * len(fields)  # each key costs two, "inputs" is one
        self._specs = signature.inputs

    def read(self, body: bytes) -> tuple[list[Any], ...] | None:
        """The nested lists of each input, as many rows in all of them; None for anything else,
        be it another form or an error."""
        # Each key costs two quotes: more of them are a name given twice, of which the decoder
        # shows only the last value, and none are in numbers.
        if body.count(b'"') != self._quotes:
            return None
        try:
            inputs = self._decode(body).inputs
        except (ValueError, RecursionError):
            return None
        if self._quotes == _QUOTES_OF_ONE:
            return (inputs.input0,)
        values: tuple[list[Any], ...] = msgspec.structs.astuple(inputs)
        return values if len(set(map(len, values))) == 1 else None

    def arrays(self, requests: Sequence[tuple[list[Any], ...]]) -> dict[str, NDArray[Any]]:
        """One array per input with the rows of all `requests`, in order."""
        return {
            spec.name: _joined(spec, [values[at] for values in requests])
            for at, spec in enumerate(self._specs)
        }


def _joined(spec: TensorSpec, parts: list[list[Any]]) -> Any:
    elements: Iterable[Any] = parts
    for _ in spec.shape:
        elements = chain.from_iterable(elements)
    rows = sum(map(len, parts))
    array: Any = np.empty((rows, *spec.shape[1:]), DTYPES[spec.dtype])
    # Two thirds of the time of NumPy's own ways. The decoder held all elements to their range.
    pack_into(f"{array.size}{_FORMATS[spec.dtype]}", array, 0, *elements)
    return array
