"""Spans of the fields that /v1 reads, in any form."""

from __future__ import annotations

import itertools
import re
import tracemalloc

import pytest

from gateway.v1.bounds import SLICE
from gateway.v1.endpoints import ENDPOINTS
from gateway.v1.multipart import FormRequest, form_type, scan_multipart
from gateway.v1.writing import upstream_body
from registry.errors import BadRequest
from registry.model.servers import ModelApi
from runtime_image.codecs.multipart import FIELDS_MAX, HEAD_MAX, PREAMBLE_MAX
from tests.support.scans import run

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


def scanned(body: bytes, kind: bytes = TYPE) -> FormRequest:
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
    begin, end = found.place
    assert (found.model, found.is_stream, body[begin:end]) == ("whisper", False, b"whisper")
    endpoint = ENDPOINTS[b"/audio/transcriptions"]
    assert upstream_body(found, endpoint, ModelApi()).pieces == (body,)
    for served in ("m", "a much longer name than before"):
        sent = b"".join(upstream_body(found, endpoint, ModelApi(served_model=served)).pieces)
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
        (b"multipart/form-data; boundary====1577===", b"===1577==="),
        (b"multipart/form-data; charset=ISO-8859-1; boundary=a/b:c?(d)", b"a/b:c?(d)"),
    ],
)
def test_a_boundary_may_be_written_in_several_ways(kind: bytes, boundary: bytes) -> None:
    """The server gets it in one way only."""
    found = form_type(kind)
    assert found.boundary == boundary
    assert form_type(found.field()) == found
    assert (b'"' in found.field()) == bool(re.search(rb"[ =:?/(]", boundary))
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
        b"multipart/form-data; boundary=B1; charset=shift_jis",
        b"multipart/form-data; boundary=B1, multipart/form-data; boundary=B2",
    ],
)
def test_an_odd_content_type_is_refused(kind: bytes) -> None:
    """Another parser could take another boundary, or other characters."""
    assert "expected" in refusal(form(MODEL), kind)


def coded(coding: bytes, value: bytes, name: bytes = b"model") -> bytes:
    """Return a part with a transfer encoding."""
    head = b'Content-Disposition: form-data; name="%b"\r\nContent-Transfer-Encoding: %b'
    return field(head % (name, coding), value)


TWICE = named(b"model", b"other")
LIKE = "expected no member like `model`"
ONE_MODEL = "model: expected once, got twice"
PLAIN = "model: expected a field of plain text"
LINE = "to have lines such as `Name: value`"
NAME = "Content-Disposition: expected form-data with one plain name"
SIZE = "Content-Disposition: expected a name of 1 to 200 bytes"
PARAMETERS = "expected parameters"
LINES = "the boundary on lines of its own, which end with CRLF"
BEGIN = "begins with its boundary"
END = "ends with its boundary"
MORE = "ends with its boundary, got more"
DISPOSITION = b'Content-Disposition: form-data; name="model"'
OTHER = b'Content-Disposition: form-data; name="x"'


