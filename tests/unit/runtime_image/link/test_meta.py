"""Metadata fields of requests and answers."""

from __future__ import annotations

import pytest

from runtime_image.link import meta as metas
from runtime_image.link.frames import LinkError
from runtime_image.link.meta import (
    FIELD_MAX,
    NUMBER_MAX,
    AnswerMeta,
    RequestMeta,
    pack_answer,
    pack_request,
    unpack_answer,
    unpack_request,
)

ANSWER = AnswerMeta("application/json", 1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    "meta",
    [
        RequestMeta("application/json", "", -1, ""),
        RequestMeta("application/octet-stream", "*/*;q=0.5", 0, "00-ab-cd-01"),
        RequestMeta("", "application/x-npy; output=y", 123456, ""),
    ],
)
def test_request_metadata_survives_serialisation(meta: RequestMeta) -> None:
    """A request's metadata survives serialisation, with and without a length."""
    assert unpack_request(pack_request(meta)) == meta


def test_parsed_metadata_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsed request metadata is cached up to a limit; entries with traces and long ones are
    not."""
    monkeypatch.setattr(metas, "_known", {})
    monkeypatch.setattr(metas, "_KNOWN_MAX", 2)

    first = unpack_request(b"a\n\n\n")
    again = unpack_request(b"a\n\n\n")
    for data in (b"b\n\n\n00-1-2-01", b"c" * 300 + b"\n\n\n", b"d\n\n\n", b"e\n\n\n"):
        unpack_request(data)

    assert again is first
    assert list(metas._known) == [b"e\n\n\n"]


def test_foreign_characters_are_replaced() -> None:
    """Header values beyond latin-1 are replaced; the other fields stay unchanged."""
    got = unpack_request(pack_request(RequestMeta("text/\u20ac", "\u00e9", -1, "")))

    assert got == RequestMeta("text/?", "\u00e9", -1, "")


def test_long_fields_are_cut() -> None:
    """Fields are cut so that meta always fits its 16-bit length."""
    long = "x" * (FIELD_MAX + 1)

    got = unpack_request(pack_request(RequestMeta(long, long, -1, long)))

    assert [len(got.content_type), len(got.accept), len(got.traceparent)] == [FIELD_MAX] * 3


@pytest.mark.parametrize("data", [b"", b"a\nb\nc", b"a\nb\n\n\n", b"a\nb\n-1\n", b"a\nb\n1x\n"])
def test_malformed_request_meta_is_refused(data: bytes) -> None:
    """A wrong number of fields or an invalid length ends the link."""
    with pytest.raises(LinkError, match="malformed request meta"):
        unpack_request(data)


def test_answer_metadata_survives_serialisation() -> None:
    """Content type, times and rows survive serialisation."""
    assert unpack_answer(pack_answer(ANSWER)) == ANSWER


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x03" + bytes(20),
        b"\xff" + bytes(20),
        bytes(20),
        bytes(22),
        b"application/json\n1\n2\n3\n4\n5",
    ],
)
def test_an_answer_of_a_foreign_type_is_refused(data: bytes) -> None:
    """An answer whose content type is not on the list is refused."""
    with pytest.raises(LinkError, match="malformed answer meta"):
        unpack_answer(data)


def test_endless_times_are_cut() -> None:
    """A time beyond the field's maximum (just over an hour) is clamped."""
    endless = unpack_answer(pack_answer(ANSWER._replace(compute_us=10**12)))
    assert endless == ANSWER._replace(compute_us=NUMBER_MAX)
