"""Writes answers in JSON. Imports no NumPy: only a handler that did can return its arrays."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, Final

import msgspec

from runtime_image.contract.errors import FUNCTION_FAILED, RequestError

Plain = Callable[[Any], Any]
"""Converts a value that msgspec cannot encode. Raises TypeError for one that has no JSON form."""
_NULL: Final = b"null"
_PATH_MAX: Final = 200
"""Max characters of a path in an error message."""
_LEAVES: Final = (str, bytes, bool, int, type(None))


def plain(value: Any) -> Any:
    """Convert NumPy values for msgspec, which cannot encode them. Raises TypeError for others."""
    if is_array(value) or is_number(value):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be converted to JSON")


def is_array(value: object) -> bool:
    """Whether a value is a NumPy array."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def is_number(value: object) -> bool:
    """Whether a value is a number of NumPy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


_encoder: Final = msgspec.json.Encoder(enc_hook=plain)


def encode(value: Any, encoder: msgspec.json.Encoder = _encoder) -> bytes:
    """Return a value in JSON. Raises FUNCTION_FAILED for one that has no such form."""
    try:
        return encoder.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise RequestError(FUNCTION_FAILED, f"the outputs cannot be written: {error}") from None


def encode_outputs(
    body: dict[str, Any], encoder: msgspec.json.Encoder = _encoder, plain: Plain = lambda _: None
) -> bytes:
    """Return an answer whose member `outputs` has values of a handler. Raises FUNCTION_FAILED for a
    value without JSON form, also for a NaN or infinity outside a tensor."""
    written = encode(body, encoder)
    if _NULL in written:
        check_plain_numbers(body["outputs"], plain)
    return written


def check_plain_numbers(outputs: Any, plain: Plain = lambda _: None) -> None:
    """Raise FUNCTION_FAILED with the path of the first NaN or infinity outside a tensor.

    `outputs` are JSON values, NumPy arrays and what `plain` converts, as a handler returns them. In
    a tensor, NaN is a result of the model; elsewhere it is a mistake of the handler and would reach
    the client as null.
    """
    pending: list[tuple[str, Any]] = [("$", outputs)]
    while pending:
        path, value = pending.pop()
        if is_number(value):
            value = value.item()
        if not isinstance(value, float):
            pending += _children(path, value, plain)
        elif not math.isfinite(value):
            raise RequestError(
                FUNCTION_FAILED,
                f"the outputs cannot be written: expected a finite number at {path[:_PATH_MAX]},"
                f" got {value}, which JSON cannot represent; return None or a number",
            )


def _children(path: str, value: Any, plain: Plain) -> list[tuple[str, Any]]:
    """Return path and value of each child of `value`, whose own JSON path is `path`."""
    if isinstance(value, _LEAVES) or is_array(value):
        return []
    if not isinstance(value, dict | list | tuple | set | frozenset):
        # A dataclass or similar type: convert it as the encoder does.
        value = msgspec.to_builtins(value, enc_hook=plain)
    if isinstance(value, dict):
        return [(f"{path}.{key}", inner) for key, inner in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"{path}[{at}]", inner) for at, inner in enumerate(value)]
    return []