@pytest.mark.parametrize(
    ("body", "text"),
    [
        # the model
        (b"", BEGIN),
        (form(FILE), "model: expected a name"),
        (form(), "model: expected a name"),
        (form(MODEL, TWICE), ONE_MODEL),
        (form(MODEL, FILE, MODEL), ONE_MODEL),
        (form(MODEL, named(b"stream", b"true"), named(b"stream", b"0")), "stream: expected once"),
        (form(named(b"model", b"a", b'; filename="a"')), PLAIN),
        (form(named(b"model", b"a", b"; filename*=utf-8''a")), PLAIN),
        (form(field(DISPOSITION + b"\r\nContent-Type: application/json", b'"a"')), PLAIN),
        (form(field(DISPOSITION + b"\r\nContent-Type: text/plain; charset=utf-16")), "a charset"),
        (form(field(DISPOSITION + b"\r\nContent-Type: text/plain; charset=utf-7")), "a charset"),
        (
            form(field(DISPOSITION + b"\r\nContent-Type: text/plain; charset=latin1", b"\xe9")),
            "model: expected ASCII",
        ),
        (form(coded(b"base64", b"d2hpc3Blcg==")), "Encoding of model: expected binary"),
        (form(coded(b"quoted-printable", b"wh=69sper")), "model: expected ASCII without `=`"),
        (form(coded(b"quoted-printable", b"whisper ")), "model: expected ASCII without `=`"),
        (form(coded(b"x-uuencode", b"whisper")), "Encoding of model: expected binary"),
        (form(named(b"model", b"")), "model: expected a name"),
        (form(named(b"model", b"a\n")), "model: expected a name"),
        (form(named(b"model", b"a\r\nb")), "model: expected a name"),
        (form(named(b"model", b"a\0")), "model: expected a name"),
        (form(named(b"model", b"\x1b[31m")), "model: expected a name"),
        (form(named(b"model", b"x" * 257)), "model: expected a name"),
        (form(named(b"model", b"x" * 5000)), "expected at most 256 characters, got 5000 bytes"),
        (form(named(b"model", b"\xff")), "model: expected UTF-8"),
        # names
        (form(MODEL, named(b"Model")), LIKE),
        (form(MODEL, named(b"model[]")), LIKE),
        (form(MODEL, named(b" model")), LIKE),
        (form(MODEL, named(b"\xa0model")), LIKE),
        (form(MODEL, named(b"mod%65l")), LIKE),
        (form(MODEL, named(b"model%00x")), LIKE),
        (form(MODEL, named(b"model%22x")), LIKE),
        (form(MODEL, named(b"model;x")), LIKE),
        (form(MODEL, named(b" MODEL ; x")), LIKE),
        (form(MODEL, named(b"mod\\el")), LIKE),
        (form(MODEL, named(b"mod\\%65l")), LIKE),
        (form(MODEL, named(b'model\\"x')), LIKE),
        (form(MODEL, named(b"model\\")), LIKE),
        (form(MODEL, named(b"=?utf-8?q?model?=")), SIZE),
        (form(MODEL, named(b"")), SIZE),
        (form(MODEL, named(b"x" * 201)), SIZE),
        (form(MODEL, named(b"_charset_", b"utf-7")), "_charset_"),
        (form(MODEL, named(b"_Charset%5f", b"utf-7")), "_charset_"),
        (form(MODEL, field(b"X: y")), NAME),
        (form(MODEL, field(b"Content-Disposition: attachment; name=x")), NAME),
        (form(MODEL, field(b"Content-Disposition: form-data")), NAME),
        (form(MODEL, named(b"x", more=b"; name=model")), PARAMETERS),
        (form(MODEL, named(b"x", more=b"; NAME=model")), PARAMETERS),
        (form(MODEL, named(b"x", more=b"; name*=utf-8''model")), NAME),
        (form(MODEL, named(b"x", more=b'; name*0="mod"; name*1="el"')), NAME),
        (form(MODEL, field(b'Content-Disposition: form-data; name*0="mod"; name*1="el"')), NAME),
        (form(MODEL, named(b"x", more=b'; filename="a\\";name=model;x="')), NAME),
        (form(MODEL, named(b"x", more=b'; filename="a\\"; name=model')), NAME),
        (form(MODEL, named(b"x", more=b'; filename="a"; name=model"')), NAME),
        (form(MODEL, named(b"x", more=b'; filename="a"b; name="model"')), NAME),
        (form(named(b"model", more=b'; filename="a"b"')), PLAIN),
        (form(MODEL, named(b'a"b')), PARAMETERS),
        (form(MODEL, named(b"x", more=b'; filename="a; name=model; b"')), NAME),
        (form(MODEL, named(b"x", more=b'; y="a\\\\"; z="; name=model; b"')), NAME),
        (form(MODEL, named(b"x", more=b'; y="a')), PARAMETERS),
        (form(MODEL, named(b"x", more=b" filename=a")), PARAMETERS),
        (form(named(b"model", b"a", b'; x="\\"; y=b; z="')), NAME),
        # heads
        (form(field(DISPOSITION + b'\r\nContent-Disposition: form-data; name="x"')), "once, got"),
        (form(field(DISPOSITION + b'\r\ncontent-disposition: form-data; name="x"')), "once, got"),
        (form(field(b'Content-Disposition: form-data;\r\n name="model"')), LINE),
        (form(field(b"Content-Disposition : form-data; name=model")), LINE),
        (form(field(DISPOSITION + b"\nX: y")), LINE),
        (form(field(DISPOSITION + b"\rX: y")), LINE),
        (form(field(DISPOSITION + b"\r\nX: \x00")), LINE),
        (form(field(DISPOSITION + b"\r\nX")), LINE),
        (form(b"\r\n" + MODEL), LINE),
        (form(b"whisper"), "a head of at most 8192 bytes, got 'whisper'"),
        (form(DISPOSITION + b"\r\nwhisper"), "a head of at most"),
        (form(field(DISPOSITION + b"\r\nX: " + b"y" * HEAD_MAX)), "a head of at most"),
        # how many
        (form(field(DISPOSITION + b"".join(b"\r\nX%d: y" % one for one in range(20)))), "20 lines"),
        (form(MODEL, named(b"x", more=b";" * 20)), "at most 20 parameters"),
        (form(MODEL, named(b"x", more=b"".join(b"; p%d=" % n for n in range(20)))), PARAMETERS),
        (form(*[named(b"x%d" % one) for one in range(FIELDS_MAX)], MODEL), "at most 1000 fields"),
        (b"--B1\r\n" * 100_000 + b"--B1--\r\n", "a head of at most"),
        (form(*[OTHER + b"\r\n\r\n"] * 100_000), "at most 1000 fields"),
        # boundaries
        (form(MODEL, end=b""), END),
        (form(MODEL, end=b"--B1"), END),
        (form(MODEL, end=b"--B1-"), END),
        (form(MODEL, end=b"--B1 --\r\n"), END),
        (form(MODEL) + b"--B1\r\n", MORE),
        (form(MODEL) + form(TWICE), MORE),
        (form(MODEL) + b"x" * SLICE + b"--B1--", MORE),
        (form(MODEL, end=b"--B1--x\r\n"), MORE),
        (form(MODEL, end=b"--B1--\r"), MORE),
        (form(MODEL, end=b"--B1--1\r\n") + form(TWICE), MORE),
        (b"x--B1\r\n" + form(MODEL), BEGIN),
        (b"\n" + form(MODEL), BEGIN),
        (b"x" * PREAMBLE_MAX + b"\r\n" + form(MODEL), BEGIN),
        (b"x" * 10 * 2**20 + b"\r\n" + form(MODEL), BEGIN),
        (form(MODEL).replace(b"\r\n", b"\n"), LINES),
        (form(MODEL).replace(b"\r\n", b"\r"), LINES),
        (form(MODEL, FILE + b"\n--B1\n" + TWICE), LINES),
        (form(MODEL, FILE + b"\r--B1\r" + TWICE), LINES),
        (form(MODEL, FILE + b"--B1\r\n" + TWICE), LINES),
        (form(MODEL, FILE + b"\r\n--B1 \r\n" + TWICE), LINES),
        (form(MODEL, FILE + b"\r\n--B11\r\n"), LINES),
        (form(MODEL).replace(b"B1", b"b1"), BEGIN),
    ],
)
def test_what_two_parsers_could_read_differently_is_refused(body: bytes, text: str) -> None:
    """The refusal says what was expected, without characters that a terminal would obey."""
    assert text in refusal(body)


