"""Metric names in PromQL expressions, and the rules of the rule file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent.parent
DASHBOARD = ROOT / "admin/grafana/dashboard.json"
RULES = ROOT / "admin/grafana/rules.yml"

_KEYWORDS = frozenset({"and", "or", "unless", "bool", "offset", "group_left", "group_right"})
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')
_MATCHERS = re.compile(r"\{[^{}]*\}")
_RANGES = re.compile(r"\[[^\[\]]*\]")
_LABELS = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^()]*\)")
_NAMES = re.compile(r"(?<![\w:.])([a-zA-Z_:][\w:]*)\b(?!\s*\()")


def names(expression: str) -> set[str]:
    """Return the metric names in an expression."""
    rest = _STRINGS.sub('""', expression)
    for pattern in (_MATCHERS, _RANGES, _LABELS):
        rest = pattern.sub(" ", rest)
    return set(_NAMES.findall(rest)) - _KEYWORDS


class Rule(NamedTuple):
    """An alert or recording rule. `text`: all its descriptive text."""

    kind: str
    name: str
    expression: str
    text: str


def rules() -> list[Rule]:
    """Return every rule in order. Parses only the YAML that this file uses; promtool parses all of
    it."""
    parts = re.split(r"^ {6}- (?=alert|record)", RULES.read_text("utf-8"), flags=re.MULTILINE)
    found = []
    for part in parts[1:]:
        head = re.match(r"(alert|record): (\S+)", part)
        body = re.search(r"^ {8}expr: (?:>-\n((?: {10}.*\n)+)|(.*)\n)", part, re.MULTILINE)
        assert head is not None, part
        assert body is not None, part
        found.append(Rule(head[1], head[2], " ".join((body[1] or body[2]).split()), part))
    return found


def dashboard() -> dict[str, Any]:
    """Return the Grafana dashboard."""
    document: dict[str, Any] = json.loads(DASHBOARD.read_text("utf-8"))
    return document


def panels() -> list[dict[str, Any]]:
    """Return the panels that display something."""
    return [one for one in dashboard()["panels"] if one["type"] != "row"]


def queries() -> list[str]:
    """Return the queries of all panels."""
    return [target["expr"] for panel in panels() for target in panel["targets"]]
