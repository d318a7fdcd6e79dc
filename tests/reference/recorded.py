"""Facts that only a running server shows, from the committed text of the public surface.

`tests/test_surface.py` compares that text with a server; reading it here takes no second.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from tests.surface.document import FILE

STEP = re.compile(r"\.\*|\[\]|\.?[^.\[]+")


def section(name: str) -> list[str]:
    """The lines of one section of the surface."""
    _, found, rest = FILE.read_text("utf-8").partition(f"\n[{name}]\n")
    if not found:
        raise ValueError(f"the surface has no section {name}")
    return rest.partition("\n\n")[0].splitlines()


def skeleton(lines: Iterable[str]) -> str:
    """JSON with types in place of values, of lines `path: type` that begin with "." or "[]"."""
    root: dict[str, Any] = {}
    for line in lines:
        path, _, kind = line.partition(": ")
        at = root
        steps = [one.lstrip(".") for one in STEP.findall(path)]
        for step in steps[:-1]:
            at = at.setdefault(step, {}) if isinstance(at.get(step, {}), dict) else {}
        if not isinstance(at.get(steps[-1]), dict):
            at[steps[-1]] = kind
    text = json.dumps(_shaped(root), indent=2, ensure_ascii=False)
    return re.sub(r'\[\s+("[^"]*")\s+\]', r"[\1]", text)


def _shaped(node: Any) -> Any:
    if not isinstance(node, dict):
        return {"{}": {}, "[]": [], "null": None}.get(node, node)
    if "[]" in node:
        return [_shaped(node["[]"])]
    return {"NAME" if key == "*" else key: _shaped(inner) for key, inner in node.items()}
