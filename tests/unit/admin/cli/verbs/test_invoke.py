from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from tests.support.admin_api import AdminApi, Canned
from tests.support.interfaces import named

JSON = "application/json"
TIMING = {"Server-Timing": 'cold;desc="digits@3 on cpu:0", queue;dur=20, load;dur=9'}
ANSWER: dict[str, Any] = {"outputs": {"y": [1.5]}, "revision": "digits@3"}


def test_an_answer_has_its_receipt(
    api: AdminApi, fnctl: Callable[..., Result], tmp_path: Path
) -> None:
    """An image is sent unchanged; the answer goes to stdout, the receipt to stderr."""
    (tmp_path / "a.png").write_bytes(b"png")
    api.on("POST", "/fn/digits@3", Canned(ANSWER, headers=TIMING))

    result = fnctl("invoke", "digits@3", "-i", f"image=@{tmp_path}/a.png", "--wait", "5")

    assert (result.stdout, result.exit_code) == ("y  [1.5]\n", 0)
    assert result.stderr == "cold start 9 ms: load 9 | queue 20 ms\n"
    [sent] = api.sent("POST")
    assert (sent.body, sent.headers["Content-Type"]) == (b"png", "image/png")
    assert sent.headers["Prefer"] == "wait=5"


def test_a_file_is_sent_as_the_type_that_was_asked_for(
    api: AdminApi, fnctl: Callable[..., Result], tmp_path: Path
) -> None:
    """--type is the content type, whatever the file's suffix."""
    (tmp_path / "a.json").write_bytes(b"[1]")
    api.on("POST", "/fn/filetype", Canned(ANSWER))

    fnctl("invoke", "filetype", "-i", f"data=@{tmp_path}/a.json", "--type", "text/x-any")

    [sent] = api.sent("POST")
    assert (sent.body, sent.headers["Content-Type"]) == (b"[1]", "text/x-any")


@pytest.mark.parametrize(
    ("takes", "file", "sent_as"),
    [
        (["application/json", "application/octet-stream"], "a.png", "application/octet-stream"),
        (["application/json", "application/octet-stream"], "a.npy", "application/octet-stream"),
        (["application/json", "application/octet-stream"], "a.json", "application/octet-stream"),
        (["application/json", "image/*"], "a.jpg", "image/jpeg"),
        (["application/json", "image/*"], "picture", "image/x-unknown"),
        (["application/json", "application/x-npy"], "a.npy", 'application/x-npy; input="data"'),
    ],
)
def test_the_functions_input_decides_how_a_file_is_sent(
    api: AdminApi,
    fnctl: Callable[..., Result],
    tmp_path: Path,
    takes: list[str],
    file: str,
    sent_as: str,
) -> None:
    """A function that takes any bytes gets a file unchanged, whatever its suffix."""
    (tmp_path / file).write_bytes(b"[1]")
    api.on("GET", "/fn/f@2", Canned({"content_types": takes}))
    api.on("POST", "/fn/f@2", Canned(ANSWER))

    assert fnctl("invoke", "f@2", "-i", f"data=@{tmp_path}/{file}").exit_code == 0

    [sent] = api.sent("POST")
    assert (sent.body, sent.headers["Content-Type"]) == (b"[1]", sent_as)


SIGNATURE = {
    "kind": "tensors",
    "inputs": [
        {"name": "image", "dtype": "FP32", "shape": [-1, 8, 8]},
        {"name": "text", "dtype": "BYTES", "shape": [-1]},
    ],
    "outputs": [],
}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            ["-i", "imaeg=@two.png"],
            "expected an input of the function: image, text; got 'imaeg'; did you mean 'image'?",
        ),
        (["-i", "imaeg=@two.png", "--type", "image/png"], "did you mean 'image'?"),
        (["-i", "qq=1"], "expected an input of the function: image, text; got 'qq'"),
        (["-i", "image=two.png"], "did you mean -i image=@two.png?"),
        (["-i", "image=two"], "did you mean -i image=@two?"),
        (["-i", "image=other.jpg"], "did you mean -i image=@other.jpg?"),
        (["-i", "image=three"], "image takes FP32 of shape [-1, 8, 8], as numbers in JSON or as"),
        (["-i", "text=it is 5"], """a text needs double quotes: -i 'text=["it is 5"]'"""),
        (["-d", "two.png"], "did you mean -d @two.png?"),
        (["-i", "image=" + "x" * 5000], "image takes FP32"),
    ],
)
def test_an_input_that_cannot_be_sent_says_how_it_is_given(
    api: AdminApi,
    fnctl: Callable[..., Result],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    complaint: str,
) -> None:
    """A wrong name, also beside a file that is sent without it; a file without @; a bare text."""
    monkeypatch.chdir(tmp_path)
    for name in ("two.png", "two"):
        (tmp_path / name).write_bytes(b"png")
    api.on("GET", "/fn/f", Canned({"signature": SIGNATURE, "content_types": ["image/*"]}))

    result = fnctl("invoke", "f", *words)

    assert (result.exit_code, api.sent("POST")) == (2, [])
    assert complaint in result.stderr


