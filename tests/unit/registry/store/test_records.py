"""Tests of records: the data model as JSON text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from registry.errors import StoreUnavailable
from registry.model.functions import ExchangeLimits, Function
from registry.model.keys import Key
from registry.model.operations import Operation
from registry.model.parks import ParkProfile
from registry.model.profiles import Profile
from registry.model.revisions import Revision
from registry.model.servers import PathRules
from registry.store.records import SharedParts, decode_record, encode_record
from runtime_image.contract.model import AudioForm, BytesForm, ImageForm, InputRule, OutputRule
from runtime_image.contract.samples import SampleRequest
from tests.support.nouns import function, profile, revision, server_deployed, server_revision

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
        (server_deployed(exchange=ExchangeLimits(4)).function, Function),
        (
            server_revision(
                env={"A": "1"},
                samples=(SampleRequest("/x", "POST", {"a": "b"}, "x", 201),),
                paths=PathRules(("/a",), ("GET /b",), ("/c",)),
            ),
            Revision,
        ),
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


OLD_FUNCTION = """{"name":"digits","revision":1,"scaling":{"min":0,"max":1,"idle_s":300.0},
 "limits":{"timeout_s":60.0,"wait_s":55.0,"queue":2000,"body_mib":64,"retry":"auto"},
 "labels":{},"namespace":"default","created_s":0.0}"""
OLD_REVISION = """{"name":"digits","number":1,"bundle":"ab","signature":{"kind":"json","inputs":[],
 "outputs":[]},"engine":"python","model":"","handler":"handler.py","inputs":{},"output":
 {"tensor":"","labels":[],"top_k":0},"batching":{"mode":"auto","max_size":0,"wait_ms":0.0},
 "device":{"kind":"any","memory_mib":0,"share":1.0},"sample":{},"namespace":"default",
 "created_s":0.0}"""


@pytest.mark.parametrize(("text", "kind"), [(OLD_FUNCTION, Function), (OLD_REVISION, Revision)])
def test_rows_from_before_server_functions_are_models(text: str, kind: type) -> None:
    """A row without the fields of server functions is read as a model function's."""
    (shared,) = SharedParts().decode([(text,)], kind)

    assert shared == decode_record(text, kind)
    assert getattr(shared, "exchange", None) is None
    assert getattr(shared, "server", None) is None


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


def test_profiles_from_before_parks_are_read() -> None:
    """A profile of an earlier release has none; one from before the time of the samples has no
    such time."""
    park = ParkProfile(True, "", 3.0, 2.0, 0.5, 16_000.0, 1100.0)
    whole = encode_record(profile(park=park))

    assert decode_record(whole, Profile).park == park
    older = whole.replace('"verify_s":0.5,', "")
    assert older != whole
    assert decode_record(older, Profile).park == replace(park, verify_s=0.0)
    oldest = encode_record(profile()).replace(',"park":null', "")
    assert "park" not in oldest
    assert decode_record(oldest, Profile) == profile()
