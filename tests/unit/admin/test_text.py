from __future__ import annotations

from typing import Any

import pytest

from admin import text
from registry.model.history import ColdStart
from tests.support.admin_documents import made


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (0.0512, "0.051"),
        (0.1, "0.1"),
        (1.0, "1"),
        (1.23, "1.2"),
        (18.4, "18"),
        (183, "183"),
    ],
)
def test_numbers_have_few_digits(value: float, shown: str) -> None:
    """Numbers have few significant digits."""
    assert text.number(value) == shown


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (0, "0 ms"),
        (0.00021, "0.21 us"),
        (0.05, "0.05 ms"),
        (183.2, "183 ms"),
        (2400, "2.4 s"),
        (180_000, "3.0 min"),
    ],
)
def test_durations_have_a_fitting_unit(ms: float, shown: str) -> None:
    """Durations are in us, ms, s or min, whichever fits: a row of a small model takes less than a
    microsecond."""
    assert text.duration(ms) == shown


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 * 2**50, "5120.0 TiB")]
)
def test_sizes_have_a_fitting_unit(count: int, shown: str) -> None:
    """Sizes are in binary units; the largest unit serves all larger sizes."""
    assert text.size(count) == shown


@pytest.mark.parametrize(
    ("age_s", "shown"),
    [
        (-5, "just now"),
        (0.5, "just now"),
        (30, "30 s ago"),
        (180, "3 min ago"),
        (7200, "2 h ago"),
        (172_800, "2 d ago"),
    ],
)
def test_ages_have_a_fitting_unit(age_s: float, shown: str) -> None:
    """An age is in its largest unit; a future time has age 0."""
    assert text.ago(1000.0, 1000.0 + age_s) == shown


@pytest.mark.parametrize(
    ("share", "shown"), [(0, ""), (1, "████"), (0.5, "██"), (0.28, "█▏"), (-1, ""), (7, "████")]
)
def test_bars_are_as_long_as_their_share(share: float, shown: str) -> None:
    """A bar's length is its share of the width, never more."""
    assert text.bar(share, 4) == shown


def test_tables_have_straight_columns() -> None:
    """Columns are as wide as their widest cell, and a cell is one line."""
    assert text.table(("A", "BB"), [("x\ny", "1"), ("z", "22")]) == "A    BB\nx y  1\nz    22"


def test_fields_without_a_value_are_left_out() -> None:
    """Fields stand below each other; those without a value are left out."""
    assert text.fields([("a", "1"), ("long", "2"), ("none", "")]) == "  a     1\n  long  2"
    assert text.fields([]) == ""


def test_strangers_cannot_steer_a_terminal() -> None:
    """Escape sequences lose their escape character; line breaks and letters of all scripts are
    kept."""
    assert text.plain("\x1b[1;31mred\x1b[m") == "red"
    assert text.plain("\x1b[2Jä\n\tb\x9b\r") == "�[2Jä\n\tb��"


def test_commands_can_be_pasted() -> None:
    """A word with blanks is quoted for the shell."""
    assert text.command("fnctl", "show", "a b") == "fnctl show 'a b'"


@pytest.mark.parametrize(
    ("cold_start", "shown"),
    [
        ({"device_kind": "cpu"}, "cpu"),
        ({"device_kind": "cuda", "devices": ["GPU-a"], "host": "local"}, "cuda"),
        ({"device_kind": "cuda", "devices": ["gpu2/GPU-a"], "host": "gpu2"}, "cuda of gpu2"),
        ({"device_kind": "cuda", "devices": ["GPU-a", "GPU-b"]}, "2 GPUs"),
        ({"devices": ["gpu2/GPU-a", "gpu2/GPU-b"], "host": "gpu2"}, "2 GPUs of gpu2"),
    ],
)
def test_the_place_of_a_cold_start_is_short(cold_start: dict[str, Any], shown: str) -> None:
    """It is the kind of the device or the number of GPUs, with another host by its name."""
    assert text.place_of(made(ColdStart, **cold_start)) == shown