@pytest.mark.parametrize("signature", [{}, {"kind": "json", "inputs": [], "outputs": []}, [1]])
def test_any_name_is_sent_where_none_are_known(
    api: AdminApi, fnctl: Callable[..., Result], signature: object
) -> None:
    """A function may take any JSON object; a description that cannot be read refuses nothing."""
    api.on("GET", "/fn/f", Canned({"signature": signature}))
    api.on("POST", "/fn/f", Canned(ANSWER))

    assert fnctl("invoke", "f", "-i", "anything=1").exit_code == 0
    assert api.sent("POST")[0].body == b'{"inputs": {"anything": 1}}'


@pytest.mark.parametrize(
    ("sample", "shown"),
    [
        (Canned({"inputs": {"x": [0.0]}}), '{"inputs": {"x": [0.0]}}'),
        (Canned(b"png" * 1000, headers={"Content-Type": "image/png"}), "image/png, 2.9 KiB"),
    ],
)
def test_without_an_input_the_sample_is_sent(
    api: AdminApi, fnctl: Callable[..., Result], sample: Canned, shown: str
) -> None:
    """Without an input the function's sample is sent, and a remark says so."""
    api.on("GET", "/admin/v1/functions/digits/sample", sample)
    api.on("POST", "/fn/digits", Canned(ANSWER))

    result = fnctl("invoke", "digits")

    assert (result.exit_code, result.stdout) == (0, "y  [1.5]\n")
    assert result.stderr == f"no input given, an example is sent: {shown}\n"
    [sent] = api.sent("POST")
    assert (sent.body, sent.headers["Content-Type"]) == (
        sample.data,
        sample.headers.get("Content-Type", sample.content_type),
    )


