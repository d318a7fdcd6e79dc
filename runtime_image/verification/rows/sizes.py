"""Sizes of axes as integer polynomials over symbols, one of which is N, the number of rows.

Two sizes are equal only if their polynomials are: then they are equal in every run. All symbols but
N represent numbers that do not depend on how many rows a run has.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final

TERMS_MAX: Final = 64
DEGREE_MAX: Final = 5
COEFFICIENT_MAX: Final = 2**28
"""Beyond these limits a size is unknown. They also keep real sizes far from 64-bit overflow, where
polynomials and a run's integers would differ."""
ENDLESS: Final = 2**31 - 1
"""Exporters write this value or more for the end of a slice that means "to the end"."""


class Unknown(Exception):
    """No polynomial within the limits expresses a number."""


@dataclass(frozen=True, slots=True, eq=False)
class Symbol:
    """An unknown integer. `low` is its least value, None if it may be negative.

    `at_most` are sizes that it never exceeds, in any run. `is_input`: it is the size of an input's
    axis.
    """

    name: str
    order: int
    low: int | None
    at_most: tuple[Size, ...] = ()
    is_input: bool = False


Monomial = tuple[Symbol, ...]
"""A product of symbols, sorted by `order`; the empty one is 1."""


class Size:
    """Immutable polynomial with integer coefficients; arithmetic raises Unknown at the limits."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: dict[Monomial, int]) -> None:
        """`terms` must not contain zero coefficients."""
        self.terms = terms
        self._hash = hash(frozenset(terms.items()))

    @staticmethod
    def of(number: int) -> Size:
        """Return a constant size."""
        if not -(2**63) <= number < 2**63:
            raise Unknown("a constant beyond 64 bits")
        return Size({(): number} if number else {})

    @staticmethod
    def symbol(symbol: Symbol) -> Size:
        """Return the size that is this symbol."""
        return Size({(symbol,): 1})

    @property
    def constant(self) -> int | None:
        """The number if the size is constant, else None."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    @property
    def symbols(self) -> set[Symbol]:
        """All symbols of the polynomial."""
        return {symbol for monomial in self.terms for symbol in monomial}

    @property
    def has_rows(self) -> bool:
        """Whether N occurs."""
        return any(symbol is ROWS for monomial in self.terms for symbol in monomial)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Size) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: Size) -> Size:
        terms = dict(self.terms)
        for monomial, coefficient in other.terms.items():
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return _checked(terms)

    def __neg__(self) -> Size:
        return Size({monomial: -coefficient for monomial, coefficient in self.terms.items()})

    def __sub__(self, other: Size) -> Size:
        return self + -other

    def __mul__(self, other: Size) -> Size:
        terms: dict[Monomial, int] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                monomial = tuple(sorted(left + right, key=_order))
                terms[monomial] = terms.get(monomial, 0) + a * b
        return _checked(terms)

    def divided(self, other: Size) -> Size | None:
        """Return the exact quotient, None if there is none."""
        if not other.terms:
            return None
        rest, quotient = self, ZERO
        lead = max(other.terms, key=_rank)
        for _ in range(TERMS_MAX):
            if not rest.terms:
                return quotient
            part = _monomial_quotient(rest, lead, other.terms[lead])
            if part is None:
                return None
            quotient, rest = quotient + part, rest - part * other
        return None

    def __repr__(self) -> str:
        if not self.terms:
            return "0"
        return " + ".join(
            "*".join(([str(c)] if c != 1 or not m else []) + [s.name for s in m])
            for m, c in self.terms.items()
        )


def _order(symbol: Symbol) -> int:
    return symbol.order


def _rank(monomial: Monomial) -> tuple[int, tuple[int, ...]]:
    """Graded lexicographic order, which multiplication preserves: required for exact division."""
    return len(monomial), tuple(-symbol.order for symbol in monomial)


def _checked(terms: dict[Monomial, int]) -> Size:
    terms = {monomial: coefficient for monomial, coefficient in terms.items() if coefficient}
    if len(terms) > TERMS_MAX:
        raise Unknown("a size with too many terms")
    for monomial, coefficient in terms.items():
        # A plain constant may be as large as INT64_MAX, which means "to the end" of a slice.
        if len(monomial) > DEGREE_MAX or abs(coefficient) > (
            COEFFICIENT_MAX if monomial else 2**63
        ):
            raise Unknown("a size that is too large")
    return Size(terms)


