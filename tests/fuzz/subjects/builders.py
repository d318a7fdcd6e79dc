"""The builders of SECURITY.md's table that strangers reach, each with valid inputs to damage."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from admin.cli.repository.config import read_config
from admin.cli.repository.fields import Findings
from admin.cli.repository.text_format import MalformedText
from admin.deploy.plan import parse_request, read_request
from admin.documents.requests import (
    AliasRequest,
    HostChanges,
    KeyRequest,
    KubernetesHostRequest,
    PrepareRequest,
    RollbackRequest,
    ScalingRequest,
    SecretRequest,
    SshHostRequest,
    TicketRequest,
)
from gateway.cold_checks.check_process import Question, check
from gateway.data_links import _request_error
from gateway.grpc.request import REQUEST, read
from gateway.hosts.upstream import _key
from gateway.http.decompression import Inflater
from gateway.oip.parameters import requested_scheduling
from gateway.oip.repository import (
    IndexRequest,
    Settings,
    check_load,
    check_unload,
    read_repository_request,
)
from gateway.openapi.descriptions import EXAMPLE_CHARS_MAX, example
from gateway.openapi.function_document import function_document
from gateway.socket_channel import hello_member
from gateway.v1.answer_edits import AnswerEdits
from gateway.v1.endpoints import ENDPOINTS
from gateway.v1.multipart import scan_multipart
from gateway.v1.scanning import scan
from gateway.v1.usage import TOKENS_MAX, Ends, TokenUsage
from gateway.v1.writing import upstream_body
from hosts.tls.peers import parse_enrol, parse_fetch
from registry.bounded_text import read_json
from registry.catalog import Deployed
from registry.errors import FnError
from registry.interface import read_interface
from registry.manifest import parse_manifest
from registry.model.hosts import HostKind
from registry.model.servers import ModelApi
from runtime_image.contract.errors import RequestError
from runtime_image.contract.link import VERSION, Kind
from runtime_image.contract.model import InputRule
from runtime_image.contract.signature import Signature, TensorSpec
from runtime_image.link.frames import Frame, LinkError
from runtime_image.server.golden.answers import read_answer
from runtime_image.server.golden.png import read_png
from tests.fuzz.subject import FNCTL_S, KIB, THREAD_S, Bound, Subject
from tests.support.golden import png
from tests.support.interfaces import PICTURE, description, named, python_deployed
from tests.support.odd_bodies import form_models_of, models_of
from tests.support.scans import run

TENSORS = Signature(
    "tensors", (TensorSpec("x", "FP32", (-1, 4)), TensorSpec("n", "INT64", (-1,))), ()
)
FREE = Signature("tensors", (TensorSpec("x", "FP32", (-1, -1)),), ())
TEXTS = Signature("tensors", (TensorSpec("t", "BYTES", (-1,)),), ())
VALUES = Signature("json", (), ())
SHORT = b'{"inputs": {"x": [[1, 2.5, -3e4, 0]], "n": [7]}}'
OIP = (
    b'{"id":"a","inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]},'
    b'{"name":"n","shape":[1],"datatype":"INT64","parameters":{"binary_data_size":8}}],'
    b'"outputs":[{"name":"y","parameters":{"binary_data":true}}],"parameters":{"priority":1}}'
)
INTERFACE = json.dumps(
    description(
        named(
            "item", item={"$ref": "#/$defs/A"}, image=PICTURE, k={"type": "integer", "default": 3}
        ),
        {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]},
        defs={
            "A": {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"enum": [1]}}}
        },
    )
).encode()
NPY_HEAD = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }"
NPY = b"\x93NUMPY\x01\x00" + len(NPY_HEAD).to_bytes(2, "little") + NPY_HEAD + b"\0" * 8
GOLDEN = (
    b'{"choices":[{"text":"a b c","logprobs":{"tokens":["a"," b"," c"],"token_logprobs":'
    b'[null,-2.5,-0.25],"top_logprobs":[null,{" b":-2.5},{" c":-0.25,"d":-3}]},'
    b'"prompt_logprobs":[null,{"7":{"logprob":-1.5}}]}],"usage":{"prompt_tokens":2}}'
)
PNG = png(4, 5, bytes(60), kind=4)
OCTETS = "application/octet-stream"
TOML = b"""schema = 1
name = "digits"
model = "m.onnx"
labels = { team = "vision", 'a.b' = "c" }
[scaling]
min = 0
idle_s = 12.5
[limits]
wait_s = 5
[input.x]
kind = "image"
size = [8, 8]
mean = [0.5, 0.5, 0.5]
[output]
labels = ["zero", "one", 'two', \"\"\"three\"\"\"]
[sample]
x = [[1, 2.5, 0x10], [3, 4, 1_000]]
"""
SERVER = b"""schema = 1
[server]
command = ["serve", "--port", "${PORT}"]
env = {A = "1"}
[openai]
[[sample]]
path = "/v1"
headers = {a = "b"}
"""
PBTXT = b"""name: "m"  # a model
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4, -1 ] } ]
output { name: "y" data_type: TYPE_INT64 dims: 10 label_filename: 'l.txt' }
instance_group < count: 2 kind: KIND_CPU >
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }
parameters { key: "a" value: { string_value: "\\u00e9\\n" "b" } }
"""
FILE = {"path": "m.onnx", "size": 2, "sha256": "0" * 64}
DEPLOYS = tuple(
    json.dumps({"files": [FILE], "manifest": text.decode(), "overrides": changes}).encode()
    for text, changes in (
        (TOML, {"min": 1, "host_labels": {"a": "b"}}),
        (SERVER, {"command": ["serve", "${PORT}"], "env": {"B": "2"}, "port": 80}),
    )
)
CHAT = (
    b'{"model":"m","stream":true,"stream_options":{"x":1},'
    b'"messages":[{"role":"user","content":"hi"}]}'
)
LENIENT_CHAT = b'\xef\xbb\xbf{"x":[NaN,-Infinity,{"\\ud83d":"\\\\\\ude00"}],"model":"m"}'
FORM = (
    b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    b"\x00\x01\r\n--b--\r\n"
)
INFERENCES = tuple(
    REQUEST(
        model_name="m",
        id="a",
        inputs=[{"name": "x", "datatype": "FP32", "shape": [1, 2], "contents": contents}],
        raw_input_contents=raw,
        parameters={"priority": {"int64_param": 1}},
    ).SerializeToString()
    for contents, raw in (({}, [bytes(8)]), ({"fp32_contents": [1.5, 2.5]}, []))
)
EVENT = b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}'
KINDS: dict[type, bytes] = {
    AliasRequest: b'{"alias":"a/b","function":"f"}',
    HostKind: b'{"kind":"ssh"}',
    SshHostRequest: b'{"address":"ssh://a","labels":{"a":"b"}}',
    KubernetesHostRequest: b'{"kind":"kubernetes","name":"k","image":"i","pull_secrets":["s"]}',
    HostChanges: b'{"labels":{"a":null},"draining":true}',
    KeyRequest: b'{"scopes":["invoke"],"note":"n"}',
    PrepareRequest: b'{"now":true}',
    ScalingRequest: b'{"min":1,"idle_s":2.5}',
    TicketRequest: b'{"path":"/"}',
    SecretRequest: b'{"name":"n","value":"v"}',
    RollbackRequest: b'{"to":3,"breaking":true}',
}
"""Small bodies of the admin API: the type and a valid text."""


def _manifest(data: bytes) -> None:
    parse_manifest(data.decode("utf-8", "replace"), ("m.onnx", "a.json"))


def _deploy(data: bytes) -> None:
    read_request("digits", parse_request(data))


def _small(kind: type) -> Callable[[bytes], object]:
    return lambda data: read_json(data, kind, "the body")


def _any_of(*readers: Callable[[bytes], object]) -> Callable[[bytes], None]:
    """Return a reader that tries each, and refuses what all of them refuse."""

    def read(data: bytes) -> None:
        refusals = []
        for reader in readers:
            try:
                reader(data)
            except (FnError, LinkError) as error:
                refusals.append(error)
        if len(refusals) == len(readers):
            raise refusals[0]

    return read


def _cold(signature: Signature, content_type: str = "application/json") -> Callable[[bytes], None]:
    """Return the check of bodies of one form against one signature."""
    rules = {"x": InputRule(finite=True)}

    def checked(data: bytes) -> None:
        length = len(data) - 8 if content_type == OCTETS else None
        check(Question(content_type, "", length, signature, rules), data)

    return checked


def _inflate(data: bytes) -> tuple[bytes, bool]:
    """Return what four steps inflate, and whether that is all."""
    inflater = Inflater(data, "gzip")
    pieces = [inflater.step() for _ in range(4) if not inflater.is_done]
    return b"".join(pieces), inflater.is_done


def _check_inflated(data: bytes, found: Any) -> None:
    """zlib inflates the same."""
    if isinstance(found, Exception):
        return
    content, is_done = found
    expected, rest = bytearray(), data
    while rest and len(expected) < len(content):
        stream = zlib.decompressobj(16 + zlib.MAX_WBITS)
        expected += stream.decompress(rest, len(content) - len(expected))
        rest = stream.unused_data if stream.eof else b""
    assert content == expected, "other content"
    assert not is_done or not rest, "there is more"


API: Final = ModelApi(served_model='a "served" model')


def _model_call(data: bytes) -> tuple[str, bytes]:
    """Return the model that a body names, and what its server gets."""
    scanned = run(scan(data))
    sent = upstream_body(scanned, ENDPOINTS[b"/chat/completions"], API)
    return scanned.model, b"".join(sent.pieces)


def _check_model_call(data: bytes, found: Any) -> None:
    """No parser finds another model in the body; the server gets its own name of it, and all the
    rest as it is."""
    if isinstance(found, Exception):
        return
    model, sent = found
    try:
        assert json.loads(data)["model"] == model, "another model"
    except ValueError:
        return
    assert models_of(sent) == {API.served_model}, "the server reads another model"
    before, after = (json.loads(one, parse_int=str, parse_constant=str) for one in (data, sent))
    for name in (before.keys() | after.keys()) - {"model", "stream_options"}:
        assert before[name] == after[name], f"{name} is another"


CLIENTS_FORM = (
    b'text\r\n--b\r\nContent-Disposition: form-data; name="file"; filename="12\\" a"b.wav"\r\n'
    b"Content-Transfer-Encoding: base64\r\n\r\nUklGRg==\r\n--b\r\n"
    b'Content-Disposition: form-data; name="a\\"b%22"\r\n\r\n\r\n--b\r\n'
    b"Content-Type: text/plain; charset=ISO-8859-1\r\nContent-Transfer-Encoding: quoted-printable"
    b"\r\nContent-Disposition: form-data; name=model\r\n\r\nm\r\n--b-- \r\ntext"
)
FORM_TYPE: Final = b"multipart/form-data; boundary=b"


def _model_form(data: bytes) -> tuple[str, bytes]:
    """Return the model that a form names, and what its server gets."""
    scanned = run(scan_multipart(data, FORM_TYPE))
    sent = upstream_body(scanned, ENDPOINTS[b"/audio/transcriptions"], API)
    return scanned.model, b"".join(sent.pieces)


def _check_model_form(data: bytes, found: Any) -> None:
    """A parser of mail, which is lenient, finds the same model and no other."""
    if isinstance(found, Exception):
        return
    model, sent = found
    for body, expected in ((data, model), (sent, API.served_model)):
        assert form_models_of(body, FORM_TYPE) == [expected], "another model"


def _model_answer(data: bytes) -> TokenUsage | None:
    AnswerEdits("", asks_usage=True, is_nested=False).edit(data, 0)
    ends = Ends()
    ends.add(data)
    return ends.usage()


def _check_usage(_data: bytes, found: Any) -> None:
    """Tokens are counts that can be."""
    for count in found or ():
        assert 0 <= count <= TOKENS_MAX


def _interface(data: bytes) -> Deployed:
    """Return a Python function with what a server said of its calls."""
    return python_deployed(read_interface(data.decode("utf-8", "replace")))


def _check_interface(_data: bytes, found: Any) -> None:
    """Everything that is made of it has an end, and refers to what is there."""
    document = json.dumps(function_document(found))
    assert len(example(found, "http://a")) <= EXAMPLE_CHARS_MAX, "a long example"
    components = json.loads(document)["components"]["schemas"]
    for name in re.findall(r'"\$ref": "#/components/schemas/([^"]*)"', document):
        assert name in components, "a reference leads nowhere"


def _config(data: bytes) -> None:
    read_config(data.decode("utf-8", "replace"), "m", Findings())


DOOR: Final = (
    json.dumps({"version": VERSION, "token": "a" * 64, "port": 7443}).encode(),
    json.dumps({"sha256": "0" * 64, "offset": 2**40, "length": 8 * 1024 * KIB}).encode(),
)
"""Bodies of ENROL and FETCH."""
MANIFEST: Final = (None, Bound(12_000, 20), Bound(192 * KIB, 160))
"""A manifest is read by code in Python, with some thousand lines for its fields."""
REFUSALS: Final = (FnError, RequestError)

BUILDERS = (
    Subject("toml", _manifest, (TOML, SERVER), 64 * KIB, REFUSALS, THREAD_S, *MANIFEST),
    Subject("deploy", _deploy, DEPLOYS, 512 * KIB, REFUSALS, THREAD_S, *MANIFEST),
    Subject("interface", _interface, (INTERFACE,), 64 * KIB, REFUSALS, check=_check_interface),
    Subject("admin", _any_of(*map(_small, KINDS)), tuple(KINDS.values()), 64 * KIB),
    Subject(
        "repository",
        _any_of(
            partial(read_repository_request, kind=IndexRequest),
            check_unload,
            check_load,
            partial(read_repository_request, kind=Settings),
        ),
        (b'{"ready":true}', b'{"parameters":{"unload_dependents":true}}'),
        64 * KIB,
    ),
    Subject(
        "slabs",
        lambda data: hello_member(data, "slabs"),
        (b'{"slabs":true}',),
        256 * KIB,
        (LinkError,),
    ),
    Subject("cold-short", _cold(TENSORS), (SHORT,), 64 * KIB),
    Subject("cold-free", _cold(FREE), (b'{"inputs":{"x":[[1,2],[3.5,-4e1]]}}',), 64 * KIB),
    Subject("cold-texts", _cold(TEXTS), (b'{"inputs":{"t":["a","\\u00e9"]}}',), 64 * KIB),
    Subject("cold-values", _cold(VALUES), (b'{"inputs":{"a":{"b":[1,null,"c"]}}}',), 64 * KIB),
    Subject("cold-oip", _cold(TENSORS, OCTETS), (OIP + b"\0" * 8,), 64 * KIB),
    Subject("cold-npy", _cold(FREE, "application/x-npy"), (NPY,), 64 * KIB),
    Subject(
        "gzip",
        _inflate,
        (gzip.compress(SHORT * 50), gzip.compress(bytes(10**6))),
        64 * KIB,
        check=_check_inflated,
        memory=Bound(3 * 1024 * KIB, 24),
    ),
    Subject("parameters", lambda data: requested_scheduling(data, -1), (OIP,), 64 * KIB),
    Subject("v1", _model_call, (CHAT, LENIENT_CHAT), 1024 * KIB, check=_check_model_call),
    Subject("form", _model_form, (FORM, CLIENTS_FORM), 1024 * KIB, check=_check_model_form),
    Subject(
        "answer",
        _model_answer,
        (EVENT, b"data: " + EVENT + b"\n\n"),
        64 * KIB,
        check=_check_usage,
        lines=Bound(20_000, 2),
    ),
    Subject(
        "golden",
        lambda data: read_answer(200, "application/json", data),
        (GOLDEN, b'{"data":[{"embedding":[0.25,-1e-3,7]}]}'),
        64 * KIB,
        steps_s=THREAD_S,
        lines=Bound(4_000, 12),
    ),
    Subject("png", read_png, (PNG,), 64 * KIB, (ValueError,), THREAD_S, lines=Bound(2_000, 900)),
    Subject(
        "greeting",
        _any_of(_key, lambda data: _request_error(Frame(Kind.FAILED, 0, 0, 0, b"", data))),
        (b'{"key":"' + b"a" * 32 + b'"}', b'{"code":"bad_input","message":"m"}'),
        256 * KIB,
        (LinkError,),
    ),
    Subject("door", _any_of(parse_enrol, parse_fetch), DOOR, 32 * KIB, (LinkError,)),
    Subject("grpc", lambda data: read(data).model, INFERENCES, 64 * KIB),
    Subject(
        "config",
        _config,
        (PBTXT,),
        64 * KIB,
        (MalformedText, FnError),
        FNCTL_S,
        lines=Bound(8_000, 120),
        memory=Bound(512 * KIB, 24),
    ),
)
