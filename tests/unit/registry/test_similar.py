"""Tests of similar words among many."""

from __future__ import annotations

import pytest

from registry import similar
from registry.similar import NEIGHBOURS, SimilarWords


def everything(_: str) -> bool:
    """Accept every word."""
    return True


@pytest.fixture(scope="module")
def words() -> SimilarWords:
    """Ten thousand names of three parts."""
    found = SimilarWords()
    for number in range(10_000):
        found.add("", f"team{number % 7}-model{number:04}-eu{number % 3}")
    return found


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("eam2-model1234-eu1", "team2-model1234-eu1"),
        ("xeam2-model1234-eu1", "team2-model1234-eu1"),
        ("team2-modell1234-eu1", "team2-model1234-eu1"),
        ("team2model1234-eu1", "team2-model1234-eu1"),
        ("team2-model1234-eu", "team2-model1234-eu1"),
        ("team2-model1234-ue1", "team2-model1234-eu1"),
    ],
)
def test_a_typing_error_anywhere_finds_the_word(
    words: SimilarWords, word: str, wanted: str
) -> None:
    """Also one in the first letter, which no alphabetical neighbour has."""
    assert words.near("", word, everything)[0] == wanted


@pytest.mark.parametrize("word", ["team2-model1234-eu", "\x00" * 65_536, "m" * 65_536, "", "é"])
def test_few_of_many_words_are_compared(
    words: SimilarWords, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """A wrong name, of any length, cannot stall the server."""
    compared: list[str] = []
    monkeypatch.setattr(similar, "nearest", lambda _, names: compared.extend(names) or [])

    words.near("", word, everything)

    assert len(compared) <= 4 * NEIGHBOURS


def test_only_what_is_accepted_is_proposed(words: SimilarWords) -> None:
    """Words that the caller may not see take no place, and other namespaces have their own."""
    others = words.near("", "team2-model1234-eu", lambda word: "1234" not in word)

    assert others
    assert not [word for word in others if "1234" in word]
    assert words.near("team", "team2-model1234-eu", everything) == []


def test_a_word_that_was_added_twice_is_there_until_it_is_removed_twice() -> None:
    """An alias of one function may be the name of another."""
    words = SimilarWords()
    words.add("", "digits")
    words.add("", "digits")
    words.remove("", "digits")
    assert words.near("", "digit", everything) == ["digits"]

    words.remove("", "digits")
    assert words.near("", "digit", everything) == []
