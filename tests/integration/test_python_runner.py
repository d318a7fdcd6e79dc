"""The server of Python functions answers calls, as a real process."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import wave
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.function_runner import (
    DESCRIPTION,
    JSON,
    READY,
    FunctionRunner,
    Reply,
    form,
    rest_of,
    until,
)

HANDLERS = {
    "plain": """
import sys
def load(ctx):
    return "state"
def predict(inputs, ctx):
    if inputs.get("fail"):
        deeper(inputs)
    if "give" in inputs:
        return GIVEN[inputs["give"]]
    return {"got": inputs, "state": ctx.state, "trace": ctx.traceparent,
            "numpy": "numpy" in sys.modules, "ours": "registry" in sys.modules}
def deeper(inputs):
    raise KeyError(inputs["fail"])
class Odd: pass
GIVEN = {"text": "hé", "bytes": b"ab", "list": [1], "none": None, "nan": {"a": float("nan")},
         "odd": {"a": Odd()}, "set": {"a": {1}}}
""",
    "picture": """
from PIL import Image
def predict(image: Image, top_k: int = 3, tags: list[str] = (), raw: bytes = b"", *, ctx):
    if top_k == 0:
        return image.rotate(90, expand=True)
    return {"size": image.size, "top_k": top_k, "tags": tags, "raw": raw}
""",
    "arrays": """
import numpy as np
from numpy.typing import NDArray
def predict(a: NDArray[np.float32], b: NDArray[np.int64]):
    return {"sum": a + b, "dtype": str(a.dtype)} if b.size == 1 else {"sum": a + b}
""",
    "sound": "def predict(sound, gain: float = 1.0): return {'shape': sound.shape, 'gain': gain}",
    "pixels": "def predict(inputs, ctx): return (inputs['picture'][0] * 255).astype('u1')",
    "model": """
from dataclasses import dataclass
from pydantic import BaseModel
class Item(BaseModel):
    name: str
    prices: list[float]
class Total(BaseModel):
    sum: float
@dataclass
class Count:
    count: int
async def predict(inputs: Item) -> Total:
    return Total(sum=sum(inputs.prices)) if inputs.prices else Count(0)
""",
}


SETTINGS: dict[str, dict[str, Any]] = {
    "sound": {"inputs": {"sound": {"kind": "audio", "audio": {"rate_hz": 16000}}}},
    "pixels": {
        "output": {"kind": "image"},
        "inputs": {
            "picture": {
                "kind": "image",
                "dtype": "FP32",
                "shape": [-1, 8, 8, 3],
                "image": {"size": [8, 8], "layout": "HWC"},
            }
        },
    },
}
Runners = Callable[[str], FunctionRunner]


@pytest.fixture(scope="module")
def runners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runners]:
    """Servers by handler."""
    folder = tmp_path_factory.mktemp("runners")
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                FunctionRunner(
                    folder / name,
                    text,
                    settings={"revision": f"{name}@2", **SETTINGS.get(name, {})},
                )
            )
            for name, text in HANDLERS.items()
        }.__getitem__


def png(size: tuple[int, int] = (3, 2)) -> bytes:
    """Return a picture."""
    buffer = BytesIO()
    Image.new("RGB", size).save(buffer, "PNG")
    return buffer.getvalue()


def npy(*values: float, dtype: str = "f4") -> bytes:
    """Return an array as a file."""
    buffer = BytesIO()
    np.save(buffer, np.array(values, dtype))
    return buffer.getvalue()


def test_a_handler_of_today_is_served(runners: Runners) -> None:
    """`predict(inputs, ctx)` with its state and trace, without NumPy or any package of ours."""
    fields = {"traceparent": "00-ab"}
    reply = runners("plain").call('{"inputs":{"a":[1]}}', JSON, fields=fields)

    assert reply.json() == {
        "outputs": {
            "got": {"a": [1]},
            "state": "state",
            "trace": "00-ab",
            "numpy": False,
            "ours": False,
        },
        "revision": "plain@2",
    }
    assert reply.fields["content-type"] == JSON


@pytest.mark.parametrize(
    ("give", "accept", "content_type", "body"),
    [
        ("text", "", "text/plain; charset=utf-8", "hé".encode()),
        ("text", JSON, JSON, b'{"outputs":{"output":"h\xc3\xa9"}}'),
        ("bytes", "", "application/octet-stream", b"ab"),
        ("list", "", JSON, b'{"outputs":{"output":[1]},"revision":"plain@2"}'),
        ("none", "*/*", JSON, b'{"outputs":{"output":null},"revision":"plain@2"}'),
        ("set", JSON, JSON, b'{"outputs":{"a":[1]},"revision":"plain@2"}'),
    ],
)
def test_results_have_their_forms(
    runners: Runners, give: str, accept: str, content_type: str, body: bytes
) -> None:
    """Texts and bytes are themselves; everything else is JSON."""
    reply = runners("plain").infer(accept, give=give)

    assert (reply.status, reply.fields["content-type"], reply.body) == (200, content_type, body)


@pytest.mark.parametrize(
    ("give", "accept", "status", "detail"),
    [
        ("nan", "", 500, "expected a finite number at $.a, got nan"),
        ("odd", "", 500, "the outputs cannot be written"),
        ("bytes", "image/png", 406, "Accept: expected application/octet-stream"),
        ("list", "text/html", 406, "Accept: expected application/json"),
    ],
)
def test_a_result_without_form_is_an_error(
    runners: Runners, give: str, accept: str, status: int, detail: str
) -> None:
    """As for models."""
    reply = runners("plain").infer(accept, give=give)

    assert reply.status == status
    assert detail in reply.detail


def test_an_exception_is_told_and_its_traceback_has_no_line_of_ours(runners: Runners) -> None:
    """The caller gets type, words and the handler's line; field and log the traceback."""
    runner = runners("plain")
    reply = runner.infer(fail="c")

    assert reply.status == 500
    assert reply.json()["code"] == "function_failed"
    assert reply.json()["type"] == "urn:fngate:problem:function_failed"
    assert reply.detail == "KeyError: 'c' (handler.py:13 in deeper)"
    lines = reply.traceback.splitlines()
    assert lines[1] == '  File "handler.py", line 7, in predict'
    assert lines[-1] == "KeyError: 'c'"
    assert reply.traceback in runner.log
    assert "python_runner" not in reply.traceback