TYPED = b"\r\nContent-Type: text/plain; charset="


@pytest.mark.parametrize(
    "part",
    [
        field(DISPOSITION + TYPED + b"UTF-8"),
        field(DISPOSITION + TYPED + b"ISO-8859-1\r\nContent-Transfer-Encoding: 8bit"),
        field(DISPOSITION + TYPED + b'"windows-1252"'),
        field(DISPOSITION + TYPED + b"GBK"),
        coded(b"quoted-printable", b"whisper"),
        field(b"content-type:text/plain\r\nContent-Transfer-Encoding: binary\r\n" + DISPOSITION),
        field(b"Content-Disposition: Form-Data; name=model"),
        field(b"Content-Disposition:form-data ;\tname=model ; "),
        field(DISPOSITION + b"\r\nContent-Length: 7"),
        field(DISPOSITION + b"\r\nX: " + b"y" * (HEAD_MAX - len(DISPOSITION) - 5)),
    ],
)
def test_the_ways_in_which_clients_write_a_field_are_read(part: bytes) -> None:
    """Content types, encodings that are none, and parameters without quotes change nothing."""
    assert scanned(form(part)).model == "whisper"


@pytest.mark.parametrize(
    "part",
    [
        *(
            named(b"file", more=b"; filename=" + name)
            for name in (
                *(
                    b'"C:\\a\\b.wav"',
                    b'"%22.wav"',
                    b'"\xc3\xa9.wav"',
                    b'"a;b=c.wav"',
                    b"a.wav",
                    b'""',
                ),
                *(b'"12\\" remix.wav"', b'"a\\"', b'"\\\\"', b'"\\"\\""', b'"a name=b.wav"'),
                *(b"\"a\"; filename*=utf-8''%e2%82%ac", b'"=?utf-8?q?a?="', b'"a%0D%0Ab"'),
                *(b'"12" remix.wav"', b'"a', b'"a";b"c'),
            )
        ),
        *(
            named(name)
            for name in (b'a\\"b', b"a%22b", b"a%0D%0Ab", b"\xc3\xb6", b"x" * 200, b"a'b")
        ),
        named(b"image[]"),
        named(b"metadata[model]"),
        coded(b"base64", b"UklGRg==", b"file"),
        coded(b"quoted-printable", b"=3D", b"prompt"),
        field(OTHER + b"\r\nContent-Type: multipart/mixed; boundary=B2", b"--B2--"),
        field(OTHER + b"\r\nContent-Type: application/json; charset=utf-16", b"{}"),
        field(OTHER, b"\r\n\r\n"),
        field(OTHER, b""),
    ],
)
def test_other_fields_are_their_servers_matter(part: bytes) -> None:
    """Names of files, encodings and types of other fields than the model's are read by nobody
    here."""
    for body in (form(part, MODEL), form(MODEL, part)):
        assert scanned(body).model == "whisper"


