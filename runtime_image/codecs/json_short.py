"""The short JSON form: {"inputs": {name: nested list}}."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from runtime_image.codecs.tensor import elements
from runtime_image.codecs.tensor.checks import (
    RawInput,
    bad_body,
    check_names,
    check_rows,
    shorten,
)
from runtime_image.contract import dtypes
from runtime_image.contract.errors import RequestError, bad_input
from runtime_image.contract.signature import Signature

_EXPECTED: Final = 'a JSON object {"inputs": {name: value}}'
_QUOTE: Final = b'"'


class _Tensors(msgspec.Struct, forbid_unknown_fields=True):
    inputs: dict[str, msgspec.Raw]


class _Values(msgspec.Struct, forbid_unknown_fields=True):
    inputs: dict[str, Any]


_tensors: Final = msgspec.json.Decoder(_Tensors)
_values: Final = msgspec.json.Decoder(_Values)


def read(body: bytes, signature: Signature) -> dict[str, RawInput]:
    """The inputs of a function with tensors; raises BAD_INPUT."""
    try:
        given = _tensors.decode(body).inputs
    except (ValueError, RecursionError) as error:
        raise _refused(error) from None
    check_names(given, signature)
    inputs: dict[str, RawInput] = {}
    for spec in signature.inputs:
        value, shape = elements.read(spec, given[spec.name])
        inputs[spec.name] = RawInput("json", spec.dtype, shape, value)
    _check_repeated(body, given, signature)
    check_rows(inputs, signature)
    return inputs


def read_values(body: bytes) -> dict[str, RawInput]:
    """The inputs of a function that takes any JSON object; raises BAD_INPUT.

    A name given twice has its last value, as in most JSON readers.
    """
    try:
        given = _values.decode(body).inputs
    except (ValueError, RecursionError) as error:
        raise _refused(error) from None
    return {name: RawInput("object", "", (), value) for name, value in given.items()}


def _refused(error: Exception) -> RequestError:
    return bad_body(_EXPECTED, shorten(str(error)))


def _check_repeated(body: bytes, given: dict[str, msgspec.Raw], signature: Signature) -> None:
    """Raise BAD_INPUT where a name came twice, of which the decoder shows only the last value.

    Every key costs two quotes and numbers have none: more quotes than that mean another key.
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
