"""Nouns as text."""

from __future__ import annotations

import pytest

from registry.errors import StoreUnavailable
from registry.model import Function, InputRule, Key, Operation, OutputRule, Profile, Revision
from registry.store.records import decode_record, encode_record
from runtime_image.contract.model import AudioForm, BytesForm, ImageForm
from tests.support.nouns import function, profile, revision

FORMS = {
    "image": InputRule("image", image=ImageForm((8, 8), mean=(1.0, 2.0, 3.0))),
    "audio": InputRule("audio", audio=AudioForm(8000, 10)),
    "bytes": InputRule("bytes", dtype="UINT8", shape=(-1, 9), bytes=BytesForm(9)),
}


@pytest.mark.parametrize(
    ("noun", "kind"),
    [
        (function(labels={"team": "vision"}), Function),
        (revision(inputs=FORMS, output=OutputRule("y", ("a",), 1), sample={"x": [1.5]}), Revision),
        (profile(latency_ms={1: 0.25, 64: 3.0}), Profile),
        (Key("ab", "cd", ("read", "invoke:digits")), Key),
        (Operation("1", "deploy", "digits", {"files": [["a", 1]]}), Operation),
    ],
)
def test_nouns_survive(noun: object, kind: type) -> None:
    """What is decoded equals what was encoded, down to tuples and number keys."""
    assert decode_record(encode_record(noun), kind) == noun


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"name": 1, "revision": 1}'])
def test_a_damaged_row_is_told(text: str) -> None:
    """A row that is no such noun is a damaged store, not a crash."""
    with pytest.raises(StoreUnavailable, match="database corrupt: a Function has"):
        decode_record(text, Function)