@pytest.mark.parametrize(
    ("path", "method", "status", "detail"),
    [
        ("/other", "POST", 404, "expected the path /, got /other"),
        ("/", "GET", 405, "expected POST, got GET"),
        ("/", "DELETE", 405, "expected POST, got DELETE"),
    ],
)
def test_only_calls_are_answered(
    runners: Runners, path: str, method: str, status: int, detail: str
) -> None:
    """Other paths and methods are problems."""
    reply = runners("plain").call(path=path, method=method)

    assert (reply.status, reply.detail) == (status, detail)


@pytest.mark.parametrize(
    ("name", "body", "content_type", "outputs"),
    [
        ("plain", b"a=1&a=2&b=%C3%A9", "application/x-www-form-urlencoded", None),
        ("plain", b"\x00\xff", "application/x-strange", {"body": "AP8="}),
        ("plain", b'{"inputs":{"a":1}}', "", {"a": 1}),
        ("plain", b"", "", {}),
        ("plain", *form(("a", "1", None), ("b", b"\xff", "b.bin")), {"a": "1", "b": "/w=="}),
    ],
)
def test_all_inputs_at_once_come_in_any_form(
    runners: Runners, name: str, body: bytes, content_type: str, outputs: Any
) -> None:
    """JSON, forms, and what is no known form as one value."""
    reply = runners(name).call(body, content_type)

    if outputs is None:
        assert (reply.status, reply.detail) == (400, "a: expected to be given once, got 2 values")
    else:
        assert reply.outputs["got"] == outputs


def test_files_become_named_parameters(runners: Runners) -> None:
    """`curl -F image=@x.png -F top_k=3`, lists by repeated names, bytes as they are."""
    fields = [
        ("image", png(), "x.png"),
        ("top_k", "5", None),
        ("tags", "a", None),
        ("tags", "b", None),
        ("raw", b"\xff\x00", "raw.bin"),
    ]
    outputs = runners("picture").send_form(*fields).outputs

    assert outputs == {"size": [3, 2], "top_k": 5, "tags": ["a", "b"], "raw": "/wA="}


def test_a_picture_may_be_the_whole_body_and_the_answer(runners: Runners) -> None:
    """Defaults fill the others; a picture of Pillow comes back as PNG."""
    runner = runners("picture")
    assert runner.call(png((4, 1)), "image/png").outputs["size"] == [4, 1]
    reply = runner.send_form(("image", png(), "x.png"), ("top_k", "0", None))

    assert reply.fields["content-type"] == "image/png"
    assert Image.open(BytesIO(reply.body)).size == (2, 3)


