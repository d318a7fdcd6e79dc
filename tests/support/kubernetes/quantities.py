"""Quantities of resources."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

from tests.support.kubernetes.store import Json

UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9}


def number(quantity: str | int) -> Fraction:
    """Return a quantity in units: cores, bytes, pieces."""
    text = str(quantity)
    if text.endswith("m"):
        return Fraction(text[:-1]) / 1000
    for unit, factor in UNITS.items():
        if text.endswith(unit):
            return Fraction(text.removesuffix(unit)) * factor
    return Fraction(text)


def requested(pod: Json) -> Counter[str]:
    """Return what a Pod requests: cpu in thousandths of a core, others in units. Sidecars count
    like containers."""
    spec = pod["spec"]
    total: Counter[str] = Counter()
    sidecars = [one for one in spec.get("initContainers", []) if one.get("restartPolicy")]
    for container in [*sidecars, *spec["containers"]]:
        for name, quantity in requests_of(container).items():
            total[name] += thousandths(name, quantity)
    return total


def requests_of(container: Json) -> dict[str, Any]:
    """Return the requests of a container; a limit without a request is one."""
    resources = container.get("resources") or {}
    return {**(resources.get("limits") or {}), **(resources.get("requests") or {})}


def thousandths(name: str, quantity: str | int) -> int:
    """Return a quantity as an integer, cpu in thousandths."""
    return int(number(quantity) * (1000 if name == "cpu" else 1))
