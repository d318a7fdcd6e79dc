"""Hostile and large numbers are refused before anything is called."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import typer

from admin.cli.bench.points import (
    POINTS_MAX,
    Limits,
    Point,
    check_descriptors,
    check_number,
    check_total,
    parse_numbers,
    plan_points,
)


def test_numbers_are_a_list_without_repetitions() -> None:
    """The order is the given one."""
    assert parse_numbers("-c", "64, 1,8,1", 100) == (64, 1, 8)
    assert parse_numbers("-c", "100", 100) == (100,)


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "101", "1,,2", "1.5", "nan", "1e2", "٣", "9" * 5000, "1;2", "0x10"]
)
def test_other_numbers_are_refused(text: str) -> None:
    """The error names the option, the range, and a short part of what came."""
    with pytest.raises(
        typer.BadParameter, match=r"from 1 to 100 like 1,8, got '.{0,40}'"
    ) as caught:
        parse_numbers("-c", text, 100)
    assert caught.value.param_hint == "-c"


def test_a_list_has_an_end() -> None:
    """Nothing of a long list is left out silently."""
    with pytest.raises(typer.BadParameter, match=f"at most {POINTS_MAX} numbers"):
        parse_numbers("-c", "1," * POINTS_MAX + "2", 100)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.1, 10.1])
def test_a_number_is_finite_and_within_its_range(value: float) -> None:
    """NaN compares with nothing, and would pass a comparison."""
    assert check_number("--seconds", 10.0, 0, 10) == 10.0
    with pytest.raises(typer.BadParameter, match="expected a number from 0 to 10"):
        check_number("--seconds", value, 0, 10)


def test_a_large_limit_is_shown_in_full() -> None:
    """As the option is given: without an exponent."""
    with pytest.raises(
        typer.BadParameter, match=r"expected a number from 1 to 10000000, got 123456789$"
    ):
        check_number("--requests", 123456789, 1, 10_000_000)


def test_points_are_all_combinations() -> None:
    """Without batches the input is sent as it is; too many combinations are refused."""
    assert plan_points((1, 8), (1, 4)) == (Point(1, 1), Point(1, 4), Point(8, 1), Point(8, 4))
    assert plan_points((), (2,)) == (Point(0, 2),)
    with pytest.raises(typer.BadParameter, match=f"at most {POINTS_MAX} combinations, got 81"):
        plan_points(tuple(range(1, 10)), tuple(range(1, 10)))


def test_the_total_limit_must_do() -> None:
    """A plan that cannot end in time is refused with the least time."""
    points = plan_points((1, 2), (1, 2))
    assert check_total(points, Limits(seconds=5, warmup_s=1, total_s=24)) == 24
    with pytest.raises(typer.BadParameter, match=r"at least 24 s for 4 points .* got 23 s"):
        check_total(points, Limits(seconds=5, warmup_s=1, total_s=23))


@pytest.mark.parametrize(
    ("files", "is_tunnelled", "fits"),
    [(1024, False, True), (900, False, False), (1900, True, True), (1024, True, False)],
)
def test_connections_fit_the_limit_of_open_files(
    files: int, is_tunnelled: bool, fits: bool
) -> None:
    """A tunnel needs more of them."""
    points = (Point(0, 900),)
    refused = pytest.raises(typer.BadParameter, match=f"900 connections need .* may have {files}")
    with nullcontext() if fits else refused:
        check_descriptors(points, files, is_tunnelled=is_tunnelled)
