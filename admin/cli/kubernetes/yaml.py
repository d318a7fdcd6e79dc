"""Manifests as YAML (yaml.org, version 1.2): the few forms that they need. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

Value = str | int | bool | Mapping[str, "Value"] | Sequence["Value"]
"""What a manifest is made of."""
Object = Mapping[str, Value]
_PLAIN: Final = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
"""Strings that mean themselves without quotes, but for the words below."""
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""Words that some readers take for other values."""


class Document(NamedTuple):
    """One object of a stream of documents."""

    comment: str
    """Why it is there: lines above it."""
    object: Object


def stream(documents: Iterable[Document]) -> str:
    """Return documents as one YAML stream."""
    return "".join(
        "\n".join(
            ["---", *(f"# {line}" for line in one.comment.splitlines()), *_mapping(one.object)]
        )
        + "\n"
        for one in documents
    )


def _mapping(value: Mapping[str, Value]) -> Iterator[str]:
    for key, item in value.items():
        yield from _entry(f"{_scalar(key)}:", item, "  ")


def _sequence(value: Sequence[Value]) -> Iterator[str]:
    for item in value:
        if isinstance(item, Mapping) and item:
            first, *others = _mapping(item)
            yield f"- {first}"
            yield from (f"  {line}" for line in others)
        else:
            yield from _entry("-", item, "  ")


def _entry(begin: str, value: Value, indent: str) -> Iterator[str]:
    """Yield a value after a key or a dash."""
    if isinstance(value, str) and "\n" in value:
        yield f"{begin} |"
        yield from (f"{indent}{line}" for line in value.splitlines())
    elif isinstance(value, str | int):
        yield f"{begin} {_scalar(value)}"
    elif not value:
        yield f"{begin} {'{}' if isinstance(value, Mapping) else '[]'}"
    else:
        yield begin
        inner = _mapping(value) if isinstance(value, Mapping) else _sequence(value)
        yield from (f"{indent}{line}" for line in inner)


def _scalar(value: str | int) -> str:
    """Return a string, a number or a truth value on one line."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value)  # a string of JSON is one of YAML
