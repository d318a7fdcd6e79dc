"""Bodies that are a single input: raw bytes, a picture, a sound."""

from __future__ import annotations

from typing import Final

from runtime_image.codecs.tensors import RawInput, bad_body, check_names, check_shape, describe
from runtime_image.contract import dtypes
from runtime_image.contract.errors import bad_input
from runtime_image.contract.model import BytesForm, InputKind, InputRule
from runtime_image.contract.signature import Signature, TensorSpec

AUDIO_TYPES: Final = (
    "audio/wav",
    "audio/x-wav",
    "audio/wave",
    "audio/vnd.wave",
    "audio/flac",
    "audio/x-flac",
    "audio/ogg",
)
"""Content types of sounds. The first bytes say which format it is."""
AUDIO_MAGIC: Final = {
    b"RIFF": "WAV",
    b"RF64": "WAV",
    b"BW64": "WAV",
    b"fLaC": "FLAC",
    b"OggS": "Ogg",
}
BODY: Final = "body"
"""Name of the only input of a function whose signature is one raw body."""
_WAV_MIN: Final = 44
"""Bytes of the smallest WAV header: RIFF, format and data chunk heads."""
_MAGIC: Final = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"BM")
_MEDIA: Final = (
    (b"\x89PNG", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
)
_RIFF: Final = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
"""Content types by the form of a RIFF file, which follows its size."""
_WITHOUT_LINE_ENDS: Final = b"\x89PNG\x1a"
"""First bytes of a PNG file that `curl -d @FILE` has sent."""
PICTURES: Final = ("PNG", "JPEG", "GIF", "BMP", "WEBP")
"""Supported picture formats, by Pillow's names."""


def declared(signature: Signature, rules: dict[str, InputRule], kind: InputKind) -> str:
    """Return the one input that rules declare as `kind`, with its form; "" for none or several."""
    names = [
        spec.name
        for spec in signature.inputs
        if (rule := rules.get(spec.name)) is not None
        and rule.kind == kind
        and (kind == "bytes" or (rule.image if kind == "image" else rule.audio) is not None)
    ]
    return names[0] if len(names) == 1 else ""


def media_of(body: memoryview) -> str:
    """Return the content type of a picture or sound by its first bytes, "" for anything else.

    `curl -d @FILE` has removed line ends and zero bytes, so a RIFF file's size may be shorter.
    """
    head = bytes(body[:12])
    if head[:4] == b"RIFF":
        forms = (_RIFF.get(head[at : at + 4]) for at in range(8, 3, -1))
        return next(filter(None, forms), "")
    return next((kind for magic, kind in _MEDIA if head.startswith(magic)), "")


def read_body(body: memoryview, signature: Signature) -> dict[str, RawInput]:
    """Return the only input of a function that accepts one raw body, which may be empty."""
    name = signature.inputs[0].name if signature.inputs else BODY
    return {name: RawInput("object", "", (), bytes(body))}


def read_image(body: memoryview, signature: Signature, name: str) -> dict[str, RawInput]:
    """Return a picture, recognised by its first bytes, as input `name`; raises BAD_INPUT."""
    spec = _only(signature, name)
    head = bytes(body[:12])
    is_webp = head[:4] == b"RIFF" and head[8:] == b"WEBP"
    if not is_webp and not head.startswith(_MAGIC):
        got = f"bytes {head.hex() or 'none'}"
        if head.startswith(_WITHOUT_LINE_ENDS):
            got = "a PNG file without its line ends: curl needs --data-binary @FILE, not -d"
        raise bad_input(name, f"a picture: {', '.join(PICTURES)}", got)
    return {name: RawInput("image", spec.dtype, (), body)}


def read_audio(body: memoryview, signature: Signature, name: str) -> dict[str, RawInput]:
    """Return a sound, recognised by its first bytes, as input `name`; raises BAD_INPUT."""
    spec = _only(signature, name)
    head = bytes(body[:12])
    kind = AUDIO_MAGIC.get(head[:4])
    if head[:4] == b"RIFX":
        got = "RIFX, which is big-endian: convert it with ffmpeg -i FILE out.wav"
        raise bad_input(name, "a WAV file (RIFF, WAVE)", got)
    if kind is None or (kind == "WAV" and head[8:] != b"WAVE"):
        expected = "a sound: WAV (RIFF, WAVE), FLAC or Ogg"
        raise bad_input(name, expected, f"bytes {head.hex() or 'none'}")
    if kind == "WAV" and len(body) <= _WAV_MIN:
        raise bad_input(name, "a WAV file with samples", f"{len(body)} bytes")
    return {name: RawInput("audio", spec.dtype, (), body)}


def read_bytes(
    body: memoryview, signature: Signature, rule: InputRule, name: str
) -> dict[str, RawInput]:
    """Return raw bytes as input `name`; raises BAD_INPUT.

    A numeric input gets one uint8 row by `BytesForm`. An input of dtype BYTES gets the whole body
    as its one element, which must be UTF-8 text.
    """
    spec = _only(signature, name)
    if not body:
        raise bad_input(name, "at least one byte", "an empty body")
    if spec.dtype == dtypes.BYTES:
        return {name: _text(spec, body)}
    length = (rule.bytes or BytesForm()).length
    shape = (1, len(body) if length is None else length)
    check_shape(spec, shape)
    return {name: RawInput("bytes", spec.dtype, shape, body)}


def _only(signature: Signature, name: str) -> TensorSpec:
    check_names([name], signature)
    return signature.inputs[0]


def _text(spec: TensorSpec, body: memoryview) -> RawInput:
    if spec.smallest_shape.count(1) < len(spec.smallest_shape):
        raise bad_body(f"{describe(spec)} for input {spec.name!r}", "one element, the body")
    try:
        text = str(body, "utf-8")
    except UnicodeDecodeError as error:
        raise bad_input(spec.name, "UTF-8 text", f"other bytes at {error.start}") from None
    return RawInput("json", spec.dtype, spec.smallest_shape, [text])
