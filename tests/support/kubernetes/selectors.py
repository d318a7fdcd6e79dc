"""Label and field selectors of lists and watches."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.support.kubernetes.errors import Refused
from tests.support.kubernetes.store import Json

Matches = Callable[[Json], bool]
_SET = re.compile(r"([^\s!=,()]+) (in|notin) \(([^()]*)\)")
_PARTS = re.compile(r",(?![^()]*\))")
FIELDS = frozenset(
    {"metadata.name", "metadata.namespace", "spec.nodeName", "status.phase", "status.podIP"}
)


def selected(labels: str, fields: str) -> Matches:
    """Return whether an object matches both selectors, "" for all. Raises Refused for one that is
    none."""
    tests = [_label(part.strip()) for part in _PARTS.split(labels) if part.strip()]
    tests += [_field(part.strip()) for part in fields.split(",") if part.strip()]
    return lambda object: all(test(object) for test in tests)


def _label(part: str) -> Matches:
    if found := _SET.fullmatch(part):
        key, word, listed = found.groups()
        values = {one.strip() for one in listed.split(",")}
        return lambda object: (_labels(object).get(key) in values) == (word == "in")
    if "!=" in part:
        key, _, value = part.partition("!=")
        return lambda object: _labels(object).get(key) != value
    if "=" in part:
        key, _, value = part.replace("==", "=").partition("=")
        return lambda object: _labels(object).get(key) == value
    if part.startswith("!"):
        return lambda object: part[1:] not in _labels(object)
    return lambda object: part in _labels(object)


def _labels(object: Json) -> dict[str, str]:
    found: dict[str, str] = object["metadata"].get("labels") or {}
    return found


def _field(part: str) -> Matches:
    key, _, value = part.replace("==", "=").partition("=")
    negated = key.endswith("!")
    path = key.removesuffix("!")
    if path not in FIELDS:
        raise Refused(400, "BadRequest", f"field label not supported: {path}")
    return lambda object: (_at(object, path) == value) != negated


def _at(object: Json, path: str) -> Any:
    found: Any = object
    for step in path.split("."):
        found = found.get(step, {}) if isinstance(found, dict) else {}
    return "" if found == {} else found
