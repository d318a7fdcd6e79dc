"""Merge patches and strategic merge patches."""

from __future__ import annotations

import copy
from typing import Any

KEYS = {"volumeMounts": "mountPath", "tolerations": "", "command": "", "args": ""}
"""Fields by which members of lists are merged, where it is not the name; "" replaces the list."""


def patched(before: Any, patch: Any, *, is_strategic: bool) -> Any:
    """Return an object with a patch; null removes a member."""
    if not isinstance(before, dict) or not isinstance(patch, dict):
        return copy.deepcopy(patch)
    made = dict(before)
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        elif is_strategic and isinstance(value, list) and _is_merged(key, value):
            made[key] = _merged(made.get(key) or [], value, KEYS.get(key, "name"))
        else:
            made[key] = patched(made.get(key), value, is_strategic=is_strategic)
    return made


def _is_merged(key: str, value: list[Any]) -> bool:
    field = KEYS.get(key, "name")
    return bool(field) and all(isinstance(one, dict) and field in one for one in value)


def _merged(before: list[Any], patch: list[Any], field: str) -> list[Any]:
    made = list(before)
    for one in patch:
        found = [number for number, other in enumerate(made) if other.get(field) == one[field]]
        if found:
            made[found[0]] = patched(made[found[0]], one, is_strategic=True)
        else:
            made.append(copy.deepcopy(one))
    return made
