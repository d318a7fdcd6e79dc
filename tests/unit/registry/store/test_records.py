"""Nouns as text."""

from __future__ import annotations

import pytest

from registry.errors import StoreUnavailable
from registry.model import Function, InputRule, Key, Operation, OutputRule, Profile, Revision
from registry.store.records import SharedParts, decode_record, encode_record
from runtime_image.contract.model import AudioForm, BytesForm, ImageForm
from tests.support.nouns import function, profile, revision

FORMS = {
    "image": InputRule("image", image=ImageForm((8, 8), mean=(1.0, 2.0, 3.0))),
    "audio": InputRule("audio", audio=AudioForm(8000, 10)),
    "bytes": InputRule("bytes", dtype="UINT8", shape=(-1, 9), bytes=BytesForm(9)),
}


NOUNS = pytest.mark.parametrize(
    ("noun", "kind"),
    [
        (function(labels={"team": "vision"}), Function),
        (revision(inputs=FORMS, output=OutputRule("y", ("a",), 1), sample={"x": [1.5]}), Revision),
        (profile(latency_ms={1: 0.25, 64: 3.0}), Profile),
        (Key("ab", "cd", ("read", "invoke:digits")), Key),
        (Operation("1", "deploy", "digits", {"files": [["a", 1]]}), Operation),
    ],
)
DAMAGED = pytest.mark.parametrize("text", ["", "{}", "[]", '{"name": 1, "revision": 1}'])


@NOUNS
def test_nouns_survive(noun: object, kind: type) -> None:
    """What is decoded equals what was encoded, down to tuples and number keys."""
    assert decode_record(encode_record(noun), kind) == noun


@NOUNS
def test_nouns_survive_in_parts(noun: object, kind: type) -> None:
    """Decoded with shared parts they are the same."""
    text = encode_record(noun)

    assert SharedParts().decode([(text,), (text,)], kind) == [noun, noun]


def test_equal_parts_are_one_object() -> None:
    """Of two revisions that differ in their numbers everything else exists once."""
    rows = [(encode_record(revision(number=n, inputs=FORMS)),) for n in (1, 2)]

    one, two = SharedParts().decode(rows, Revision)

    assert (one.number, two.number) == (1, 2)
    for part in ("name", "bundle", "signature", "inputs", "output", "batching", "device"):
        assert getattr(one, part) is getattr(two, part)


def test_what_only_looks_alike_is_not_shared() -> None:
    """The same text means another thing in another field."""
    text = '{"name": "digits", "revision": 1, "scaling": {}, "limits": {}, "labels": {}}'

    assert SharedParts().decode([(text,)], Function) == [function()]


def test_a_field_that_an_older_server_did_not_write_has_its_default() -> None:
    """Rows outlive the code that wrote them; so do fields that this code does not know."""
    text = '{"name": "digits", "revision": 3, "later": [1]}'

    assert SharedParts().decode([(text,)], Function) == [function(revision=3)]


@DAMAGED
def test_a_damaged_row_among_many_is_told(text: str) -> None:
    """It is told as it is for one row."""
    with pytest.raises(StoreUnavailable, match="database corrupt: a Function has"):
        SharedParts().decode([(text,)], Function)


@DAMAGED
def test_a_damaged_row_is_told(text: str) -> None:
    """A row that is no such noun is a damaged store, not a crash."""
    with pytest.raises(StoreUnavailable, match="database corrupt: a Function has"):
        decode_record(text, Function)
