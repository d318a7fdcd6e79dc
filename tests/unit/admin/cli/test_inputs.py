from __future__ import annotations

from pathlib import Path

import pytest
import typer

from admin.cli import inputs
from admin.cli.inputs import payload
from admin.client.client import Payload
from runtime_image.contract.model import JSON, OCTETS


def test_a_body_is_sent_unchanged() -> None:
    """The text of -d is sent byte for byte."""
    assert payload('{"inputs": {"x": 1.10}}', []) == Payload(b'{"inputs": {"x": 1.10}}', JSON)


def test_a_body_can_be_a_file(tmp_path: Path) -> None:
    """-d @FILE sends the JSON in the file."""
    (tmp_path / "a.json").write_text('{"a": 1}')

    assert payload(f"@{tmp_path}/a.json", []).body == b'{"a": 1}'


def test_values_become_inputs(tmp_path: Path) -> None:
    """Several -i make one JSON object, with values from files and from the command line."""
    (tmp_path / "b.json").write_text("[2.50]")

    made = payload(None, ["a=[1e400, 1]", f"b=@{tmp_path}/b.json", 'c="x=y"'])

    assert made.body == b'{"inputs": {"a": [1e400, 1], "b": [2.50], "c": "x=y"}}'
    assert made.content_type == JSON


@pytest.mark.parametrize(
    ("file", "media"),
    [
        ("a.png", "image/png"),
        ("a.JPG", "image/jpeg"),
        ("a.wav", "audio/wav"),
        ("a.npy", 'application/x-npy; input="x"'),
        ("a.bin", "application/octet-stream"),
        ("a", "application/octet-stream"),
    ],
)
def test_a_file_is_sent_as_what_it_is(tmp_path: Path, file: str, media: str) -> None:
    """A single file that is not JSON is the whole body; its suffix decides the content type."""
    (tmp_path / file).write_bytes(b"\x00\xff")

    assert payload(None, [f"x=@{tmp_path / file}"]) == Payload(b"\x00\xff", media)


@pytest.mark.parametrize("file", ["a.json", "a.png", "a"])
def test_a_file_is_sent_as_asked(tmp_path: Path, file: str) -> None:
    """An explicit content type takes precedence over the suffix, for JSON files too."""
    (tmp_path / file).write_bytes(b"{\xff")

    made = payload(None, [f"x=@{tmp_path / file}"], OCTETS)

    assert made == Payload(b"{\xff", OCTETS)


@pytest.mark.parametrize(
    ("data", "given", "media", "complaint"),
    [
        ("{}", [], OCTETS, "expected one -i TENSOR=@FILE"),
        (None, ["a=1"], OCTETS, "expected one -i TENSOR=@FILE"),
        (None, ["a=@x", "b=@y"], OCTETS, "expected one -i TENSOR=@FILE"),
        (None, ["a=@x"], "png", "expected a content type like application/octet-stream, got 'png'"),
        (None, ["a=@x"], "a/b\r\nX: y", "expected a content type"),
        (None, ["a=@/nonexistent/x"], OCTETS, "No such file"),
    ],
)
def test_a_type_goes_with_one_file(
    data: str | None, given: list[str], media: str, complaint: str
) -> None:
    """A content type is only accepted together with one file."""
    with pytest.raises(typer.BadParameter) as caught:
        payload(data, given, media)

    assert complaint in caught.value.message


@pytest.mark.parametrize(
    ("data", "given", "complaint"),
    [
        (None, [], "expected either -d JSON or -i"),
        ("{}", ["a=1"], "expected either -d JSON or -i"),
        (None, ["a"], "expected NAME=VALUE or NAME=@FILE, got 'a'"),
        (None, ["=1"], "expected NAME=VALUE"),
        (None, ["a=1", "a=2"], "each tensor once"),
        (None, ["a=hello"], "a text needs double quotes"),
        (None, ["a=NaN"], "JSON has no NaN"),
        ("{", [], "expected JSON, got '{'"),
        ("[" * 100_000, [], "expected JSON"),
        (None, ["a=@x.png", "b=1"], "a is raw"),
        (None, ["a=@/nonexistent/x.png"], "No such file"),
        ("@/nonexistent/x.json", [], "No such file"),
    ],
)
def test_wrong_usage_is_told(data: str | None, given: list[str], complaint: str) -> None:
    """Input that cannot be sent is wrong usage, with what was expected."""
    with pytest.raises(typer.BadParameter) as caught:
        payload(data, given)

    assert complaint in caught.value.message


def test_json_must_be_utf8(tmp_path: Path) -> None:
    """A JSON file that is not UTF-8 is refused with the position of the byte."""
    (tmp_path / "a.json").write_bytes(b'"\xff"')

    with pytest.raises(typer.BadParameter, match="other bytes at 1"):
        payload(f"@{tmp_path}/a.json", [])


def test_a_huge_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file larger than any server accepts is refused without being read whole."""
    monkeypatch.setattr(inputs, "FILE_MAX", 3)
    path = tmp_path / "a.bin"
    path.write_bytes(b"1234")

    with pytest.raises(typer.BadParameter, match="expected at most 3 bytes"):
        payload(None, [f"a=@{path}"])


def test_numbers_may_have_any_length() -> None:
    """A number beyond Python's limit for int() is sent for the server to judge."""
    assert payload("1" * 10_000, []).body == b"1" * 10_000