def _monomial_quotient(rest: Size, lead: Monomial, coefficient: int) -> Size | None:
    first = max(rest.terms, key=_rank)
    if rest.terms[first] % coefficient:
        return None
    left = list(first)
    for symbol in lead:
        if symbol not in left:
            return None
        left.remove(symbol)
    return Size({tuple(left): rest.terms[first] // coefficient})


ZERO: Final = Size({})
ONE: Final = Size({(): 1})
ROWS: Final = Symbol("N", 0, 1)
N: Final = Size.symbol(ROWS)


def product(sizes: Iterable[Size]) -> Size:
    """Return the product of sizes, 1 for none."""
    result = ONE
    for size in sizes:
        result = result * size
    return result


def lower(size: Size) -> int | None:
    """Return a lower bound of the size in every run, None if none is found.

    Each symbol x with least value l is written as l + y with y >= 0. If no coefficient of a product
    of ys is negative, the constant term is the minimum.
    """
    try:
        shifted = _shifted(size)
    except Unknown:
        return None
    if any(coefficient < 0 for monomial, coefficient in shifted.terms.items() if monomial):
        return None
    return shifted.terms.get((), 0)


def _shifted(size: Size) -> Size:
    result = ZERO
    for monomial, coefficient in size.terms.items():
        part = Size({(): coefficient})
        for symbol in monomial:
            if symbol.low is None:
                raise Unknown("a symbol without a least value")
            part = part * (Size.symbol(symbol) + Size.of(symbol.low))
        result = result + part
    return result


def at_least(size: Size, number: int) -> bool:
    """Whether the size is provably at least `number`."""
    low = lower(size)
    return low is not None and low >= number


def never_more(left: Size, right: Size, depth: int = 4) -> bool:
    """Whether provably `left` <= `right` in every run."""
    try:
        if at_least(right - left, 0):
            return True
    except Unknown:
        return False
    (monomial,) = left.terms if len(left.terms) == 1 else ((),)
    if depth == 0 or len(monomial) != 1 or left.terms[monomial] != 1:
        return False
    return any(never_more(bound, right, depth - 1) for bound in monomial[0].at_most)


@dataclass(slots=True)
class Symbols:
    """Creates symbols. The same `key` gives the same symbol: equal expressions are equal sizes."""

    created: int = 0
    _known: dict[Hashable, Size] = field(default_factory=dict)

    def fresh(self, name: str, low: int | None = 0, at_most: tuple[Size, ...] = ()) -> Size:
        """Return a new symbol, about which nothing else is known; it does not depend on N."""
        self.created += 1
        return Size.symbol(Symbol(f"{name}{self.created}", self.created, low, at_most))

    def of_input(self, name: str, low: int) -> Size:
        """Return a symbol for the size of an input's axis."""
        self.created += 1
        return Size.symbol(Symbol(name, self.created, low, (), True))

    def derived(
        self, key: tuple[Hashable, ...], low: int | None = 0, at_most: tuple[Size, ...] = ()
    ) -> Size:
        """Return the symbol for function key[0] applied to the arguments key[1:].

        Raises Unknown if N is among the arguments: a symbol must not depend on N.
        """
        if any(isinstance(part, Size) and part.has_rows for part in key):
            raise Unknown("a size computed from the number of rows")
        known = self._known.get(key)
        if known is None:
            bounds = tuple(bound for bound in at_most if not bound.has_rows)
            known = self._known[key] = self.fresh(str(key[0]), low, bounds)
        return known

    def minimum(self, left: Size, right: Size) -> Size:
        """Return the smaller of two sizes. Raises Unknown if that depends on N."""
        if never_more(left, right):
            return left
        if never_more(right, left):
            return right
        lows = [lower(left), lower(right)]
        low = None if None in lows else min(low for low in lows if low is not None)
        first, second = sorted((left, right), key=repr)
        return self.derived(("min", first, second), low, (left, right))
