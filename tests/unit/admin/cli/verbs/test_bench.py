from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from tests.support.admin_api import AdminApi, Canned

SIGNATURE = {
    "kind": "tensors",
    "inputs": [{"name": "x", "dtype": "FP32", "shape": [-1, 2]}],
    "outputs": [],
}
FUNCTION = {"name": "f", "signature": SIGNATURE, "inputs": {}, "sample": "zeros", "min": 0}
CLOSE = {"Connection": "close"}
SHORT = ("bench", "f", "-c", "1", "--seconds", "0.1", "--warmup", "0")


@pytest.fixture(autouse=True)
def benched(api: AdminApi) -> None:
    """Serve a function without a sample of its own."""
    api.on("GET", "/admin/v1/functions/f", Canned(FUNCTION))
    api.on("GET", "/fn/f", Canned({"signature": SIGNATURE}))
    api.on("POST", "/fn/f", Canned({}, headers=CLOSE))


@pytest.mark.parametrize(
    "words",
    [
        ["-c", "0"],
        ["-c", "-1"],
        ["-c", "99999"],
        ["-c", "1,two"],
        ["-b", "0"],
        ["-b", "9999999999999999999999"],
        ["--seconds", "nan"],
        ["--seconds", "0"],
        ["--seconds", "inf"],
        ["--warmup", "-1"],
        ["--total", "nan"],
        ["--total", "1"],
        ["--timeout", "0"],
        ["--requests", "0"],
        ["--requests", "99999999999"],
        ["--rate", "-5"],
        ["--rate", "nan"],
        ["--rate", "1e12"],
        ["--arrivals", "never"],
        ["--cold", "-1"],
        ["--cold", "1000000"],
        ["--processes", "0"],
        ["--plot", "x.svg"],
        ["--output", "/none/x.json"],
        ["--output", "/"],
        ["--output", "/proc/version"],
        ["--type", "image/png"],
    ],
)
def test_hostile_numbers_are_wrong_usage(
    api: AdminApi, fnctl: Callable[..., Result], words: list[str]
) -> None:
    """The option is named; nothing is requested."""
    result = fnctl("bench", "f", *words)

    assert (result.exit_code, result.stdout) == (2, "")
    assert words[0] in result.stderr or words[0].strip("-") in result.stderr
    assert api.requests == []


