"""Quantities of the Kubernetes API, such as `1536Mi`, `250m`, `1.5Gi`, `1e3`.

Source: Kubernetes API reference, "Quantity" (k8s.io/apimachinery/pkg/api/resource): a number with a
binary suffix (Ki to Ei), a decimal one (n to E) or a decimal exponent; no quantity is over 2^63-1.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

VALUE_MAX: Final = 2**63 - 1
DIGITS_MAX: Final = 40
"""Max digits before and after the point. The API server writes at most 19."""
_SHOWN_MAX: Final = 60
_NUMBER: Final = re.compile(
    rf"([+-]?)([0-9]{{0,{DIGITS_MAX}}})(?:\.([0-9]{{0,{DIGITS_MAX}}}))?"
    r"(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?[0-9]{1,2}))?"
)
_FACTORS: Final = {
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", 1)},
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", 1)},
    **{letter: Fraction(1, 1000**power) for power, letter in enumerate("mun", 1)},
}


def parse_quantity(text: str) -> Fraction:
    """Return the number that a quantity stands for, exactly. Raises ValueError."""
    found = _NUMBER.fullmatch(text)
    if found is None or not (found[2] or found[3]):
        raise ValueError(f"expected a quantity such as 512Mi, got {text[:_SHOWN_MAX]!r}")
    sign, whole, part, suffix, exponent = found.groups()
    value = Fraction(int(whole or "0")) + Fraction(int(part or "0"), 10 ** len(part or ""))
    value *= _FACTORS[suffix] if suffix else Fraction(10) ** int(exponent or "0")
    if value > VALUE_MAX:
        raise ValueError(f"expected a quantity of at most 2^63-1, got {text[:_SHOWN_MAX]!r}")
    return -value if sign == "-" else value


def mib_of(text: str) -> float:
    """Return a quantity of bytes in MiB. Raises ValueError, also for a negative one."""
    return float(_not_negative(text) / 2**20)


def millis_of(text: str) -> int:
    """Return a quantity in thousandths, rounded down, such as 250 for `250m` of a CPU. Raises
    ValueError, also for a negative one."""
    return int(_not_negative(text) * 1000)


def count_of(text: str) -> int:
    """Return a quantity of whole things. Raises ValueError for any other."""
    value = _not_negative(text)
    if value.denominator != 1:
        raise ValueError(f"expected a whole number, got {text[:_SHOWN_MAX]!r}")
    return int(value)


def _not_negative(text: str) -> Fraction:
    value = parse_quantity(text)
    if value < 0:
        raise ValueError(f"expected a quantity that is not negative, got {text[:_SHOWN_MAX]!r}")
    return value
