"""Tests of proposals for names."""

from __future__ import annotations

from itertools import count

from runtime_image.contract.proposals import COMPARED_MAX, LENGTH_MAX, did_you_mean, nearest


def test_similar_names_are_proposed_best_first() -> None:
    """At most `limit` names are returned, and in a sentence they are quoted."""
    names = ["digits", "digit", "digits-2", "whisper"]

    assert nearest("digitz", names) == ["digit", "digits", "digits-2"]
    assert nearest("digitz", names, limit=1) == ["digit"]
    assert nearest("qqq", names) == []
    assert did_you_mean(["a", "b\n"]) == "; did you mean 'a' or 'b\\n'?"
    assert did_you_mean([]) == ""


def test_no_input_makes_the_comparison_slow() -> None:
    """Of endless names the first are compared, and no long one; of a long word, its beginning."""
    endless = (f"name-{number}" for number in count())
    long = "x" * 65_536

    assert nearest("name-7", endless)[0] == "name-7"
    assert next(endless) == f"name-{COMPARED_MAX}"
    assert nearest(long, [long, "x" * (LENGTH_MAX + 1), "x" * 80]) == ["x" * 80]
