"""Words that are like another one, found among many without comparing all of them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Final

from runtime_image.contract.proposals import LENGTH_MAX, nearest

NEIGHBOURS: Final = 12
"""How many words on each side of another, in each of the two orders, are compared with it."""


class SimilarWords:
    """Words by namespace, in the order of their beginnings and in that of their ends.

    Of two words that differ in one place, one of the orders has both near each other: they share
    what is before the place and what is after it.
    """

    def __init__(self) -> None:
        self._by_start: list[tuple[str, str]] = []
        self._by_end: list[tuple[str, str]] = []

    def add(self, namespace: str, word: str) -> None:
        """Add a word, which may be there already: it then has to be removed twice."""
        insort(self._by_start, (namespace, word))
        insort(self._by_end, (namespace, word[::-1]))

    def remove(self, namespace: str, word: str) -> None:
        """Remove a word that was added."""
        for words, key in ((self._by_start, word), (self._by_end, word[::-1])):
            del words[bisect_left(words, (namespace, key))]

    def near(self, namespace: str, word: str, accepts: Callable[[str], bool]) -> list[str]:
        """Return a few words that are like `word` and that `accepts` accepts, best first."""
        word = word[:LENGTH_MAX]
        starts = _around(self._by_start, namespace, word)
        ends = [other[::-1] for other in _around(self._by_end, namespace, word[::-1])]
        return nearest(word, filter(accepts, dict.fromkeys(starts + ends)))


def _around(words: list[tuple[str, str]], namespace: str, word: str) -> list[str]:
    place = bisect_left(words, (namespace, word))
    around = words[max(0, place - NEIGHBOURS) : place + NEIGHBOURS]
    return [other for space, other in around if space == namespace]
