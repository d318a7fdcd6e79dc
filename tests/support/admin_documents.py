"""Documents of the admin API for tests, which name only the members that matter to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from admin.documents.routes import PREFIX, ROUTES

T = TypeVar("T")
_NONE: Mapping[str, Any] = {}
_FIELDS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)
_LISTS = (inspect.ListType, inspect.VarTupleType)


def made(kind: type[T], members: Mapping[str, Any] = _NONE, /, **more: Any) -> T:
    """Return a document of a type; members that are not named are empty, 0, False or None."""
    return msgspec.convert(filled(kind, {**members, **more}), kind, str_keys=True)


def all_made(kind: type[T], items: list[dict[str, Any]]) -> list[T]:
    """Return documents, as `made`."""
    return [made(kind, item) for item in items]


def filled(kind: Any, members: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of a document, as `made`: first the `members` in their order."""
    found: dict[str, Any] = _filled(inspect.type_info(kind), members)
    return found


def answer_of(method: str, path: str) -> Any:
    """Return the type of the answer of a route; None for another path, or without JSON."""
    for name, route in ROUTES.items():
        own, _, pattern = name.partition(" ")
        if own == method and re.fullmatch(PREFIX + re.sub(r"{\w+}", "[^/]+", pattern), path):
            return route.answer
    return None


def _filled(kind: inspect.Type, value: Any) -> Any:
    if isinstance(kind, inspect.UnionType):
        return _of_union(kind, value)
    if isinstance(kind, _FIELDS) and isinstance(value, dict):
        known = {one.encode_name: one for one in kind.fields}
        given = {
            name: _filled(known[name].type, one) if name in known else one
            for name, one in value.items()
        }
        missing = {
            name: _neutral(one.type)
            for name, one in known.items()
            if one.required and name not in given
        }
        return {**given, **missing}
    if isinstance(kind, _LISTS) and isinstance(value, list | tuple):
        return [_filled(kind.item_type, one) for one in value]
    if isinstance(kind, inspect.DictType) and isinstance(value, dict):
        return {name: _filled(kind.value_type, one) for name, one in value.items()}
    return value


def _of_union(kind: inspect.UnionType, value: Any) -> Any:
    """Fill the type of a union that takes an object, by its tag, or a list."""
    wanted = _FIELDS if isinstance(value, dict) else _LISTS
    fitting = [one for one in kind.types if isinstance(one, wanted)]
    if len(fitting) > 1:
        fitting = [one for one in fitting if _has_tag(one, value)]
    return _filled(fitting[0], value) if len(fitting) == 1 else value


def _has_tag(kind: inspect.Type, value: Any) -> bool:
    return isinstance(kind, inspect.StructType) and value.get(kind.tag_field) == kind.tag


_SIMPLE = {
    inspect.StrType: "",
    inspect.BoolType: False,
    inspect.IntType: 0,
    inspect.FloatType: 0,
    inspect.NoneType: None,
    inspect.AnyType: None,
}


def _neutral(kind: inspect.Type) -> Any:
    """Return an empty value of a type: null where that is one, else the first that is."""
    if isinstance(kind, inspect.UnionType):
        has_none = any(isinstance(one, inspect.NoneType) for one in kind.types)
        return None if has_none else _neutral(kind.types[0])
    if isinstance(kind, inspect.LiteralType):
        return kind.values[0]
    if isinstance(kind, inspect.EnumType):
        return next(iter(kind.cls)).value
    if isinstance(kind, _LISTS):
        return []
    if isinstance(kind, (*_FIELDS, inspect.DictType)):
        return _filled(kind, {})
    return _SIMPLE[type(kind)]
