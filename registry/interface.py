"""Reads what the server of a Python function says of its calls: signature and JSON Schema.

The text is a stranger's: the function's own code runs in the process that answers. What is kept is
bounded and is a schema that refers to nothing but its own definitions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from registry.bounded_text import read_json
from registry.errors import BadRequest
from registry.model.revisions import Interface, PredictForm
from runtime_image.contract import signature as signatures
from runtime_image.contract.server import DESCRIPTION_MAX

DEPTH_MAX: Final = 32
"""Max levels of a schema, and of values in it."""
WHY_MAX: Final = 500
"""Max characters of the reason for no schema."""
NAME_MAX: Final = 100
_SUBJECT: Final = "the description of the function"
_REF: Final = re.compile(r"#/\$defs/([A-Za-z0-9._-]{1,100})")
_TYPES: Final = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})
_TEXTS: Final = frozenset(
    {"title", "description", "format", "pattern", "contentEncoding", "contentMediaType", "x-dtype"}
)
_NUMBERS: Final = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength"}
    | {"maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
)
_FLAGS: Final = frozenset({"uniqueItems", "deprecated", "readOnly", "writeOnly"})
_VALUES: Final = frozenset({"const", "default"})
_VALUE_LISTS: Final = frozenset({"enum", "examples"})
_SCHEMAS: Final = frozenset({"items", "additionalProperties", "propertyNames", "contains", "not"})
_SCHEMA_LISTS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SCHEMA_MAPS: Final = frozenset({"properties", "patternProperties"})

_Text = Annotated[str, Meta(max_length=2000)]
_Short = Annotated[str, Meta(max_length=NAME_MAX)]


class _Signature(msgspec.Struct):
    predict: _Text
    form: PredictForm
    content_types: Annotated[list[_Short], Meta(max_length=50)]
    tensors: dict[str, Any] | None = None


class _Import(msgspec.Struct):
    package: _Short
    ms: Annotated[float, Meta(ge=0, le=1e9)]


class _Description(msgspec.Struct):
    signature: _Signature
    schema: dict[str, Any]
    imports: Annotated[list[_Import], Meta(max_length=50)] = []


class _Unfit(ValueError):
    """A schema that is not kept; the text says what was expected, and where."""


def read_interface(text: str, why_not: str = "") -> Interface:
    """Return the interface that a description says. Never raises: what cannot be kept is left out,
    and `why_not` of the result says why. `why_not`: why there is no description."""
    if why_not:
        return Interface(why_not=why_not[:WHY_MAX])
    try:
        data = text.encode()
        if len(data) > DESCRIPTION_MAX:
            raise _Unfit(f"expected at most {DESCRIPTION_MAX} bytes, got {len(data)}")
        found = read_json(data, _Description, _SUBJECT)
        given = found.signature
        tensors = None if given.tensors is None else signatures.from_json(given.tensors)
    except BadRequest as error:
        return Interface(why_not=error.message[:WHY_MAX])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return Interface(why_not=f"{_SUBJECT}: {error}"[:WHY_MAX])
    imports = tuple((one.package, one.ms) for one in found.imports)
    schema, why_not = _schema(found.schema)
    return Interface(
        given.predict, given.form, tuple(given.content_types), tensors, schema, why_not, imports
    )


def _schema(given: Mapping[str, Any]) -> tuple[str, str]:
    """Return the text of the schema that is kept, or "" and why there is none."""
    if why_not := given.get("why_not"):
        return "", str(why_not)[:WHY_MAX]
    try:
        kept = _Reader(given).read()
    except _Unfit as error:
        return "", f"the schema of the function: {error}"[:WHY_MAX]
    text = msgspec.json.encode(kept)
    if len(text) > DESCRIPTION_MAX:
        return "", f"the schema of the function: expected at most {DESCRIPTION_MAX} bytes"
    return text.decode(), ""


def referring(schema: str, to: Callable[[str], str]) -> dict[str, Any]:
    """Return the schema of an interface as data, whose references to the definition NAME are what
    `to` returns for NAME."""
    return _Reader(msgspec.json.decode(schema, type=dict[str, Any]), to).read()


class _Reader:
    """Copies the known members of a schema. Unknown ones, such as `$id`, would change what its
    references mean, or nothing."""

    def __init__(
        self, given: Mapping[str, Any], to: Callable[[str], str] = "#/$defs/{}".format
    ) -> None:
        self._given = given
        self._to = to
        self._defs = given.get("$defs", {})
        if not isinstance(self._defs, dict):
            raise _Unfit(f"$defs: expected an object, got {_named(self._defs)}")

    def read(self) -> dict[str, Any]:
        """Return `inputs`, `output` and `$defs`. Raises _Unfit."""
        inputs = self._schema(self._given.get("inputs"), "inputs", 0)
        output = self._given.get("output")
        kept: dict[str, Any] = {"inputs": inputs, "output": None}
        if output is not None:
            kept["output"] = self._schema(output, "output", 0)
        defs = {}
        for name, schema in self._defs.items():
            if not _REF.fullmatch(f"#/$defs/{name}"):
                raise _Unfit(f"$defs: expected names of A-Z a-z 0-9 . _ -, got {name[:40]!r}")
            defs[name] = self._schema(schema, f"$defs.{name}", 0)
        if not isinstance(inputs, dict):
            raise _Unfit(f"inputs: expected an object, got {_named(inputs)}")
        return {**kept, "$defs": defs} if defs else kept

    def _schema(self, given: Any, at: str, depth: int) -> Any:
        if isinstance(given, bool):
            return given
        if not isinstance(given, dict):
            raise _Unfit(f"{at}: expected a schema, got {_named(given)}")
        if depth >= DEPTH_MAX:
            raise _Unfit(f"{at[:60]}…: expected at most {DEPTH_MAX} levels, got more")
        kept = {}
        for key, value in given.items():
            read = _READERS.get(key)
            if read is not None:
                kept[key] = read(self, value, f"{at}.{key}", depth + 1)
        return kept

    def _schemas(self, given: Any, at: str, depth: int) -> list[Any]:
        if not isinstance(given, list):
            raise _Unfit(f"{at}: expected a list of schemas, got {_named(given)}")
        return [self._schema(one, f"{at}[{index}]", depth) for index, one in enumerate(given)]

    def _named_schemas(self, given: Any, at: str, depth: int) -> dict[str, Any]:
        if not isinstance(given, dict):
            raise _Unfit(f"{at}: expected schemas by name, got {_named(given)}")
        return {name: self._schema(one, f"{at}.{name[:40]}", depth) for name, one in given.items()}

    def _ref(self, given: Any, at: str, _depth: int) -> str:
        found = _REF.fullmatch(given) if isinstance(given, str) else None
        if found is None or found[1] not in self._defs:
            raise _Unfit(f"{at}: expected #/$defs/ and one of its names, got {str(given)[:60]!r}")
        return self._to(found[1])

    def _type(self, given: Any, at: str, _depth: int) -> Any:
        kinds = given if isinstance(given, list) else [given]
        if not kinds or not all(isinstance(one, str) and one in _TYPES for one in kinds):
            raise _Unfit(f"{at}: expected {', '.join(sorted(_TYPES))}, got {str(given)[:60]!r}")
        return given

    def _text(self, given: Any, at: str, _depth: int) -> str | None:
        if given is not None and not isinstance(given, str):
            raise _Unfit(f"{at}: expected a text, got {_named(given)}")
        return given

    def _number(self, given: Any, at: str, _depth: int) -> float:
        if isinstance(given, bool) or not isinstance(given, int | float):
            raise _Unfit(f"{at}: expected a number, got {_named(given)}")
        return given

    def _flag(self, given: Any, at: str, _depth: int) -> bool:
        if not isinstance(given, bool):
            raise _Unfit(f"{at}: expected true or false, got {_named(given)}")
        return given

    def _names(self, given: Any, at: str, _depth: int) -> list[str]:
        if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
            raise _Unfit(f"{at}: expected a list of names, got {_named(given)}")
        return given

    def _values(self, given: Any, at: str, depth: int) -> list[Any]:
        if not isinstance(given, list) or not given:
            raise _Unfit(f"{at}: expected a list of values, got {_named(given)}")
        return [self._value(one, at, depth) for one in given]

    def _value(self, given: Any, at: str, depth: int) -> Any:
        """Return a JSON value that is not too deep."""
        if depth >= DEPTH_MAX:
            raise _Unfit(f"{at[:60]}…: expected at most {DEPTH_MAX} levels, got more")
        if isinstance(given, dict):
            return {name: self._value(one, at, depth + 1) for name, one in given.items()}
        if isinstance(given, list):
            return [self._value(one, at, depth + 1) for one in given]
        return given

    def _discriminator(self, given: Any, at: str, depth: int) -> dict[str, Any]:
        if not isinstance(given, dict) or not isinstance(given.get("propertyName"), str):
            raise _Unfit(f"{at}: expected an object with propertyName, got {_named(given)}")
        kept: dict[str, Any] = {"propertyName": given["propertyName"]}
        mapping = given.get("mapping")
        if isinstance(mapping, dict):
            kept["mapping"] = {name: self._ref(one, at, depth) for name, one in mapping.items()}
        return kept


_Read = Callable[[_Reader, Any, str, int], Any]
_READERS: Final[dict[str, _Read]] = {
    "$ref": _Reader._ref,
    "type": _Reader._type,
    "required": _Reader._names,
    "discriminator": _Reader._discriminator,
    **dict.fromkeys(_TEXTS, _Reader._text),
    **dict.fromkeys(_NUMBERS, _Reader._number),
    **dict.fromkeys(_FLAGS, _Reader._flag),
    **dict.fromkeys(_VALUES, _Reader._value),
    **dict.fromkeys(_VALUE_LISTS, _Reader._values),
    **dict.fromkeys(_SCHEMAS, _Reader._schema),
    **dict.fromkeys(_SCHEMA_LISTS, _Reader._schemas),
    **dict.fromkeys(_SCHEMA_MAPS, _Reader._named_schemas),
}
"""One row per member of a schema that is kept."""


def _named(value: Any) -> str:
    """Return what a JSON value is, in words."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    kinds: dict[type, str] = {dict: "an object", list: "a list", str: "a text"}
    return kinds.get(type(value), "a number")
