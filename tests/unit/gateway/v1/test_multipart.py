"""Spans of the fields that /v1 reads, in any form."""

from __future__ import annotations

import itertools
import re

import pytest

from gateway.v1.endpoints import ENDPOINTS
from gateway.v1.multipart import FIELDS_MAX, HEAD_MAX, boundary_of, content_type, scan_multipart
from gateway.v1.scanning import SLICE, Scanned, run
from gateway.v1.splicing import upstream_body
from registry.errors import BadRequest
from registry.model import ModelApi

TYPE = b"multipart/form-data; boundary=B1"
MODEL = b'Content-Disposition: form-data; name="model"\r\n\r\nwhisper'
FILE = (
    b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\n'
    b"Content-Type: audio/wav\r\n\r\n\x00\r\n-- \r\n--B\n"
)


def form(*parts: bytes, end: bytes = b"--B1--\r\n") -> bytes:
    """Return a form of parts, each of a head and a value."""
    return b"".join(b"--B1\r\n%b\r\n" % part for part in parts) + end


def field(head: bytes, value: bytes = b"whisper") -> bytes:
    """Return a part with further lines, or another line, in its head."""
    return head + b"\r\n\r\n" + value


def named(name: bytes, value: bytes = b"x", more: bytes = b"") -> bytes:
    """Return a part with a name."""
    return field(b'Content-Disposition: form-data; name="%b"%b' % (name, more), value)


def scanned(body: bytes, kind: bytes = TYPE) -> Scanned:
    """Return what the gateway reads."""
    return run(scan_multipart(body, kind))


def refusal(body: bytes, kind: bytes = TYPE) -> str:
    """Return the text of the refusal, which must come."""
    with pytest.raises(BadRequest) as refused:
        scanned(body, kind)
    assert refused.value.message.isprintable()
    return refused.value.message


@pytest.mark.parametrize("parts", list(itertools.permutations([MODEL, FILE, named(b"x")])))
def test_the_model_may_stand_anywhere(parts: tuple[bytes, ...]) -> None:
    """The span is the value, and only it changes; the length is that of the body."""
    body = form(*parts)
    found = scanned(body)
    begin, end = found.values["model"]
    assert (found.model, found.is_stream, body[begin:end]) == ("whisper", False, b"whisper")
    endpoint = ENDPOINTS[b"/audio/transcriptions"]
    assert upstream_body(body, found, endpoint, ModelApi()).body is body
    for served in ("m", "a much longer name than before"):
        sent = upstream_body(body, found, endpoint, ModelApi(served_model=served)).body
        assert sent == body[:begin] + served.encode() + body[end:]
        assert scanned(sent).model == served


@pytest.mark.parametrize(
    ("text", "streams"), [(b"true", True), (b"True", True), (b"1", True), (b"false", False)]
)
def test_a_form_may_ask_for_a_stream(text: bytes, *, streams: bool) -> None:
    """Servers of forms take several words for true."""
    assert scanned(form(MODEL, named(b"stream", text))).is_stream is streams


@pytest.mark.parametrize(
    ("kind", "boundary"),
    [
        (b"multipart/form-data; boundary=B1", b"B1"),
        (b'Multipart/Form-Data ; charset=UTF-8 ;Boundary="B1";', b"B1"),
        (b'multipart/form-data; boundary="a b:c=d\'()+_,./?-"', b"a b:c=d'()+_,./?-"),
        (b"multipart/form-data; boundary=" + b"-" * 70, b"-" * 70),
    ],
)
def test_a_boundary_may_be_written_in_several_ways(kind: bytes, boundary: bytes) -> None:
    """The server gets it in one way only."""
    assert boundary_of(kind) == boundary
    assert boundary_of(content_type(boundary)) == boundary
    assert (b'"' in content_type(boundary)) == (b" " in boundary)
    body = form(MODEL).replace(b"--B1", b"--" + boundary)
    assert scanned(body, kind).model == "whisper"


@pytest.mark.parametrize(
    "kind",
    [
        b"",
        b"application/json",
        b"multipart/mixed; boundary=B1",
        b"multipart/form-data",
        b"multipart/form-data; boundary=",
        b'multipart/form-data; boundary=""',
        b"multipart/form-data; boundary=" + b"-" * 71,
        b'multipart/form-data; boundary="B1 "',
        b'multipart/form-data; boundary="B1',
        b'multipart/form-data; boundary="B\\1"',
        b'multipart/form-data; boundary="B\xc3\xa9"',
        b'multipart/form-data; boundary="B*"',
        b"multipart/form-data; boundary=B1; boundary=B2",
        b"multipart/form-data; boundary=B1; BOUNDARY=B1",
        b"multipart/form-data; boundary*=utf-8''B1",
        b"multipart/form-data; boundary=B1; charset=utf-7",
        b"multipart/form-data; boundary=B1; charset=utf-16",
        b"multipart/form-data; boundary=B1, multipart/form-data; boundary=B2",
    ],
)
def test_an_odd_content_type_is_refused(kind: bytes) -> None:
    """Another parser could take another boundary, or other characters."""
    assert "expected" in refusal(form(MODEL), kind)