def test_a_refused_first_call_ends_it(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Before any load: the reason is the server's."""
    problem = {"title": "The input does not fit", "detail": "x: expected FP32", "code": "bad_input"}
    api.on("POST", "/fn/f", Canned(problem, 400))

    result = fnctl(*SHORT)

    assert (result.exit_code, len(api.sent("POST"))) == (1, 1)
    assert "The input does not fit: x: expected FP32" in result.stderr


def test_a_later_refusal_keeps_earlier_figures(
    api: AdminApi, fnctl: Callable[..., Result], tmp_path: Path
) -> None:
    """As for a function that is removed between two points."""
    gone = {"title": "Unknown function", "detail": "no function 'f'", "code": "unknown_function"}
    good, path = Canned({}, headers=CLOSE), tmp_path / "out.json"
    api.on("POST", "/fn/f", good, good, Canned(gone, 404))

    result = fnctl(*SHORT, "-c", "1,2", "--requests", "1", "--output", str(path))

    assert (result.exit_code, len(api.sent("POST"))) == (1, 3)
    assert result.stderr.endswith("partial: Unknown function: no function 'f'\n")
    data = json.loads(path.read_text())
    assert [point["answers"] for point in data["points"]] == [1]
    assert data["partial"] == "Unknown function: no function 'f'"


def test_a_file_is_tried_before_the_load(
    api: AdminApi, fnctl: Callable[..., Result], tmp_path: Path
) -> None:
    """An earlier result survives a benchmark that is refused, and no empty file is left."""
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text("{}")
    api.on("POST", "/fn/f", Canned({"title": "no"}, 400))

    assert [fnctl(*SHORT, "--output", str(path)).exit_code for path in (old, new)] == [1, 1]
    assert (old.read_text(), new.exists()) == ("{}", False)


@pytest.mark.parametrize(
    ("limit", "code", "text"),
    [
        ("--timeout", 1, "error: The first call got no answer within 0.1 s\nnext: give a cold"),
        ("--total", 1, "partial: the total limit was reached"),
    ],
)
def test_a_first_call_has_a_time_limit(
    api: AdminApi, fnctl: Callable[..., Result], limit: str, code: int, text: str
) -> None:
    """The error names the time limit: the server answers, but the function is slow."""
    answered = threading.Event()
    api.on("POST", "/fn/f", Canned({}, before=lambda: bool(answered.wait(10))))
    try:
        result = fnctl(*SHORT, limit, "0.1")
    finally:
        answered.set()

    assert (result.exit_code, len(api.sent("POST"))) == (code, 1)
    assert text in result.stderr
    assert result.stdout == ("" if limit == "--timeout" else "nothing was measured\n")


def test_a_function_in_use_is_not_put_to_sleep(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """The refusal names the way on; a key without the right is refused by the server."""
    api.on("GET", "/admin/v1/functions/f", Canned({**FUNCTION, "in_flight": 1}))
    result = fnctl(*SHORT, "--cold", "2")
    assert (result.exit_code, api.sent("POST")) == (1, [])
    assert "f is in use (open calls: 1)" in result.stderr
    assert "--force" in result.stderr

    api.on("GET", "/admin/v1/replicas", Canned({"items": [{"function": "f", "state": "ready"}]}))
    refusal = {"title": "Wrong scope", "detail": "needs operate", "code": "wrong_scope"}
    api.on("POST", "/admin/v1/functions/f/sleep", Canned(refusal, 403))
    result = fnctl(*SHORT, "--cold", "2", "--force")
    assert result.exit_code == 1
    assert "needs operate" in result.stderr


def test_figures_are_printed_and_written(
    api: AdminApi, fnctl: Callable[..., Result], tmp_path: Path
) -> None:
    """The same JSON on stdout and in the file; a server that closes each connection does not
    disturb. Bytes that are binary are sent as such."""
    path = tmp_path / "out.json"

    result = fnctl(*SHORT, "-b", "2", "--json", "--output", str(path))

    assert (result.exit_code, result.stderr) == (0, "")
    data = json.loads(result.stdout)
    assert data == json.loads(path.read_text())
    [point] = data["points"]
    assert (point["rows"], point["concurrency"], point["errors"]) == (2, 1, {})
    assert point["answers"] > 0
    assert {one.body for one in api.sent("POST")} == {api.sent("POST")[0].body}


def test_a_server_is_called_as_asked_for(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Every call is the request of the options, which are those of `fnctl invoke`."""
    api.on("GET", "/admin/v1/functions/f", Canned({**FUNCTION, "kind": "http"}))
    api.on("GET", "/fn/f", Canned({"kind": "http"}))
    api.on("PUT", "/fn/f/items", Canned({}, headers=CLOSE))

    asked = ("--path", "/items?q=1", "-X", "put", "-H", "A: b", "-d", "hello", "--type", "a/b")
    result = fnctl(*SHORT, *asked, "--json")

    [point] = json.loads(result.stdout)["points"]
    assert (result.exit_code, point["body"], point["errors"]) == (0, "PUT /items?q=1", {})
    assert point["answers"] > 0
    sent = {
        (one.query["q"], one.body, one.headers["A"], one.headers["Content-Type"])
        for one in api.sent("PUT")
    }
    assert sent == {("1", b"hello", "b", "a/b")}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--path", "items"), "--path: expected /PATH, got 'items'"),
        (("-H", "nothing"), "-H: expected 'NAME: VALUE', got 'nothing'"),
    ],
)
def test_a_wrong_request_is_told(
    api: AdminApi, fnctl: Callable[..., Result], words: tuple[str, ...], said: str
) -> None:
    """Before any call; for a model the options are wrong, too."""
    assert "expected a server function, got a function of" in fnctl(*SHORT, *words).stderr

    api.on("GET", "/fn/f", Canned({"kind": "http"}))
    result = fnctl(*SHORT, *words)

    assert (result.exit_code, result.stdout, api.sent("POST")) == (2, "", [])
    assert said in " ".join(result.stderr.split())


def test_a_load_of_refusals_is_a_failure(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Errors are shown by code; without any expected answer the exit code is 1."""
    refusal = {"type": "urn:fngate:problem:queue_full", "code": "queue_full"}
    api.on("POST", "/fn/f", Canned({}, headers=CLOSE), Canned(refusal, 429, headers=CLOSE))

    result = fnctl(*SHORT)

    assert result.exit_code == 1
    assert "x 429 queue_full\n" in result.stdout
