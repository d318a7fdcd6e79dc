"""Symbolic sizes (polynomials), compared with the numbers they stand for."""

from __future__ import annotations

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from runtime_image.verification.rows.sizes import (
    ONE,
    ROWS,
    ZERO,
    N,
    Size,
    Symbol,
    Symbols,
    Unknown,
    at_least,
    lower,
    never_more,
    product,
)

KNOWN = Symbols()
S = KNOWN.of_input("s", 1)
T = KNOWN.fresh("t", 0)
U = KNOWN.fresh("u", None)

leaves = st.sampled_from([N, S, T]) | st.integers(-9, 9).map(Size.of)
sizes = st.recursive(
    leaves,
    lambda inner: st.tuples(inner, inner, st.sampled_from("+-*")).map(
        lambda three: {"+": three[0] + three[1], "-": three[0] - three[1]}.get(
            three[2], three[0] * three[1]
        )
    ),
    max_leaves=4,
)
numbers = st.fixed_dictionaries(
    {"N": st.integers(1, 9), "s": st.integers(1, 9), "t": st.integers(0, 9)}
)


def value(size: Size, numbers: dict[str, int]) -> int:
    """Evaluate the polynomial for these numbers."""
    total = 0
    for monomial, coefficient in size.terms.items():
        part = coefficient
        for symbol in monomial:
            part *= numbers[symbol.name.rstrip("0123456789")]
        total += part
    return total


def multiplied(left: Size, right: Size) -> Size:
    """Return `left * right`; Hypothesis redraws if the analysis refuses it as too large."""
    try:
        return left * right
    except Unknown:
        reject()


@given(sizes, sizes, numbers)
def test_arithmetic_is_that_of_numbers(left: Size, right: Size, at: dict[str, int]) -> None:
    """Evaluating a sum of polynomials gives the sum of their values."""
    assert value(left + right, at) == value(left, at) + value(right, at)
    assert value(left - right, at) == value(left, at) - value(right, at)
    assert value(multiplied(left, right), at) == value(left, at) * value(right, at)


@given(sizes, sizes)
def test_a_product_is_divided_by_its_factors(left: Size, right: Size) -> None:
    """A product can be divided by each of its factors."""
    if right != ZERO:
        assert multiplied(left, right).divided(right) == left


@given(sizes, sizes, numbers)
def test_a_quotient_is_exact(left: Size, right: Size, at: dict[str, int]) -> None:
    """Quotient times divisor equals the dividend for all numbers."""
    quotient = left.divided(right)
    if quotient is not None:
        assert value(quotient, at) * value(right, at) == value(left, at)


@given(sizes, sizes, numbers)
def test_what_is_decided_holds_for_all_numbers(left: Size, right: Size, at: dict[str, int]) -> None:
    """Decided bounds and comparisons hold for every valuation."""
    for size in (left, -left):
        low = lower(size)
        assert low is None or low <= value(size, at)
    if never_more(left, right):
        assert value(left, at) <= value(right, at)


def test_a_symbol_that_may_be_negative_has_no_bounds() -> None:
    """A symbol that may be negative has no bounds until it cancels out."""
    assert lower(U) is None
    assert not at_least(U * U, 0)
    assert at_least(U - U, 0)


def test_a_minimum_knows_what_it_never_exceeds() -> None:
    """A minimum is one symbol for both argument orders, and at most each of them."""
    symbols = Symbols()
    t = symbols.of_input("t", 1)
    least = symbols.minimum(t, Size.of(32))
    assert least == symbols.minimum(Size.of(32), t)
    assert never_more(least, t)
    assert never_more(least, Size.of(40))
    assert not never_more(t, least)
    assert symbols.minimum(t, t + ONE) == t


def test_no_symbol_hides_the_number_of_rows() -> None:
    """A symbol derived from N still counts as dependent on N."""
    symbols = Symbols()
    with pytest.raises(Unknown):
        symbols.derived(("half", N * S))
    with pytest.raises(Unknown):
        symbols.minimum(N, Size.of(32))


def test_sizes_near_overflow_are_unknown() -> None:
    """Sizes near the integer limit are unknown: run-time integers wrap, polynomials do not."""
    with pytest.raises(Unknown):
        product([N, S, S, S, S, S])
    with pytest.raises(Unknown):
        _ = N * Size.of(2**40)
    assert Size.of(2**63 - 1).constant == 2**63 - 1
    with pytest.raises(Unknown):
        Size.of(2**63)
    assert Size.symbol(Symbol("N", 0, 1)) != Size.symbol(ROWS)