TWICE = named(b"model", b"other")
LIKE = "expected no member like `model`"
ONE_MODEL = "model: expected once, got twice"
PLAIN = "model: expected a field of plain text"
HEAD = "a head of different fields"
NAME = "Content-Disposition: expected form-data with a name"
PARAMETERS = "expected parameters"
LINES = "the boundary on lines of its own"
END = "ends with its boundary"
DISPOSITION = b'Content-Disposition: form-data; name="model"'


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "begins with its boundary"),
        (form(FILE), "model: expected a name"),
        (form(), "model: expected a name"),
        (form(MODEL, TWICE), ONE_MODEL),
        (form(MODEL, FILE, MODEL), ONE_MODEL),
        (form(MODEL, named(b"stream", b"true"), named(b"stream", b"0")), "stream: expected once"),
        (form(MODEL, named(b"Model")), LIKE),
        (form(MODEL, named(b"model[]")), LIKE),
        (form(MODEL, named(b" model")), LIKE),
        (form(MODEL, named(b"mod%65l")), NAME),
        (form(MODEL, named(b"mod\\el")), NAME),
        (form(MODEL, named(b"=?utf-8?q?model?=")), NAME),
        (form(MODEL, named(b"m\xc3\xb6del")), NAME),
        (form(MODEL, named(b"")), NAME),
        (form(MODEL, named(b"x" * 201)), NAME),
        (form(MODEL, named(b"_charset_", b"utf-7")), "_charset_"),
        (form(MODEL, field(b"X: y")), NAME),
        (form(MODEL, field(b"Content-Disposition: attachment; name=x")), NAME),
        (form(MODEL, field(b"Content-Disposition: form-data")), NAME),
        (form(MODEL, named(b"x", more=b"; name=model")), PARAMETERS),
        (form(MODEL, named(b"x", more=b"; NAME=model")), PARAMETERS),
        (form(MODEL, named(b"x", more=b"; name*=utf-8''model")), NAME),
        (form(MODEL, named(b"x", more=b'; name*0="mod"; name*1="el"')), NAME),
        (form(MODEL, named(b"x", more=b'; filename="a\\";name=model;x="')), PARAMETERS),
        (form(MODEL, named(b"x", more=b'; filename="a')), PARAMETERS),
        (form(MODEL, named(b"x", more=b" filename=a")), PARAMETERS),
        (form(named(b"model", b"a", b'; filename="a"')), PLAIN),
        (form(named(b"model", b"a", b"; filename*=utf-8''a")), PLAIN),
        (form(field(DISPOSITION + b"\r\nContent-Type: application/json", b'"a"')), PLAIN),
        (form(field(DISPOSITION + b"\r\nContent-Type: text/plain; charset=utf-16")), PLAIN),
        (form(field(DISPOSITION + b"\r\nContent-Transfer-Encoding: base64")), "Encoding: expected"),
        (
            form(MODEL, field(b"Content-Transfer-Encoding: quoted-printable\r\n" + DISPOSITION)),
            "Encoding: expected",
        ),
        (form(field(DISPOSITION + b'\r\nContent-Disposition: form-data; name="x"')), HEAD),
        (form(field(DISPOSITION + b'\r\ncontent-disposition: form-data; name="x"')), HEAD),
        (form(field(b'Content-Disposition: form-data;\r\n name="model"')), HEAD),
        (form(field(b"Content-Disposition : form-data; name=model")), HEAD),
        (form(field(DISPOSITION + b"\nX: y")), HEAD),
        (form(field(DISPOSITION + b"\rX: y")), HEAD),
        (form(field(DISPOSITION + b"\r\nX: \x00")), HEAD),
        (form(field(DISPOSITION + b"\r\nX")), HEAD),
        (form(b"\r\n" + MODEL), HEAD),
        (form(b"whisper"), "a head of at most"),
        (form(DISPOSITION + b"\r\nwhisper"), "a head of at most"),
        (form(field(DISPOSITION + b"\r\nX: " + b"y" * HEAD_MAX)), "a head of at most"),
        (form(*[named(b"x%d" % one) for one in range(FIELDS_MAX)], MODEL), "at most 20 fields"),
        (form(named(b"model", b"")), "model: expected a name"),
        (form(named(b"model", b"a\n")), "model: expected a name"),
        (form(named(b"model", b"a\r\nb")), "model: expected a name"),
        (form(named(b"model", b"a\0")), "model: expected a name"),
        (form(named(b"model", b"\x1b[31m")), "model: expected a name"),
        (form(named(b"model", b"x" * 257)), "model: expected a name"),
        (form(named(b"model", b"x" * 5000)), "model: expected at most 256 characters"),
        (form(named(b"model", b"\xff")), "model: expected UTF-8"),
        (form(MODEL, end=b""), END),
        (form(MODEL, end=b"--B1"), END),
        (form(MODEL, end=b"--B1-"), END),
        (form(MODEL, end=b"--B1 --\r\n"), END),
        (form(MODEL) + b"x", "got more"),
        (form(MODEL) + form(TWICE), "got more"),
        (b"preamble\r\n" + form(MODEL), "begins with its boundary"),
        (b"\r\n\r\n" + form(MODEL), "begins with its boundary"),
        (b"x" * 10 * 2**20 + b"\r\n" + form(MODEL), "begins with its boundary"),
        (form(MODEL).replace(b"\r\n", b"\n"), LINES),
        (form(MODEL, FILE + b"\n--B1\n" + TWICE), LINES),
        (form(MODEL, FILE + b"\r--B1\r" + TWICE), LINES),
        (form(MODEL, FILE + b"--B1\r\n" + TWICE), LINES),
        (form(MODEL, FILE + b"\r\n--B1 \r\n" + TWICE), LINES),
        (form(MODEL, FILE + b"\r\n--B11\r\n"), LINES),
        (form(MODEL).replace(b"B1", b"b1"), "begins with its boundary"),
    ],
)
def test_what_two_parsers_could_read_differently_is_refused(body: bytes, text: str) -> None:
    """The refusal says what was expected, without characters that a terminal would obey."""
    assert text in refusal(body)


