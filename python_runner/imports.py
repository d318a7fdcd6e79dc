"""Which packages a handler imports, and how long each takes."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

TOP = 20
"""Packages that are reported, those that took longest."""


class Imports:
    """Milliseconds by package, for the imports that began in the handler's own files."""

    def __init__(self, folder: str) -> None:
        self._folder = f"{folder}/"
        self.ms: dict[str, float] = {}

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure imports in this thread, until the end of the block."""
        original = builtins.__import__
        is_inside = False

        def measure(
            name: str,
            globals: Mapping[str, object] | None = None,
            locals: Mapping[str, object] | None = None,
            fromlist: Sequence[str] | None = (),
            level: int = 0,
        ) -> Any:
            nonlocal is_inside
            if is_inside or level or not self._is_own((globals or {}).get("__file__")):
                return original(name, globals, locals, fromlist, level)
            begin, is_inside = perf_counter(), True
            try:
                module = original(name, globals, locals, fromlist, level)
            finally:
                is_inside = False
            self._add(name.partition(".")[0], perf_counter() - begin)
            return module

        builtins.__import__ = measure
        try:
            yield
        finally:
            if builtins.__import__ is measure:
                builtins.__import__ = original

    def top(self) -> list[dict[str, Any]]:
        """Return the packages that took longest, longest first."""
        found = sorted(self.ms.items(), key=lambda one: -one[1])[:TOP]
        return [{"package": name, "ms": round(ms, 1)} for name, ms in found]

    def _is_own(self, file: object) -> bool:
        return isinstance(file, str) and file.startswith(self._folder)

    def _add(self, package: str, seconds: float) -> None:
        module = sys.modules.get(package)
        if package not in sys.stdlib_module_names and not self._is_own(
            getattr(module, "__file__", None)
        ):
            self.ms[package] = self.ms.get(package, 0.0) + seconds * 1000
