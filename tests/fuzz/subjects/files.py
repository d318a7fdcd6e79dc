"""Readers of files and messages in binary form: models, pictures, sound, messages over gRPC."""

from __future__ import annotations

import io
import mmap
import wave
from typing import Any, Final

from onnx import TensorProto, helper

from gateway.grpc.answer import Answers
from gateway.grpc.fields import PARSED_MAX, check_fields
from gateway.grpc.messages import METHODS, message, parse
from gateway.grpc.request import NESTED, REQUEST
from gateway.grpc.wire import NotPlain, split
from registry.bundles import onnx_files
from registry.errors import BadRequest, FnError
from runtime_image.codecs import sounds
from runtime_image.codecs.media import decode_image
from runtime_image.codecs.raw import AUDIO_MAGIC
from runtime_image.contract import onnx_signature
from runtime_image.contract.errors import RequestError, bad_input
from runtime_image.contract.model import AudioForm, ImageForm
from runtime_image.contract.wire_format import WireReader
from tests.fuzz.subject import FNCTL_S, KIB, Bound, Subject
from tests.fuzz.subjects.builders import INFERENCES

FIELDS_MAX: Final = 100_000
"""Max fields of a model here: in use it is 200 times as many."""
CONTROL: Final = {
    name: message(method.input_type.name)
    for name, method in METHODS.items()
    if name not in ("ModelInfer", "ModelStreamInfer")
}
LOADS: Final = (
    message("RepositoryModelLoadRequest")(
        model_name="m", parameters={"config": {"string_param": "{}"}}
    ).SerializeToString(),
    message("ModelMetadataRequest")(name="m", version="1").SerializeToString(),
)
ANSWER: Final = (
    b'{"model_name":"m","model_version":"1","outputs":[{"name":"y","shape":[2],"datatype":"FP32",'
    b'"parameters":{"binary_data_size":8}}]}'
)


def _model() -> bytes:
    weights = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
    outside = TensorProto(name="v", data_type=TensorProto.FLOAT, dims=[2])
    outside.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", "8")):
        outside.external_data.add(key=key, value=value)
    node = helper.make_node("Add", ["x", "w"], ["y"])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 2])
    graph = helper.make_graph([node], "g", [x], [y], [weights, outside])
    return bytes(helper.make_model(graph).SerializeToString())


def _picture(form: str) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.new("L" if form == "GIF" else "RGB", (5, 3), 7).save(out, form)
    return out.getvalue()


def _clip(width: int) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as clip:
        clip.setnchannels(2)
        clip.setsampwidth(width)
        clip.setframerate(8000)
        clip.writeframes(bytes(range(12)) * 2)
    return out.getvalue()


def _split(data: bytes) -> Any:
    try:
        return split(data)
    except NotPlain:
        return None


def _check_split(data: bytes, found: Any) -> None:
    """protobuf reads in a message what it reads in its parts."""
    if found is None or isinstance(found, Exception):
        return
    try:
        whole = parse(REQUEST, data)
        head = parse(REQUEST, found.head)
    except BadRequest:
        return
    assert head.id == ""
    assert not head.raw_input_contents
    assert whole.id.encode() == found.id, "another id"
    assert [bytes(one) for one in found.raw] == list(whole.raw_input_contents), "other tensors"
    whole.ClearField("id")
    whole.ClearField("raw_input_contents")
    assert whole == head, "another head"


def _counted(data: bytes) -> None:
    check_fields(data, NESTED)


def _check_counted(data: bytes, found: Any) -> None:
    """No message that passes has more fields than were counted."""
    if found is not None:
        return
    try:
        count = _messages(parse(REQUEST, data))
    except BadRequest:
        return
    assert count <= PARSED_MAX, "fields are not counted"


