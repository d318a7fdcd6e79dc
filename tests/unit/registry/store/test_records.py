"""Tests of records: the data model as JSON text."""

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
def test_records_round_trip(noun: object, kind: type) -> None:
    """A decoded record equals the encoded one, down to tuples and integer keys."""
    assert decode_record(encode_record(noun), kind) == noun


@NOUNS
def test_records_round_trip_with_shared_parts(noun: object, kind: type) -> None:
    """Decoding with shared parts yields equal records."""
    text = encode_record(noun)

    assert SharedParts().decode([(text,), (text,)], kind) == [noun, noun]


def test_equal_parts_are_one_object() -> None:
    """Equal fields of two revisions are the same object."""
    rows = [(encode_record(revision(number=n, inputs=FORMS)),) for n in (1, 2)]

    one, two = SharedParts().decode(rows, Revision)

    assert (one.number, two.number) == (1, 2)
    for part in ("name", "bundle", "signature", "inputs", "output", "batching", "device"):
        assert getattr(one, part) is getattr(two, part)


def test_equal_text_of_different_fields_is_not_shared() -> None:
    """The same text decodes differently in another field."""
    text = '{"name": "digits", "revision": 1, "scaling": {}, "limits": {}, "labels": {}}'

    assert SharedParts().decode([(text,)], Function) == [function()]


def test_missing_fields_have_defaults() -> None:
    """Rows of older and newer servers are readable: missing fields have defaults, unknown ones are
    ignored."""
    text = '{"name": "digits", "revision": 3, "later": [1]}'

    assert SharedParts().decode([(text,)], Function) == [function(revision=3)]


@DAMAGED
def test_a_damaged_row_among_many_is_reported(text: str) -> None:
    """The error is the same as for a single row."""
    with pytest.raises(StoreUnavailable, match="database corrupt: a Function has"):
        SharedParts().decode([(text,)], Function)


@DAMAGED
def test_a_damaged_row_is_reported(text: str) -> None:
    """A row that does not decode is reported as a damaged store."""
    with pytest.raises(StoreUnavailable, match="database corrupt: a Function has"):
        decode_record(text, Function)