@pytest.mark.parametrize(
    ("body", "content_type", "status", "detail"),
    [
        (*form(("image", png(), "x"), ("top_k", "x", None)), 400, "top_k: expected int, got str"),
        (*form(("top_k", "3", None)), 400, "image: expected a value, got nothing: it is missing"),
        (*form(("image", b"hello", "x")), 400, "image: expected a picture (PNG, JPEG, GIF"),
        (*form(("image", png()[:-8], "x")), 400, "image: expected an intact picture, got a PNG"),
        (*form(("image", png(), "x"), ("image", png(), "x")), 400, "image: expected to be given"),
        (*form(("image", png(), "x"), ("z", "1", None)), 400, "z: expected one of: image, top_k"),
        (b"--B", "multipart/form-data", 400, "Content-Type: expected a boundary of 1 to 70"),
        (b"--B\r\n", "multipart/form-data; boundary=B", 400, "the body: expected a form that ends"),
        (
            form(("a", "b", None))[0] * 1001,
            "multipart/form-data; boundary=B",
            400,
            "the body: expected a form that ends with its boundary, got more",
        ),
        (*form(*[("a", "", None)] * 1001), 400, "the body: expected at most 1000 fields"),
        (*form(("top_k", b"\xff", None)), 400, "top_k: expected UTF-8, got other bytes at 0"),
        (b"&" * 2000, "application/x-www-form-urlencoded", 400, "body: expected at most 1000"),
        (b"a=%FF", "application/x-www-form-urlencoded", 400, "body: expected at most 1000"),
        (b'{"inputs":{}}', "application/x-www-form-urlencoded", 415, "content type: expected one"),
        (b"x", "audio/flac; a=b", 200, ""),
    ],
)
def test_a_form_that_does_not_fit_is_refused(
    runners: Runners, body: bytes, content_type: str, status: int, detail: str
) -> None:
    """Each with the field, what was expected and what came."""
    reply = runners("picture").call(body, content_type)

    if status == 200:  # the bytes are `raw`, and the picture is missing
        assert reply.detail.startswith("image: expected a value")
        return
    assert reply.status == status
    assert reply.detail.startswith(detail)
    assert len(reply.body) < 2000


def test_arrays_come_in_every_form_of_the_protocol(runners: Runners) -> None:
    """Short JSON, Open Inference Protocol in JSON and binary, npy files in a form; npy back."""
    runner = runners("arrays")
    wanted = [2.0, 4.0]
    assert runner.infer(a=[1, 3], b=[1, 1]).outputs == {"sum": wanted}
    tensors = [
        {"name": "a", "datatype": "FP32", "shape": [2], "data": [1, 3]},
        {"name": "b", "datatype": "INT64", "shape": [2], "data": [1, 1]},
    ]
    reply = runner.call(json.dumps({"id": "7", "inputs": tensors}), JSON).json()
    assert (reply["id"], reply["model_name"], reply["model_version"]) == ("7", "arrays", "2")
    assert reply["outputs"][0]["data"] == wanted
    files = runner.send_form(("a", npy(1, 3), "a.npy"), ("b", npy(1, 1, dtype="i8"), "b.npy"))
    assert files.outputs == {"sum": wanted}
    back = runner.infer("application/x-npy", a=[1, 3], b=[1, 1])
    assert np.load(BytesIO(back.body)).tolist() == wanted
    binary = [
        {**one, "parameters": {"binary_data_size": size}, "data": None}
        for one, size in zip(tensors, (8, 16), strict=True)
    ]
    for one in binary:
        del one["data"]
    head = json.dumps({"inputs": binary, "parameters": {"binary_data_output": True}}).encode()
    body = head + np.array([1, 3], "f4").tobytes() + np.array([1, 1], "i8").tobytes()
    fields = {"Inference-Header-Content-Length": str(len(head))}
    raw = runner.call(body, "application/octet-stream", fields=fields)
    length = int(raw.fields["inference-header-content-length"])
    assert np.frombuffer(raw.body[length:], "f8").tolist() == wanted


