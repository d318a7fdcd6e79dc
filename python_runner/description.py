"""What a handler says of itself: signature, JSON Schema, imports."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from typing import Any, Final, get_args, get_origin

import msgspec

from python_runner import kinds
from python_runner.bodies import accepted
from python_runner.handlers import Handler
from python_runner.imports import Imports
from python_runner.parameters import Parameter
from runtime_image.contract.server import DESCRIPTION_MAX
from runtime_image.contract.signature import to_json

WHY_MAX: Final = 500
"""Max characters of the reason for no schema."""
_REF: Final = "#/$defs/{name}"
_STREAMS: Final = (Iterator, Generator, AsyncIterator, AsyncGenerator)


def describe(handler: Handler, imports: Imports) -> bytes:
    """Return the description as JSON: `signature`, `schema`, `imports`. Of a schema that cannot be
    made, `schema` has the reason as `why_not`."""
    signature = {
        "predict": handler.parameters.text[:2000],
        "form": handler.form,
        "concurrency": handler.concurrency,
        "content_types": accepted(handler),
        "tensors": None if handler.signature is None else to_json(handler.signature),
    }
    try:
        schema = _schema(handler)
    except Exception as error:  # noqa: BLE001 - hints are code of the handler
        schema = {"why_not": str(error)[:WHY_MAX]}
    document = {"signature": signature, "schema": schema, "imports": imports.top()}
    written = msgspec.json.encode(document)
    if len(written) > DESCRIPTION_MAX:
        why = f"the schema would make the description longer than {DESCRIPTION_MAX} bytes"
        written = msgspec.json.encode({**document, "schema": {"why_not": why}})
    return written


def _schema(handler: Handler) -> dict[str, Any]:
    """Return the schemas of `inputs` and `output`, with the definitions of both in `$defs`."""
    parameters = handler.parameters
    defs: dict[str, Any] = {}
    if parameters.whole:
        inputs = _of(parameters.hint, defs)
    else:
        inputs = {
            "type": "object",
            "properties": {one.name: _of_parameter(one, defs) for one in parameters.named},
            "required": [one.name for one in parameters.named if not one.has_default],
            "additionalProperties": parameters.takes_others,
        }
    schema: dict[str, Any] = {"inputs": inputs, "output": _output(handler, defs)}
    if defs:
        schema["$defs"] = defs
    return schema


def _output(handler: Handler, defs: dict[str, Any]) -> dict[str, Any] | None:
    """Return the schema of a result, or of one value of a stream; None without a hint for it."""
    hint = handler.parameters.returns
    if hint is None:
        return None
    if get_origin(hint) in _STREAMS or (handler.batch_max and get_origin(hint) is list):
        hint = get_args(hint)[0]
    try:
        return _of(hint, defs)
    except TypeError:
        return None


def _of_parameter(one: Parameter, defs: dict[str, Any]) -> dict[str, Any]:
    schema = _of(one.hint, defs)
    if one.takes("array"):
        _name_dtype(schema, kinds.dtype_of(one.item))
    if one.has_default:
        try:
            schema = {**schema, "default": msgspec.to_builtins(one.default, enc_hook=kinds.write)}
        except TypeError:
            return schema
    return schema


def _name_dtype(schema: Any, dtype: str | None) -> None:
    """Write the dtype of an array, of which msgspec forgets the arguments, where it is missing."""
    if isinstance(schema, dict):
        if kinds.DTYPE in schema:
            schema[kinds.DTYPE] = dtype
        for part in schema.values():
            _name_dtype(part, dtype)
    elif isinstance(schema, list):
        for part in schema:
            _name_dtype(part, dtype)


def _of(hint: Any, defs: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a hint, and add what it refers to. Raises TypeError."""
    (schema,), found = msgspec.json.schema_components(
        [hint], schema_hook=kinds.schema, ref_template=_REF
    )
    defs.update(found)
    # Models of pydantic bring their own definitions.
    pending: list[Any] = [schema, *found.values()]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            inner = part.pop("$defs", None) or {}
            defs.update(inner)
            pending += [*part.values(), *inner.values()]
        elif isinstance(part, list):
            pending += part
    return schema
