"""Types of NumPy, Pillow and pydantic in hints and results: hooks for msgspec.

Nothing here imports these packages. A hint or a result can only have such a type if the handler has
imported its package.
"""

from __future__ import annotations

import sys
from base64 import b64decode, b64encode
from collections.abc import Callable
from io import BytesIO
from types import ModuleType
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

import msgspec

from runtime_image.codecs import plain_json
from runtime_image.codecs.raw import media_of
from runtime_image.contract.errors import RequestError
from runtime_image.contract.model import InputRule
from runtime_image.contract.signature import Signature, TensorSpec

Family = Literal["array", "picture", "model"]
"""What a type of another package is: a NumPy array, a picture of Pillow, a model of pydantic."""
NPY_MAGIC: Final = b"\x93NUMPY"
DTYPE: Final = "x-dtype"
"""Member of the schema of an array: the protocol's name of its dtype."""
PNG: Final = "image/png"
SHOWN_MAX: Final = 80
_MEDIA: Final = {"image": PNG, "audio": "audio/wav", "bytes": "application/octet-stream"}
"""Content types by which a rule's own reader is chosen; it looks at the first bytes by itself."""


class Unfit(ValueError):
    """A value does not fit a hint. `below` is where in the value, such as ".name" or "[0]"."""

    def __init__(self, expected: str, got: str, below: str = "") -> None:
        super().__init__(f"expected {expected}, got {got}")
        self.expected = expected
        self.got = got
        self.below = below


class _Kind(NamedTuple):
    """How values of one family are read, described and written."""

    module: str
    name: str
    read: Callable[[Any, Any], Any]
    schema: Callable[[Any], dict[str, Any]]
    write: Callable[[Any], Any]


def family_of(hint: Any) -> Family | None:
    """Return what a hint is, None for what msgspec reads by itself or nobody knows."""
    hint = mended(hint)
    kind = get_origin(hint) or hint
    if not isinstance(kind, type):
        return None
    return next((name for name, one in _KINDS.items() if _is(kind, one)), None)


def read(hint: Any, value: Any) -> Any:
    """Return a value of JSON, or bytes, as `hint` wants it (msgspec's dec_hook). Raises Unfit, and
    TypeError for a hint that nobody knows."""
    family = family_of(hint)
    if family is None:
        raise TypeError(unknown(hint))
    return _KINDS[family].read(hint, value)


def schema(hint: Any) -> dict[str, Any]:
    """Return the JSON Schema of a hint (msgspec's schema_hook). Raises TypeError."""
    family = family_of(hint)
    if family is None:
        raise TypeError(unknown(hint))
    return _KINDS[family].schema(hint)


def write(value: Any) -> Any:
    """Return a part of a result as JSON can have it (msgspec's enc_hook). Raises TypeError."""
    family = family_of(type(value))
    return plain_json.plain(value) if family is None else _KINDS[family].write(value)


encoder: Final = msgspec.json.Encoder(enc_hook=write)


def unknown(hint: Any) -> str:
    """Return the text about a hint that cannot be read."""
    named = hint.__qualname__ if isinstance(hint, type) else str(hint)
    return (
        f"type {named} has no form in a request: expected a type of JSON (int, str, list, dict, a"
        " dataclass, ...), bytes, a pydantic model, a NumPy array or a picture of Pillow"
    )


def mended(hint: Any) -> Any:
    """Return what an alias stands for, such as NumPy's `NDArray[float32]`, and the class for the
    module `PIL.Image`, which `from PIL import Image` gives."""
    if isinstance(hint, ModuleType) and hint.__name__ == "PIL.Image":
        return hint.Image
    alias = get_origin(hint) or hint
    if type(alias).__name__ != "TypeAliasType":  # Python 3.12
        return hint
    return alias.__value__[get_args(hint)] if get_args(hint) else alias.__value__


def _is(kind: type, one: _Kind) -> bool:
    base = getattr(sys.modules.get(one.module), one.name, None)
    return isinstance(base, type) and issubclass(kind, base)


def dtype_of(hint: Any) -> str | None:
    """Return the protocol's name of an array's dtype, None if its hint names none that has one."""
    from runtime_image.codecs.arrays import DTYPES

    for argument in get_args(mended(hint)):
        if getattr(get_origin(argument), "__name__", "") == "dtype":
            kind = get_args(argument)[0]
            return next((name for name, dtype in DTYPES.items() if dtype.type is kind), None)
    return None