def _messages(given: Any) -> int:
    """Return how many messages there are in a message, itself included."""
    found = 1
    for descriptor, value in given.ListFields():
        if descriptor.message_type is None:
            continue
        inner = [value]
        if descriptor.is_repeated:
            values = value.values() if descriptor.message_type.GetOptions().map_entry else value
            inner = [one for one in values if hasattr(one, "ListFields")]
        found += sum(map(_messages, inner))
    return found


def _control(data: bytes) -> int:
    """Return how many of the control messages these bytes may be."""
    found, refused = 0, BadRequest("none")
    for cls in CONTROL.values():
        try:
            parse(cls, data)
            found += 1
        except BadRequest as error:
            refused = error
    if not found:
        raise refused
    return found


def _onnx(data: bytes) -> Any:
    """Return the signature and the external files of a model."""
    if not data:
        raise ValueError("empty")
    with mmap.mmap(-1, len(data)) as mapped:
        mapped[:] = data
        signature = onnx_signature.GraphReader(mapped, FIELDS_MAX).signature()
        locations = onnx_files._Walk(mapped, WireReader(mapped, FIELDS_MAX)).contents().locations
    return signature, onnx_files.external_paths("a/m.onnx", locations)


def _check_onnx(_data: bytes, found: Any) -> None:
    """No external file of a model that is read lies outside its folder."""
    if isinstance(found, Exception):
        return
    signature, paths = found
    for path in paths:
        assert path.startswith("a/"), path
        assert not {"..", ".", ""} & set(path.split("/")), path
        assert "\0" not in path
    for one in (*signature.inputs, *signature.outputs):
        assert all(size == -1 or 0 < size < 2**63 for size in one.shape or ())


def _image(data: bytes) -> Any:
    return decode_image("x", memoryview(data), ImageForm((4, 4)))


def _audio(data: bytes) -> Any:
    if data[:4] not in AUDIO_MAGIC:
        raise bad_input("x", "a sound", "another file")
    return sounds.decode("x", memoryview(data), AudioForm(16000, 100))


def _check_shape(shape: tuple[int, ...], most: float) -> Any:
    def checked(_data: bytes, found: Any) -> None:
        """A picture or clip that is read has the declared shape, and values up to `most`."""
        if not isinstance(found, Exception):
            assert found.shape == shape
            assert found.dtype == "float32"
            assert float(abs(found).max()) <= most

    return checked


def _grpc_answer(data: bytes) -> Any:
    length = data[0] if data else 0
    return Answers().make(data[1:], length and len(data) - length, b"id")


FILES = (
    Subject("grpc-wire", _split, INFERENCES, 64 * KIB, (FnError,), check=_check_split),
    Subject(
        "grpc-fields",
        _counted,
        INFERENCES,
        64 * KIB,
        (FnError,),
        check=_check_counted,
        lines=Bound(2000, 16),
    ),
    Subject("grpc-control", _control, LOADS, 64 * KIB, (FnError,)),
    Subject("grpc-answer", _grpc_answer, (b"\x09" + ANSWER + bytes(8),), 64 * KIB, (FnError,)),
    Subject(
        "onnx",
        _onnx,
        (_model(),),
        64 * KIB,
        (ValueError, FnError),
        check=_check_onnx,
        lines=Bound(8000, 60),
    ),
    Subject(
        "image",
        _image,
        (*map(_picture, ("PNG", "JPEG", "GIF", "WEBP", "BMP")),),
        64 * KIB,
        (RequestError,),
        steps_s=FNCTL_S,
        check=_check_shape((1, 3, 4, 4), 1e6),
        memory=Bound(1024 * KIB, 24),
    ),
    Subject(
        "audio",
        _audio,
        (*map(_clip, (1, 2, 3, 4)),),
        64 * KIB,
        (RequestError,),
        # Samples of float files may exceed their range.
        check=_check_shape((1, 100), 3.5e38),
        memory=Bound(2048 * KIB, 24),  # two frames at 1 Hz are 32,000 samples
    ),
)
