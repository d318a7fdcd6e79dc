"""Whole bodies as one input: bytes, images and sounds, recognised by their first bytes."""

import pytest

from runtime_image.codecs import raw
from runtime_image.contract.errors import RequestError
from runtime_image.contract.model import AudioForm, BytesForm, ImageForm, InputRule
from runtime_image.contract.signature import Signature, TensorSpec


def one(dtype: str = "UINT8", shape: tuple[int, ...] = (-1, -1)) -> Signature:
    return Signature("tensors", (TensorSpec("x", dtype, shape),), ())


def test_exactly_one_input_may_be_declared() -> None:
    """Raw bodies require exactly one input with a kind, and its rule."""
    image = InputRule("image", image=ImageForm((1, 1)))
    two = Signature("tensors", (*one().inputs, TensorSpec("y", "UINT8", (1,))), ())
    assert raw.declared(two, {"x": image}, "image") == "x"
    assert raw.declared(two, {"x": image, "y": image}, "image") == ""
    assert raw.declared(one(), {"x": InputRule("image")}, "image") == ""
    assert raw.declared(one(), {"x": InputRule("audio", audio=AudioForm())}, "audio") == "x"
    assert raw.declared(one(), {"x": InputRule("bytes")}, "bytes") == "x"
    assert raw.declared(one(), {}, "bytes") == ""


def test_a_body_keeps_its_declared_name() -> None:
    """The only input of a bytes signature has its declared name, "body" by default."""
    assert raw.read_body(memoryview(b"a"), one())["x"].payload == b"a"
    assert raw.read_body(memoryview(b""), Signature("bytes", (), ()))["body"].payload == b""


@pytest.mark.parametrize(
    "head",
    [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"GIF89a", b"BM", b"RIFF\0\0\0\0WEBP"],
)
def test_pictures_are_known_by_their_magic(head: bytes) -> None:
    """Each supported image format passes the magic-number check."""
    assert raw.read_image(memoryview(head), one(), "x")["x"].encoding == "image"


@pytest.mark.parametrize("head", [b"", b"%PDF-1.7", b"RIFF\0\0\0\0WAVE"])
def test_other_files_are_no_pictures(head: bytes) -> None:
    """Any other file is refused with the list of accepted formats."""
    with pytest.raises(RequestError, match="expected a picture: PNG, JPEG"):
        raw.read_image(memoryview(head), one(), "x")


def test_sound_is_known_by_its_header() -> None:
    """A RIFF file of type WAVE with data after its header passes, others do not."""
    head = b"RIFF\0\0\0\0WAVE"
    assert raw.read_audio(memoryview(head + bytes(40)), one(), "x")["x"].encoding == "audio"
    with pytest.raises(RequestError, match="with samples"):
        raw.read_audio(memoryview(head), one(), "x")
    with pytest.raises(RequestError, match="bytes none"):
        raw.read_audio(memoryview(b""), one(), "x")
    with pytest.raises(RequestError, match=r"RIFX, which is big-endian: convert"):
        raw.read_audio(memoryview(b"RIFX\0\0\0\0WAVE" + bytes(40)), one(), "x")
    with pytest.raises(RequestError, match=r"WAV .RIFF, WAVE., FLAC or Ogg, got bytes 494433"):
        raw.read_audio(memoryview(b"ID3" + bytes(60)), one(), "x")


@pytest.mark.parametrize("head", [b"RF64\0\0\0\0WAVE", b"BW64\0\0\0\0WAVE", b"fLaC", b"OggS"])
def test_other_sounds_are_known_by_their_magic(head: bytes) -> None:
    """WAV with sizes of 64 bits, FLAC and Ogg pass, whatever their content type says."""
    assert raw.read_audio(memoryview(head + bytes(40)), one(), "x")["x"].encoding == "audio"


def test_bytes_have_the_forms_length() -> None:
    """The tensor's length is the rule's, else the body's, and must fit the signature."""
    rule = InputRule("bytes", bytes=BytesForm(length=4))
    assert raw.read_bytes(memoryview(b"ab"), one(), rule, "x")["x"].shape == (1, 4)
    assert raw.read_bytes(memoryview(b"ab"), one(), InputRule("bytes"), "x")["x"].shape == (1, 2)
    with pytest.raises(RequestError, match="shape"):
        raw.read_bytes(memoryview(b"ab"), one(shape=(-1, 3)), InputRule("bytes"), "x")
    with pytest.raises(RequestError, match="empty body"):
        raw.read_bytes(memoryview(b""), one(), rule, "x")


def test_text_is_one_element() -> None:
    """A BYTES input gets the UTF-8 body as its only element, which must fit its shape."""
    rule = InputRule("bytes")
    found = raw.read_bytes(memoryview("né".encode()), one("BYTES", (-1, 1)), rule, "x")["x"]
    assert (found.payload, found.shape) == (["né"], (1, 1))
    with pytest.raises(RequestError, match="UTF-8 text, got other bytes at 1"):
        raw.read_bytes(memoryview(b"a\xff"), one("BYTES", (-1,)), rule, "x")
    with pytest.raises(RequestError, match="one element"):
        raw.read_bytes(memoryview(b"a"), one("BYTES", (2,)), rule, "x")


def test_other_inputs_would_be_missing() -> None:
    """A raw body fills one input, so it is refused for a function with two."""
    two = Signature("tensors", (*one().inputs, TensorSpec("y", "UINT8", (1,))), ())
    with pytest.raises(RequestError, match=r"'y'.*missing"):
        raw.read_image(memoryview(b"BM"), two, "x")