def read_tensor(spec: TensorSpec, value: Any, rule: InputRule | None = None) -> Any:
    """Return nested lists, or bytes of a file, as an array. Raises Unfit."""
    from runtime_image.codecs.accept import SHORT
    from runtime_image.codecs.arrays import to_arrays
    from runtime_image.codecs.request import Parsed, RequestHead, parse
    from runtime_image.codecs.tensors import RawInput
    from runtime_image.codecs.tensors import read as read_lists

    rules = {} if rule is None else {spec.name: rule}
    signature = Signature("tensors", (spec,), ())
    try:
        if isinstance(value, bytes):
            media = _MEDIA.get(rule.kind, "") if rule is not None else ""
            parsed = parse(RequestHead(media or _media(value)), value, signature, rules)
        else:
            lists, shape = read_lists(spec, msgspec.Raw(msgspec.json.encode(value)))
            raw = RawInput("json", spec.dtype, shape, lists)
            parsed = Parsed("short", {spec.name: raw}, SHORT)
        return to_arrays(parsed, signature, rules)[spec.name]
    except RequestError as error:
        raise Unfit(error.expected or error.message, error.got or "something else") from None


def _media(value: bytes) -> str:
    if value.startswith(NPY_MAGIC):
        return "application/x-npy"
    return media_of(memoryview(value)) or "application/octet-stream"


def _read_array(hint: Any, value: Any) -> Any:
    if isinstance(value, str):
        value = _octets(value, "lists of numbers, or an npy file in base64")
    dtype = dtype_of(hint)
    if dtype is None and not isinstance(value, bytes):
        import numpy as np

        try:
            array = np.asarray(value)
        except ValueError:
            raise Unfit("lists of equal lengths", "ragged lists") from None
        if array.dtype.kind not in "biuf":
            raise Unfit("lists of numbers", f"an array of {array.dtype}")
        return array
    if dtype is None:
        dtype = _npy_dtype(value)
    return read_tensor(TensorSpec("array", dtype, None), value)


def _npy_dtype(value: bytes) -> str:
    """Return the dtype that an npy file has: one the protocol knows."""
    from runtime_image.contract.dtypes import FROM_NPY

    head = value[:256]
    found = (name for descr, name in FROM_NPY.items() if f"'{descr}'".encode() in head)
    return next(found, "FP32")


def _array_schema(hint: Any) -> dict[str, Any]:
    return {"type": "array", "items": {}, DTYPE: dtype_of(hint)}


def _read_picture(_hint: Any, value: Any) -> Any:
    from runtime_image.codecs.pictures import upright
    from runtime_image.codecs.raw import PICTURES

    kinds = f"a picture ({', '.join(PICTURES)})"
    if not isinstance(value, bytes):
        value = _octets(value, f"{kinds} as a file, or in base64")
    try:
        return upright("picture", memoryview(value))
    except RequestError as error:
        if not media_of(memoryview(value)):
            raise Unfit(kinds, "other bytes") from None
        raise Unfit(error.expected, error.got) from None


def _write_picture(value: Any) -> str:
    return b64encode(png(value)).decode()


def png(picture: Any) -> bytes:
    """Return a picture of Pillow as PNG. Raises OSError or ValueError for a mode without it."""
    buffer = BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def _octets(value: Any, expected: str) -> bytes:
    if not isinstance(value, str):
        raise Unfit(expected, _named(value))
    try:
        return b64decode(value, validate=True)
    except ValueError:
        raise Unfit(expected, "other text") from None


def _read_model(hint: Any, value: Any) -> Any:
    errors = sys.modules["pydantic"].ValidationError
    try:
        return hint.model_validate(value)
    except errors as error:
        first = error.errors(include_url=False, include_context=False)[0]
        below = "".join(f"[{at}]" if isinstance(at, int) else f".{at}" for at in first["loc"][:16])
        expected = str(first["msg"]).removeprefix("Input should be ")[:SHOWN_MAX]
        if first["type"] == "missing":
            raise Unfit("a value", "nothing: it is missing", below) from None
        raise Unfit(expected, _named(first.get("input")), below) from None


def _named(value: Any) -> str:
    return "null" if value is None else type(value).__name__


_KINDS: Final[dict[Family, _Kind]] = {
    "array": _Kind("numpy", "ndarray", _read_array, _array_schema, plain_json.plain),
    "picture": _Kind(
        "PIL.Image",
        "Image",
        _read_picture,
        lambda _: {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/*"},
        _write_picture,
    ),
    "model": _Kind(
        "pydantic",
        "BaseModel",
        _read_model,
        lambda hint: dict(hint.model_json_schema()),
        lambda value: value.model_dump(mode="json"),
    ),
}
"""One row per family. A new one needs a row here, and its name in `Family`."""
