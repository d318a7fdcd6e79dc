"""Proposals for a name that does not exist: those that do and are most like it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

COMPARED_MAX: Final = 512
"""Max names that one is compared with. Catalogs choose the likely ones before."""
LENGTH_MAX: Final = 200
"""Max characters of a name that is proposed; longer ones are not compared."""
_WORD_MAX: Final = 80
_CUTOFF: Final = 0.6


def nearest(word: str, names: Iterable[str], limit: int = 3) -> list[str]:
    """Return up to `limit` of `names` that are similar to `word`, best first. Only the beginnings
    of a long `word` and of many names count, so that no input makes this slow."""
    # Replicas import this module, but compare only in an error.
    from difflib import get_close_matches

    compared = [name for name in islice(names, COMPARED_MAX) if len(name) <= LENGTH_MAX]
    return get_close_matches(word[:_WORD_MAX], compared, limit, _CUTOFF)


def did_you_mean(near: Sequence[str]) -> str:
    """Return the end of an error's text that proposes `near`, "" if there is nothing."""
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
