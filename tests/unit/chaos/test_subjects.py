"""An answer shows whose it is."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest

from tests.chaos.subjects import NPY, SUBJECTS, Subject, chosen


def answer(subject: Subject, number: int) -> bytes:
    """What the function answers to request `number`."""
    body, headers = subject.request(number)
    if headers is NPY:
        out = io.BytesIO()
        np.save(out, np.load(io.BytesIO(body)) * subject.scale + subject.offset)
        return out.getvalue()
    x = np.array(json.loads(body)["inputs"]["x"])
    return json.dumps({"outputs": {"y": (x * subject.scale + subject.offset).tolist()}}).encode()


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_only_its_own_answer_is_right(subject: Subject) -> None:
    """That of another request, of another function, and no answer at all are not."""
    other = replace(subject, offset=subject.offset + 1)

    assert subject.complaint(60_000, answer(subject, 60_000)) == ""
    assert subject.complaint(60_000, answer(subject, 59_999)).startswith("expected")
    assert subject.complaint(7, answer(other, 7)).startswith("expected")
    assert subject.complaint(7, b"nonsense").startswith("no answer")


def test_functions_compute_different_things() -> None:
    """No two of them can be taken for each other."""
    assert len({(subject.scale, subject.offset) for subject in SUBJECTS}) == len(SUBJECTS)


@pytest.mark.parametrize("count", [0, 7])
def test_there_are_six(count: int) -> None:
    """Other numbers are refused by name."""
    with pytest.raises(ValueError, match=f"expected 1 to 6, got {count}"):
        chosen(count)
