"""Sections of the surface: settings and `function.toml`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from admin.settings import Settings
from registry.manifest.document import Overrides
from registry.manifest.schema import RESERVED_ENGINES, Document
from registry.manifest.server import SampleTable
from tests.surface.shapes import fields_of

BOUNDS = (
    "minimum",
    "exclusiveMinimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "pattern",
)


def settings() -> list[str]:
    """List the `FN_` variables with type, bounds and default."""
    fields = Settings.model_json_schema()
    prefix = str(Settings.model_config.get("env_prefix", "")).upper()
    return [
        f"{prefix}{name.upper()}: {_type(one, fields)}"
        for name, one in fields["properties"].items()
    ]


def manifest() -> list[str]:
    """List the keys of `function.toml`, their overrides in a deploy, and the reserved engines."""
    reserved = [f"reserved engine {one}" for one in RESERVED_ENGINES]
    found = [f"{path}: {_type(one, whole)}" for path, one, whole in keys(Document)]
    found += [f"sample.{path}: {_type(one, whole)}" for path, one, whole in keys(SampleTable)]
    return [*found, *fields_of("override", Overrides), *reserved]


def keys(kind: type[BaseModel]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield each key as a dotted path, with "(required)" appended if it is; its schema, and the
    schema of the whole model."""
    schema = kind.model_json_schema(by_alias=True)
    return ((path, one, schema) for path, one in _table("", schema, schema))


def _table(
    path: str, one: dict[str, Any], whole: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    if "$ref" in one:
        yield from _table(path, resolved(one, whole), whole)
    elif "properties" in one:
        required = one.get("required", ())
        for key, inner in one["properties"].items():
            at = f"{path}.{key}".lstrip(".")
            yield from _table(f"{at} (required)" if key in required else at, inner, whole)
    elif isinstance(one.get("additionalProperties"), dict) and one["additionalProperties"]:
        yield from _table(f"{path}.*", one["additionalProperties"], whole)
    else:
        yield path, one


def _type(one: dict[str, Any], whole: dict[str, Any]) -> str:
    if "$ref" in one:
        return _type(resolved(one, whole), whole)
    kinds = [_type(inner, whole) for inner in one.get("anyOf", ())]
    shown = " | ".join(map(str, one.get("enum", kinds))) or str(one.get("type", "any"))
    if "const" in one:
        shown = str(one["const"])
    if "items" in one:
        shown += f" of {_type(one['items'], whole)}"
    bounds = [f"{name} {one[name]}" for name in BOUNDS if name in one]
    default = [f"= {one['default']!r}"] if "default" in one else []
    return " ".join([shown, *bounds, *default])


def resolved(one: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    """The definition that a schema refers to."""
    found: dict[str, Any] = whole["$defs"][one["$ref"].rpartition("/")[2]]
    return found
