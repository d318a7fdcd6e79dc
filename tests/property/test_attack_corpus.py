"""The corpus of the attack is played: each input by all that `make attack` judges by.

It has what reached something new, minimised, and the inputs of mended bugs, which have names.
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import pytest

from registry.path_rules import normalise
from tests.fuzz.corpus import CORPUS, inputs_in, minimised, name_of
from tests.fuzz.oracles import Wrong, judge, outcome_of
from tests.fuzz.subject import Bound, Subject, chance_of, pieces
from tests.fuzz.subjects import SUBJECTS

by_name = pytest.mark.parametrize("subject", SUBJECTS, ids=lambda one: one.name)
SIZE_MAX = 300 * 1024


@by_name
def test_kept_inputs_are_right(subject: Subject) -> None:
    """Only refusals are raised, answers are right, lines and memory are within the bounds."""
    for data in subject.valid:
        assert not isinstance(outcome_of(subject, data), Exception)
    for data in (*subject.valid, *(data for _, data in inputs_in(CORPUS / subject.name))):
        judge(subject, data)


def test_the_corpus_is_small_and_of_these_subjects() -> None:
    """Each folder is a subject's, and all of them together are read in no time."""
    folders = {path.name for path in CORPUS.iterdir()}
    sizes = [len(data) for folder in folders for _, data in inputs_in(CORPUS / folder)]

    assert folders <= {one.name for one in SUBJECTS}
    assert 0 < sum(sizes) < SIZE_MAX


def toy_call(data: bytes) -> object:
    """Refuse b"a", fail for b"k", and take steps and memory as the first byte says."""
    if data == b"a":
        raise ValueError
    if data == b"k":
        raise KeyError(data)
    if data == b"steps":
        return unquote_to_bytes("%61" * 1000)
    return bytes(100_000) if data == b"memory" else data


def toy_check(data: bytes, _found: object) -> None:
    """Find one answer wrong."""
    assert data != b"wrong"


TOY = Subject(
    *("toy", toy_call, (b"",), 100, (ValueError,)),
    check=toy_check,
    lines=Bound(100, 1),
    memory=Bound(50_000, 1),
)


def test_refusals_are_no_errors() -> None:
    """What a subject may raise is what came of its input."""
    assert isinstance(outcome_of(TOY, b"a"), ValueError)
    assert outcome_of(TOY, b"b") == b"b"
    assert judge(TOY, b"b").lines == 0


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"k", "KeyError test_attack_corpus.py:toy_call"),
        (b"wrong", "AssertionError test_attack_corpus.py:toy_check"),
        (b"steps", "lines"),
        (b"memory", "memory"),
    ],
)
def test_each_oracle_finds_what_is_wrong(data: bytes, what: str) -> None:
    """Another error than a refusal, a wrong answer, too many lines, too much memory."""
    with pytest.raises(Wrong) as caught:
        judge(TOY, data)
    assert caught.value.place.startswith(what)


def test_the_corpus_keeps_what_takes_steps_of_its_own() -> None:
    """Of inputs that take the same steps equally often the shortest is kept."""
    paths = Subject("paths", lambda data: normalise(b"/" + data), (), 100)

    kept = minimised(paths, [b"a/b", b"a", b"/..", b"x/../y", b"b", b"%2e%2e", b"/../.."])

    assert b"a" in kept
    assert b"/.." in kept
    assert b"a/b" not in kept
    assert b"b" not in kept
    assert len({name_of(one) for one in kept}) == len(kept)


@pytest.mark.parametrize("size", [0, 1, 2, 150, 1000])
def test_pieces_are_the_whole(size: int) -> None:
    """Nothing is lost at the cuts, and there are cuts."""
    data = bytes(range(250)) * 4
    cut = list(pieces(data[:size], chance_of(data[:size])))

    assert b"".join(cut) == data[:size]
    assert all(cut)
    assert len(cut) > 1 or size < 150
