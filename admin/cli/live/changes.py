"""What has changed since the last look, function by function. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Changes:
    """Remembers the functions' lines as they were last shown."""

    def __init__(self) -> None:
        self._shown: dict[str, dict[str, Any]] = {}

    def since(self, functions: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """The lines that are new or other than last time, in order of name, then those gone.

        One that is gone is {"name": its name, "state": "gone"}.
        """
        changed = [functions[name] for name in sorted(functions) if self._is_new(functions[name])]
        gone = [{"name": name, "state": "gone"} for name in sorted(self._shown.keys() - functions)]
        self._shown = dict(functions)
        return changed + gone

    def _is_new(self, line: dict[str, Any]) -> bool:
        return self._shown.get(line["name"]) != line
