"""Bodies of calls of Python functions, from -i options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from admin.cli.python_inputs import python_payload, without_inputs
from admin.client.client import Payload
from runtime_image.codecs import multipart
from tests.support.interfaces import FILE, PICTURE, named

NUMBERS = {"type": "array", "items": {"type": "number"}}
TAKEN = named(
    "text",
    text={"type": "string"},
    k={"type": "integer"},
    ratio={"anyOf": [{"type": "number"}, {"type": "null"}]},
    flag={"type": "boolean"},
    mode={"enum": ["fast", 1]},
    values=NUMBERS,
    item={"type": "object"},
    image=PICTURE,
    files={"type": "array", "items": FILE},
    any={},
)
USAGE = (
    "fnctl invoke f -i text=TEXT [-i k=INTEGER] [-i ratio=NUMBER] [-i flag=true|false]"
    " [-i mode=fast|1] [-i values=JSON] [-i item=JSON] [-i image=@FILE] [-i files=@FILE]"
    " [-i any=VALUE]"
)


def payload(*items: str, inputs: Any = None) -> Payload:
    """Return the body for the options, beside the needed one."""
    schema = {"inputs": TAKEN if inputs is None else inputs}
    needed = ("text=a",) if inputs is None and not any("text=" in one for one in items) else ()
    return python_payload("f", {"schema": schema}, [*needed, *items])


def form_of(sent: Payload) -> list[tuple[str, bytes]]:
    """Return the parts of a form, as the function's server reads them."""
    kind = multipart.form_type(sent.content_type.encode())
    parts = multipart.parts(sent.body, kind)
    return [(one.name, sent.body[one.begin : one.end]) for one in parts if one is not None]


@pytest.mark.parametrize(
    ("item", "value"),
    [
        ("text=5", '"5"'),
        ("text=", '""'),
        ("text=a=b", '"a=b"'),
        ("k=12345678901234567890", "12345678901234567890"),
        ("k=-07", "-7"),
        ("k=+0", "0"),
        ("ratio=1.50", "1.50"),
        ("ratio=2", "2"),
        ("ratio=null", "null"),
        ("flag=True", "true"),
        ("mode=fast", '"fast"'),
        ("mode=1", "1"),
        ("values=[1, 2.50]", "[1, 2.50]"),
        ('item={"a": 1e400}', '{"a": 1e400}'),
        ("any=[1]", "[1]"),
        ("any=free text", '"free text"'),
    ],
)
def test_a_value_is_what_the_schema_says(item: str, value: str) -> None:
    """Texts as they are, digits as they are."""
    sent = payload(item)

    assert sent.content_type == "application/json"
    assert f'"{item.partition("=")[0]}": {value}' in sent.body.decode()
    assert json.loads(sent.body)["inputs"].keys() >= {"text"}


@pytest.mark.parametrize(
    ("items", "complaint"),
    [
        (["txt=a"], "expected an input of the function: text, k, ratio, flag, mode, values, item,"),
        (["imag=@x"], "got 'imag'; did you mean 'image'?"),
        (["k=x"], "expected an integer, got 'x'"),
        (["k=1.0"], "expected an integer, got '1.0'"),
        (["k=null"], "expected an integer, got 'null'"),
        (["ratio=NaN"], "expected a number, got 'NaN'"),
        (["ratio=true"], "expected a number, got 'true'"),
        (["flag=1"], "expected true or false, got '1'"),
        (["mode=2"], "expected one of \"fast\", 1, got '2'"),
        (["values=x"], "expected a JSON list, or a file, got 'x'"),
        (["values={}", "image=@two.png"], "expected a JSON list, or a file, got '{}'"),
        (["item={"], "expected JSON, or a file, got '{'"),
        (["image=two.png"], "expected a file of image/*, got 'two.png': -i image=@FILE"),
        (["k=@two.png"], "expected an integer, got '@two.png'"),
        (["image=@none.png"], "none.png: No such file"),
        (["text=a", "text=b"], "expected text once"),
        (["text"], "expected NAME=VALUE or NAME=@FILE"),
    ],
)
def test_what_is_not_taken_is_refused(
    items: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what was expected, and no control characters of anybody."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.png").write_bytes(b"png")
    with pytest.raises(typer.BadParameter) as refused:
        payload(*items)

    assert complaint in refused.value.message


def test_a_missing_input_is_named() -> None:
    """With the command; the same without any."""
    with pytest.raises(typer.BadParameter) as refused:
        payload("k=1", inputs=TAKEN)
    assert refused.value.message == f"expected text, got nothing: {USAGE}"
    with pytest.raises(typer.BadParameter) as refused:
        without_inputs("f", {"schema": {"inputs": TAKEN}})
    assert refused.value.message == f"expected inputs, got none: {USAGE}"
    assert without_inputs("f", {"schema": {"inputs": named(k={})}}).body == b'{"inputs": {}}'


def test_names_of_a_stranger_are_printed_plain() -> None:
    """A schema may have control characters."""
    with pytest.raises(typer.BadParameter) as refused:
        payload("a=1", inputs=named("\x1b[31mred"))
    assert "\x1b" not in refused.value.message


def test_files_go_as_a_form(tmp_path: Path) -> None:
    """With a name and a type; of a list each item is a part; texts are texts."""
    picture = tmp_path / 'a "b".png'
    picture.write_bytes(b"--png\r\n--")
    (tmp_path / "x.bin").write_bytes(b"")

    sent = payload(
        f"image=@{picture}",
        f"files=@{tmp_path}/x.bin",
        f"files=@{picture}",
        "values=[1, 2]",
        "item={}",
        "mode=fast",
        "flag=true",
    )

    assert form_of(sent) == [
        ("text", b"a"),
        ("image", b"--png\r\n--"),
        ("files", b""),
        ("files", b"--png\r\n--"),
        ("values", b"1"),
        ("values", b"2"),
        ("item", b"{}"),
        ("mode", b"fast"),
        ("flag", b"true"),
    ]
    assert b'filename="a %22b%22.png"\r\nContent-Type: image/png' in sent.body


def test_json_in_a_file_is_a_value(tmp_path: Path) -> None:
    """Where JSON is expected; a file that is a text is a part of a form."""
    (tmp_path / "values.json").write_text("[1.50]")

    assert b'"values": [1.50]' in payload(f"values=@{tmp_path}/values.json").body
    assert form_of(payload(f"text=@{tmp_path}/values.json")) == [("text", b"[1.50]")]