@pytest.mark.parametrize(
    ("body", "content_type", "fields", "detail"),
    [
        (b'{"inputs":{"a":[1],"b":[1.5]}}', JSON, {}, "input 'b': expected INT64"),
        (b'{"inputs":{"a":[1]}}', JSON, {}, "input 'b': expected INT64"),
        (*form(("a", "[1]", None)), {}, "b: expected a value, got nothing"),
        (*form(("a", "[1", None), ("b", "[1]", None)), {}, "a: expected lists of numbers in JSON"),
        (*form(("a", npy(1, dtype="f8"), "a"), ("b", "[1]", None)), {}, "input 'a': expected FP32"),
        (*form(("c", "", None)), {}, "c: expected one of: a, b, got an unknown name"),
        (b"{}", "a/b", {"Inference-Header-Content-Length": "x"}, "body: expected Inference-Header"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    runners: Runners, body: bytes, content_type: str, fields: dict[str, str], detail: str
) -> None:
    """With the texts that models have."""
    reply = runners("arrays").call(body, content_type, fields=fields)

    assert reply.status == 400
    assert reply.detail.startswith(detail)


def sound() -> bytes:
    """Return a tenth of a second."""
    buffer = BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(b"\1\0" * 800)
    return buffer.getvalue()


def test_rules_of_inputs_make_arrays_beside_other_parameters(runners: Runners) -> None:
    """A sound in a form, as the whole body, or samples in JSON; another file is refused."""
    runner = runners("sound")
    fields = (("sound", sound(), "x.wav"), ("gain", "2", None))
    assert runner.send_form(*fields).outputs == {"shape": [1, 1600], "gain": 2.0}
    assert runner.call(sound(), "audio/wav").outputs == {"shape": [1, 1600], "gain": 1.0}
    assert runner.infer(sound=[[0.5, 0.5]]).outputs == {"shape": [1, 2], "gain": 1.0}
    refused = "input 'sound': expected a sound: WAV (RIFF, WAVE), FLAC or Ogg"
    assert runner.call(png(), "audio/wav").detail.startswith(refused)
    assert runner.infer(sound=["x"]).detail.startswith("input 'sound': expected FP32")


def test_pictures_are_tensors_and_results_pictures_by_the_settings(runners: Runners) -> None:
    """As the manifest of a model says."""
    runner = runners("pixels")
    for reply in (runner.send_form(("picture", png(), "x")), runner.call(png(), "image/png")):
        assert reply.fields["content-type"] == "image/png"
        assert Image.open(BytesIO(reply.body)).size == (8, 8)
    assert runner.send_form(("other", png(), "x")).detail.startswith("other: expected one of")


def test_models_and_dataclasses_are_outputs(runners: Runners) -> None:
    """Their members are outputs by name."""
    runner = runners("model")
    assert runner.infer(name="a", prices=[1, 2]).outputs == {"sum": 3.0}
    assert runner.infer(name="a", prices=[]).outputs == {"count": 0}
    assert runner.infer(name="a", prices="x").detail == "prices: expected a valid list, got str"


def test_it_describes_itself(runners: Runners) -> None:
    """Signature, JSON Schema with all definitions, packages with milliseconds."""
    found = runners("picture").call(path=DESCRIPTION, method="GET").json()
    assert found["signature"]["predict"].startswith("predict(image: Image, top_k: int = 3, ")
    assert found["signature"]["form"] == "def"
    assert found["schema"]["inputs"]["required"] == ["image"]
    assert found["schema"]["inputs"]["properties"]["top_k"] == {"type": "integer", "default": 3}
    assert [one["package"] for one in found["imports"]] == ["PIL"]
    arrays = runners("arrays").call(path=DESCRIPTION, method="GET").json()
    assert arrays["signature"]["tensors"]["inputs"][0] == {
        "name": "a",
        "dtype": "FP32",
        "shape": None,
    }
    assert arrays["schema"]["inputs"]["properties"]["a"]["x-dtype"] == "FP32"
    model = runners("model").call(path=DESCRIPTION, method="GET").json()
    assert model["schema"]["inputs"]["title"] == "Item"
    assert model["schema"]["output"]["required"] == ["sum"]


HEAD = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ([b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n"], 400),
        ([b"GET / HTTP/1.1\r\n\r\n"], 400),
        ([HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"], 400),
        ([HEAD + b"Content-Length: 99999999\r\n\r\n"], 413),
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffff\r\n"], 413),
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"], 400),
        ([HEAD + b"Expect: magic\r\n\r\n"], 417),
        ([HEAD + b"Content-Encoding: br\r\n\r\n"], 415),
        ([b"A" * 40_000], 431),
        ([HEAD, *[b"X-%d: y\r\n" % at for at in range(200)], b"\r\n"], 431),
    ],
)
def test_hostile_bytes_are_refused_and_end_the_connection(
    runners: Runners, pieces: list[bytes], status: int
) -> None:
    """With a problem document each."""
    answer = runners("plain").raw(*pieces)

    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert b"\r\nconnection: close\r\n" in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["status"] == status


def test_a_connection_is_kept_and_requests_may_come_ahead(runners: Runners) -> None:
    """Answers come in the order of the requests, also of those in chunks and byte by byte."""
    body = b'{"inputs":{"give":"bytes"}}'
    whole = HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    last = whole.replace(b"Host: a", b"Host: a\r\nConnection: close")
    with runners("plain").connect() as end:
        for byte in chunked:
            end.sendall(bytes([byte]))
        end.sendall(whole + chunked + last)
        answers = rest_of(end)

    assert answers.count(b"HTTP/1.1 200 OK") == 4
    assert answers.count(b"\r\n\r\nab") == 4


def test_a_client_that_asks_first_is_told_to_go_on(runners: Runners) -> None:
    """100-continue, before the body."""
    body = b'{"inputs":{"give":"bytes"}}'
    with runners("plain").connect() as end:
        end.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
        assert until(end, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        end.sendall(body)
        assert b"200 OK" in until(end, b"ab")


def test_an_answer_to_head_has_no_body(runners: Runners) -> None:
    """Else the next answer would begin in its middle."""
    request = HEAD.replace(b"POST", b"HEAD") + b"\r\n"
    with runners("plain").connect() as end:
        end.sendall(request + request)
        answers = until(end, b"\r\n\r\nHTTP/1.1 405 ")

    assert answers.startswith(b"HTTP/1.1 405 ")


def test_a_refusal_is_read_by_a_client_that_goes_on_sending(runners: Runners) -> None:
    """What comes behind it is dropped, so that no reset overtakes it."""
    with runners("plain").connect() as end:
        end.sendall(HEAD + b"Content-Length: 999999999\r\n\r\n")
        end.sendall(b"x" * (4 << 20))
        assert rest_of(end).startswith(b"HTTP/1.1 413 ")


def test_an_old_client_gets_its_answer(runners: Runners) -> None:
    """HTTP/1.0 ends the connection."""
    body = b'{"inputs":{"give":"bytes"}}'
    head = HEAD.replace(b"1.1", b"1.0") + b"Content-Length: %d\r\n\r\n" % len(body)

    assert runners("plain").raw(head + body).endswith(b"connection: close\r\n\r\nab")


def test_connections_are_counted(runners: Runners) -> None:
    """An idle connection makes room; without one, a newcomer is refused."""
    runner = runners("plain")
    with ExitStack() as stack:
        begun = [stack.enter_context(runner.connect()) for _ in range(512)]
        for end in begun:
            end.sendall(HEAD + b"\r\nP")  # the next request has begun, too
            until(end, b"}")
        reached = json.loads(
            rest_of(stack.enter_context(runner.connect())).partition(b"\r\n\r\n")[2]
        )
        assert reached["code"] == "too_many_connections"
    assert runner.call(path=READY, method="GET").status == 200


def together(count: int, work: Callable[[int], Reply]) -> list[Reply]:
    """Return the replies of calls at the same time."""
    found: list[Reply | None] = [None] * count

    def call(at: int) -> None:
        found[at] = work(at)

    threads = [threading.Thread(target=call, args=(at,)) for at in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [one for one in found if one is not None]


def test_many_clients_get_their_own_answers(runners: Runners) -> None:
    """None gets that of another one."""
    replies = together(40, lambda at: runners("plain").infer(a=at))

    assert [reply.outputs["got"]["a"] for reply in replies] == list(range(40))


def test_a_port_can_be_listened_on(tmp_path: Path) -> None:
    """127.0.0.1 and a port instead of a path; a port in use ends it with the reason."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = {"listen": f"127.0.0.1:{port}"}
        with FunctionRunner(tmp_path / "a", "", settings=settings) as runner:
            assert runner.end() == 2
            assert f"127.0.0.1:{port}: " in runner.log
    text = "def load(ctx): print('up')\ndef predict(): return 'here'"
    with FunctionRunner(tmp_path / "b", text, settings=settings) as runner:
        assert runner.line() == "up"
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("POST", "/")
        assert connection.getresponse().read() == b"here"
        connection.close()
