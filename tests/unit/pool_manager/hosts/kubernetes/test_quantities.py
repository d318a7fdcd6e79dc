"""Quantities of the Kubernetes API."""

from __future__ import annotations

from fractions import Fraction

import pytest

from pool_manager.hosts.kubernetes.quantities import count_of, mib_of, millis_of, parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("1", 1),
        ("+2", 2),
        ("-3", -3),
        ("1536Mi", 1536 * 2**20),
        ("1.5Gi", 3 * 2**29),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("250m", Fraction(1, 4)),
        ("100u", Fraction(1, 10_000)),
        ("1n", Fraction(1, 10**9)),
        ("12k", 12_000),
        ("3M", 3_000_000),
        ("2Ei", 2**61),
        ("1E", 10**18),
        ("1e3", 1000),
        ("1E3", 1000),
        ("15e-1", Fraction(3, 2)),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_a_quantity_is_read_exactly(text: str, value: Fraction) -> None:
    """Signs, points, suffixes and exponents of the API's grammar, without rounding."""
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "+",
        "Mi",
        "1 Mi",
        "1mi",
        "1Mib",
        "0x10",
        "1e",
        "1e999999999",
        "1e99Mi",
        "\u0661Mi",
        "1_000",
        "inf",
        "nan",
        "1\n",
        "9" * 1000,
        "0." + "0" * 1000 + "1",
        "9223372036854775808",
        "16Ei",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    """Other texts, numbers that are too long and values over 2^63-1 are refused."""
    with pytest.raises(ValueError, match="expected a quantity"):
        parse_quantity(text)


def test_quantities_are_converted() -> None:
    """Bytes become MiB, CPUs thousandths, and counts whole numbers."""
    assert mib_of("32Gi") == 32 * 1024
    assert mib_of("1048576") == 1
    assert millis_of("7910m") == 7910
    assert millis_of("1.0005") == 1000
    assert count_of("8") == 8
    assert count_of("8000m") == 8


@pytest.mark.parametrize("read", [mib_of, millis_of, count_of])
def test_no_resource_is_negative(read: object) -> None:
    """A negative amount of a resource is refused."""
    with pytest.raises(ValueError, match="not negative"):
        read("-1")  # type: ignore[operator]


def test_a_part_of_a_device_is_none() -> None:
    """A count that is not whole is refused."""
    with pytest.raises(ValueError, match="whole number"):
        count_of("1500m")