def test_json_is_the_answer_with_its_receipt(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """--json prints the answer's object together with the receipt."""
    api.on("POST", "/fn/digits", Canned(ANSWER, headers=TIMING))

    shown = json.loads(fnctl("invoke", "digits", "-d", '{"inputs": {}}', "--json").stdout)

    assert shown.pop("receipt")["cold"] is True
    assert shown == ANSWER
    assert api.sent("POST")[0].body == b'{"inputs": {}}'


def test_bytes_are_not_printed(api: AdminApi, fnctl: Callable[..., Result], tmp_path: Path) -> None:
    """An answer that is not JSON is described, and saved with -o."""
    api.on(
        "POST", "/fn/digits", Canned(b"\x93NUMPY", headers={"Content-Type": "application/x-npy"})
    )
    words = ("invoke", "digits", "-i", "x=1", "--accept", "application/x-npy")

    plain = fnctl(*words)
    saved = fnctl(*words, "--output", str(tmp_path / "y.npy"))
    described = json.loads(fnctl(*words, "--json").stdout)

    assert plain.stdout == "application/x-npy, 6 B: save it with --output FILE\n"
    assert saved.stdout == f"application/x-npy, 6 B, written to {tmp_path}/y.npy\n"
    assert (tmp_path / "y.npy").read_bytes() == b"\x93NUMPY"
    assert (described["content_type"], described["bytes"]) == ("application/x-npy", 6)
    assert api.sent("POST")[0].headers["Accept"] == "application/x-npy"


@pytest.mark.parametrize(("body", "shown"), [(b"[1]", "answer  [1]"), (b"{", "save it with")])
def test_strange_json_is_shown(
    api: AdminApi, fnctl: Callable[..., Result], body: bytes, shown: str
) -> None:
    """Malformed JSON is described; JSON that is not an object is shown."""
    api.on("POST", "/fn/f", Canned(body, headers={"Content-Type": "application/json"}))

    assert shown in fnctl("invoke", "f", "-i", "x=1").stdout


@pytest.mark.parametrize(
    "words",
    [
        ("invoke", "Digits", "-i", "x=1"),
        ("invoke", "digits@0", "-i", "x=1"),
        ("invoke", "digits", "--type", "image/png"),
        ("invoke", "digits", "-i", "x=1", "--wait", "-1"),
    ],
)
def test_wrong_usage_sends_nothing(
    api: AdminApi, fnctl: Callable[..., Result], words: tuple[str, ...]
) -> None:
    """Wrong usage is exit code 2 before any request."""
    assert fnctl(*words).exit_code == 2
    assert api.requests == []


def test_an_output_that_cannot_be_written_is_wrong_usage(
    api: AdminApi, fnctl: Callable[..., Result], tmp_path: Path
) -> None:
    """An output path that cannot be written is wrong usage with the system's reason."""
    api.on("POST", "/fn/f", Canned(ANSWER))

    result = fnctl("invoke", "f", "-i", "x=1", "--output", str(tmp_path))

    assert result.exit_code == 2
    assert "Is a directory" in result.stderr


def test_a_refusal_is_told_with_expected_and_got(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """A refusal is shown with its reason, expected and got, and when to retry."""
    problem = {"title": "Too many", "detail": "full", "expected": "room", "got": "none"}
    api.on("POST", "/fn/f", Canned(problem, status=429, headers={"Retry-After": "3"}))

    result = fnctl("invoke", "f", "-i", "x=1")

    assert result.exit_code == 1
    assert result.stderr == (
        "error: Too many: full\n  expected: room\n  got: none\n  try again in 3 s\n"
    )


PYTHON: dict[str, Any] = {
    "kind": "http",
    "predict": "predict(text: str, k: int = 1)",
    "signature": {"kind": "json", "inputs": [], "outputs": []},
    "schema": {"inputs": named("text", text={"type": "string"}, k={"type": "integer"})},
}


def test_a_python_function_takes_its_parameters(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """By its schema, at its root; an answer in JSON has its receipt."""
    api.on("GET", "/fn/words@2", Canned(PYTHON))
    api.on("POST", "/fn/words@2/", Canned(ANSWER, headers=TIMING))

    result = fnctl("invoke", "words@2", "-i", "text=5", "-i", "k=2", "--wait", "3")

    assert (result.stdout, result.exit_code) == ("y  [1.5]\n", 0)
    assert result.stderr == "cold start 9 ms: load 9 | queue 20 ms\n"
    [sent] = api.sent("POST")
    assert sent.body == b'{"inputs": {"text": "5", "k": 2}}'
    assert (sent.headers["Content-Type"], sent.headers["Prefer"]) == ("application/json", "wait=3")


def test_a_stream_of_a_python_function_is_printed(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """As it is."""
    stream = Canned(b"data: 1\n\n", headers={"Content-Type": "text/event-stream"})
    api.on("GET", "/fn/words", Canned(PYTHON))
    api.on("POST", "/fn/words/", stream)

    result = fnctl("invoke", "words", "-i", "text=a", "--accept", "text/event-stream")

    assert result.stdout == "data: 1\n\n"
    assert "HTTP 200, 9 B in" in result.stderr
    assert api.sent("POST")[0].headers["Accept"] == "text/event-stream"


@pytest.mark.parametrize("words", [(), ("-i", "k=1"), ("-i", "t=1")])
def test_a_python_function_says_what_it_takes(
    api: AdminApi, fnctl: Callable[..., Result], words: tuple[str, ...]
) -> None:
    """Without a sample nothing is sent for a call without its inputs."""
    api.on("GET", "/fn/words", Canned(PYTHON))
    api.on("GET", "/admin/v1/functions/words", Canned({"sample": "zeros"}))

    result = fnctl("invoke", "words", *words)

    assert (result.exit_code, api.sent("POST")) == (2, [])
    assert "text" in result.stderr


def test_a_sample_of_a_python_function_is_sent(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """As that of any server function."""
    sample = {"path": "/", "method": "POST", "headers": {"Content-Type": JSON}, "body": "{}"}
    function = {"sample": "manifest", "server": {"samples": [sample]}}
    api.on("GET", "/fn/words", Canned(PYTHON))
    api.on("GET", "/admin/v1/functions/words", Canned(function))
    api.on("GET", "/admin/v1/functions/words/sample", Canned(b"{}", headers={"Content-Type": JSON}))
    api.on("POST", "/fn/words/", Canned(ANSWER))

    result = fnctl("invoke", "words")

    assert (result.exit_code, api.sent("POST")[0].body) == (0, b"{}")
