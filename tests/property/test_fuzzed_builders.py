"""Builders of objects refuse hostile inputs in words: a small dose of `python -m tests.fuzz`."""

from __future__ import annotations

import pytest

from tests.fuzz.running import fuzz, input_of
from tests.fuzz.subject import Subject
from tests.fuzz.subjects import SUBJECTS
from tests.support.doses import amount

by_name = pytest.mark.parametrize("subject", SUBJECTS, ids=lambda one: one.name)


@by_name
def test_valid_inputs_are_accepted(subject: Subject) -> None:
    """What is damaged is valid at first: otherwise nothing behind the first refusal is reached."""
    for valid in subject.valid:
        subject.call(valid)
    assert all(len(valid) <= subject.size_max for valid in subject.valid)


@by_name
def test_hostile_inputs_are_refused_in_words(subject: Subject) -> None:
    """No input raises another error than a refusal; some are read, so that not only the surface is
    tried, and none is longer than its builder takes."""
    result = fuzz(subject, seed=11, count=amount(200, 20_000))

    assert result.failures == []
    assert result.accepted > 0
    assert max(len(input_of(subject, 11, number)) for number in range(80)) <= subject.size_max
