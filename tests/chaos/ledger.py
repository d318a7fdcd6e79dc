"""Report of one scenario: figures and violated invariants."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

VIOLATIONS_MAX = 1000


@dataclass
class Ledger:
    """Results of one scenario. The scenario passes if `violations` is empty."""

    name: str
    figures: dict[str, Any] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    def violated(self, text: str) -> None:
        """Record a violation, up to VIOLATIONS_MAX."""
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(text)

    def require(self, holds: bool, text: str) -> None:
        """Record `text` as a violation unless `holds`."""
        if not holds:
            self.violated(text)

    def lines(self) -> list[str]:
        """Return the report as text lines."""
        verdict = f"{len(self.violations)} VIOLATIONS" if self.violations else "holds"
        lines = [f"== {self.name}: {verdict}"]
        lines += [f"   {key}: {value}" for key, value in self.figures.items()]
        kinds = Counter(re.sub(r"#\d+", "#", text) for text in self.violations)
        for text in self.violations:
            # Violations that differ only in the request's number are printed once.
            if count := kinds.pop(re.sub(r"#\d+", "#", text), 0):
                lines.append(f"   VIOLATION {text}" + (f" ({count} times)" if count > 1 else ""))
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return {"scenario": self.name, "figures": self.figures, "violations": self.violations}
