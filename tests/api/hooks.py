"""Hooks of schemathesis, which loads this file by its name: half of the paths name what exists."""

from __future__ import annotations

from typing import Any

import schemathesis  # type: ignore[import-not-found]  # in an environment of its own

NAMES = ("f", "web", "other", "f@1")
"""A model, a server function, its alias, a revision."""


@schemathesis.hook  # type: ignore[untyped-decorator]
def map_path_parameters(_context: Any, path_parameters: dict[str, Any] | None) -> Any:
    """Replace the values of every other path, chosen by their length: a case stays the same."""
    length = sum(len(str(one)) for one in (path_parameters or {}).values())
    if path_parameters and length % 2:
        name = NAMES[length // 2 % len(NAMES)]
        values = {"name": name, "model": name, "version": "1"}
        known = {key: value for key, value in values.items() if key in path_parameters}
        return {**path_parameters, **known}
    return path_parameters
