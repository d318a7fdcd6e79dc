"""Which errors end what."""

from __future__ import annotations

import pytest

from pool_manager.gpus import monitor
from pool_manager.gpus.monitor import Severity, meaning, severity


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        (Severity.GONE, [79]),
        (Severity.NEEDS_RESET, [46, 48, 62, 64, 74, 95, 109, 119, 120, 140, 143]),
        (Severity.APPLICATION, [13, 31, 43, 45, 63, 68, 94, 154, 9999]),
    ],
)
def test_each_error_has_a_severity(wanted: Severity, numbers: list[int]) -> None:
    """The severity of each error follows the catalogue's immediate action."""
    assert {severity(number) for number in numbers} == {wanted}


def test_no_error_is_in_two_classes() -> None:
    """No error is in two tables."""
    tables = [monitor.GONE, monitor.NEEDS_RESET, monitor.APPLICATION]

    assert len({number for table in tables for number in table}) == sum(map(len, tables))


def test_errors_are_put_in_words() -> None:
    """An error without a known meaning is described by its number."""
    assert meaning(79) == "XID 79: has fallen off the bus"
    assert meaning(48) == "XID 48: double-bit ECC error"
    assert meaning(31) == "XID 31: memory page fault"
    assert meaning(9999) == "XID 9999"
