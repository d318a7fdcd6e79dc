"""Hooks of schemathesis, which loads this file by its name: half of the paths name what exists."""

from __future__ import annotations

from typing import Any

import schemathesis  # type: ignore[import-not-found]  # in an environment of its own

KNOWN = {"name": "f", "model": "f", "version": "1"}


@schemathesis.hook  # type: ignore[untyped-decorator]
def map_path_parameters(_context: Any, path_parameters: dict[str, Any] | None) -> Any:
    """Replace the values of every other path, chosen by their length: a case stays the same."""
    if path_parameters and sum(len(str(one)) for one in path_parameters.values()) % 2:
        known = {name: value for name, value in KNOWN.items() if name in path_parameters}
        return {**path_parameters, **known}
    return path_parameters