@pytest.mark.parametrize(
    "part",
    [
        field(DISPOSITION + b"\r\nContent-Type: text/plain; charset=UTF-8"),
        field(b"content-type:text/plain\r\nContent-Transfer-Encoding: binary\r\n" + DISPOSITION),
        field(b"Content-Disposition: Form-Data; name=model"),
        field(b"Content-Disposition:form-data ;\tname=model ; "),
        field(DISPOSITION + b"\r\nContent-Length: 7"),
    ],
)
def test_the_ways_in_which_clients_write_a_field_are_read(part: bytes) -> None:
    """Content types, encodings that are none, and parameters without quotes change nothing."""
    assert scanned(form(part)).model == "whisper"


@pytest.mark.parametrize(
    "name", [b'"C:\\a\\b.wav"', b'"%22.wav"', b'"\xc3\xa9.wav"', b'"a;b=c.wav"', b"a.wav", b'""']
)
def test_names_of_files_may_be_odd(name: bytes) -> None:
    """Nobody reads them here."""
    assert scanned(form(named(b"file", more=b"; filename=" + name), MODEL)).model == "whisper"


def test_a_nested_form_is_a_value() -> None:
    """Its fields are not the request's."""
    inner = form(TWICE).replace(b"B1", b"B2")
    outer = field(
        b'Content-Disposition: form-data; name="files"\r\n'
        b"Content-Type: multipart/mixed; boundary=B2",
        inner,
    )
    assert scanned(form(outer, MODEL)).model == "whisper"


def test_a_form_that_is_cut_anywhere_is_refused() -> None:
    """Only the line end behind the last boundary may be missing."""
    body = form(FILE, MODEL, named(b"x"))
    for end in range(len(body) - 2):
        assert refusal(body[:end])
    assert scanned(body[:-2]).model == "whisper"
    assert refusal(body[:-1])


def test_one_odd_byte_never_gives_another_model() -> None:
    """With any byte changed, the form is refused, or its model is the value that it names."""
    body = form(FILE, named(b"x", b"other"), MODEL)
    for at, byte in itertools.product(range(len(body)), b'\r\n\0 "\\;-B1\xff'):
        odd = body[:at] + bytes([byte]) + body[at + 1 :]
        try:
            found = scanned(odd)
        except BadRequest:
            continue
        begin, end = found.values["model"]
        assert odd[begin:end] == found.model.encode()
        assert re.search(rb"(?i)name=\"model\"[^\r]*\r\n\r\n\Z", odd[:begin])
        assert odd[end:].startswith(b"\r\n--B1")


def test_the_search_in_a_large_value_leaves_turns_to_the_loop() -> None:
    """A boundary over the end of a slice is found all the same."""
    for extra in range(12):
        value = b"x" * (2 * SLICE - 60 - extra)
        scanning = scan_multipart(form(named(b"file", value), MODEL), TYPE)
        assert next(scanning) is None
        assert run(scanning).model == "whisper"
