"""Base of the tables of function.toml, and the errors that they give.

Error messages name the key, the expected and the actual value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from registry.errors import BadManifest
from runtime_image.contract.proposals import did_you_mean, nearest

_SHOWN_MAX: Final = 80
_PLAIN: Final = tuple(
    (re.compile(pattern), plain)
    for pattern, plain in (
        (r"^Input should be (a valid )?", ""),
        (r"^(List|Dictionary|String) should have ", ""),
        (r" after validation, not \d+$", ""),
        (r"greater than or equal to", "at least"),
        (r"less than or equal to", "at most"),
        (r"^dictionary.*", "a table"),
        (r"^(?=boolean|string|list|number)", "a "),
        (r"^(?=integer)", "an "),
    )
)
"""Rewrites Pydantic's messages to phrases that fit after "expected"."""


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


NOTHING: Final = _Nothing()
"""Stands for the actual value if a key is missing."""

M = TypeVar("M", bound="Section")
Text = Annotated[str, Field(max_length=200)]
Path = Annotated[str, Field(max_length=512)]
Word = Annotated[str, Field(max_length=32_768)]


class Section(BaseModel):
    """A table of the manifest: unknown keys are refused, values are not converted between types."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def validate(table: type[M], data: Mapping[str, Any], at: str = "") -> M:
    """Validate `data` as `table`, located at dotted key `at`.

    Raises BadManifest: the first error.
    """
    try:
        return table.model_validate(dict(data))
    except ValidationError as error:
        raise _explain(table, error.errors(include_url=False)[0], at) from None


def refused(key: str, expected: str, got: object, note: str = "") -> BadManifest:
    """Return the common error: this key, the expected value, the actual value, and a note."""
    shown = _shown(got)
    text = f"function.toml: {key}: expected {expected}, got {shown}"
    return BadManifest(
        f"{text}, which {note}" if note else text,
        detail={"key": key, "expected": expected, "got": shown},
    )


def _explain(table: type[Section], error: ErrorDetails, at: str) -> BadManifest:
    location = [str(part) for part in error["loc"]]
    key = ".".join([at, *location] if at else location) or "the table"
    if error["type"] == "extra_forbidden":
        return _unknown_key(table, location, key)
    expected = error["msg"]
    for pattern, plain in _PLAIN:
        expected = pattern.sub(plain, expected)
    return refused(key, expected, error["input"])


def _unknown_key(table: type[Section], location: list[str], key: str) -> BadManifest:
    known = _known_keys(table, location[:-1])
    near = nearest(location[-1], known, limit=1)
    hint = did_you_mean(near) or f"; known are {', '.join(known)}"
    return BadManifest(
        f"function.toml: {key}: unknown key{hint}",
        detail={"key": key, "nearest": near, "known": known},
    )


def _known_keys(table: type[Section], location: list[str]) -> list[str]:
    for part in location:
        names = {field.alias or name: field for name, field in table.model_fields.items()}
        if part not in names:
            continue  # the name of an input: a key of a table of tables
        for inner in (names[part].annotation, *get_args(names[part].annotation)):
            if isinstance(inner, type) and issubclass(inner, Section):
                table = inner
    return [field.alias or name for name, field in table.model_fields.items()]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."