@pytest.mark.parametrize(
    ("before", "end"),
    [
        (b"", b"--B1--"),
        (b"\r\n", b"--B1--\r\n\r\n"),
        (b"\r\n\r\n", b"--B1--\n"),
        (b"preamble\r\n", b"--B1--\r\nepilogue\r\n--B2\r\n"),
        (b"x" * (PREAMBLE_MAX - 2) + b"\r\n", b"--B1-- \t\r\n" + b"x" * 2 * SLICE),
    ],
)
def test_text_around_a_form_is_passed_on(before: bytes, end: bytes) -> None:
    """RFC 2046 section 5.1.1 lets parsers ignore what stands before and behind the boundaries."""
    body = before + form(FILE, MODEL, end=end)
    begin, behind = scanned(body).place
    assert body[begin:behind] == b"whisper"


def test_a_form_may_have_many_fields() -> None:
    """Sixteen images and their parameters are a usual form; a thousand fields leave turns."""
    parts = [named(b"image[]", b"\x89PNG", b'; filename="%d.png"' % one) for one in range(999)]
    scanning = scan_multipart(form(*parts, MODEL), TYPE)
    assert sum(1 for _ in scanning) > 10
    assert scanned(form(*parts, MODEL)).model == "whisper"


def test_a_scan_takes_no_memory_for_values() -> None:
    """What is kept of 16 MiB in a thousand fields is two spans."""
    parts = [named(b"image[]", b"x" * 16_384, b'; filename="a.png"') for _ in range(999)]
    body = form(*parts, MODEL)
    tracemalloc.start()
    try:
        assert scanned(body).model == "whisper"
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(body) > 15 * SLICE
    assert most < 64 * 1024


def test_a_charset_of_the_whole_form_is_kept() -> None:
    """Apache's client names one; the model is ASCII then, and so is what replaces it."""
    kind = TYPE + b"; charset=ISO-8859-1"
    assert form_type(kind).field() == TYPE + b"; charset=iso-8859-1"
    assert form_type(TYPE + b"; charset=UTF-8").field() == TYPE
    assert "model: expected ASCII" in refusal(form(named(b"model", b"\xc3\xa9")), kind)
    found = scanned(form(MODEL, named(b"prompt", b"\xe9")), kind)
    endpoint = ENDPOINTS[b"/audio/transcriptions"]
    for served in ("é", "a=41", "a "):
        with pytest.raises(BadRequest, match="expected a field in UTF-8 and binary"):
            upstream_body(found, endpoint, ModelApi(served_model=served))
    own = scanned(form(field(DISPOSITION + TYPED + b"UTF-8", b"\xc3\xa9")), kind)
    assert own.model == "é"


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
        begin, end = found.place
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
