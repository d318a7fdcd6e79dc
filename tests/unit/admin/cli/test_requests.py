"""Tests of `fnctl invoke` with server functions."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from admin.cli.requests import _target
from tests.support.admin_api import AdminApi, Canned

HTTP: dict[str, Any] = {"kind": "http"}
PROBLEM = {"Content-Type": "application/problem+json"}


@pytest.fixture
def web(api: AdminApi) -> AdminApi:
    """Serve a server function that answers at two paths."""
    api.on("GET", "/fn/web", Canned(HTTP))
    api.on("GET", "/fn/web/", Canned(b"root\n"))
    api.on("GET", "/fn/web/items", Canned(b"one\ntwo\n"))
    api.on("POST", "/fn/web/items", Canned(b"made", 201))
    return api


def test_a_request_is_sent_as_asked_for(web: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Path, query, method, headers and body are those of the options; the body goes to stdout
    unchanged, and a remark to stderr."""
    args = ("--path", "/items?q=1&r=ä b", "-X", "post", "-H", "A: b: c", "-d", '{"x": 1}')
    result = fnctl("invoke", "web", *args, "--wait", "5", "--accept", "text/plain")

    [sent] = web.sent("POST")
    assert (result.exit_code, result.stdout) == (0, "made")
    assert result.stderr.startswith("HTTP 201, 4 B in ")
    assert (sent.query, sent.body) == ({"q": "1", "r": "ä b"}, b'{"x": 1}')
    assert (sent.headers["A"], sent.headers["Content-Type"]) == ("b: c", "application/json")
    assert (sent.headers["Prefer"], sent.headers["Accept"]) == ("wait=5", "text/plain")
    assert web.sent("GET") == []


@pytest.mark.parametrize(
    ("args", "kind"),
    [
        (("-d", "hello"), "text/plain; charset=utf-8"),
        (("-d", "hello", "--type", "a/b"), "a/b"),
        (("-d", "hello", "-H", "content-type: a/b"), "a/b"),
        (("-d", "@FILE"), "application/json"),
        (("-d", "@FILE", "--type", "a/b"), "a/b"),
    ],
)
def test_a_body_has_a_type(
    web: AdminApi, fnctl: Callable[..., Result], tmp_path: Path, args: tuple[str, ...], kind: str
) -> None:
    """-d makes the request a POST; its type is named, or follows from the text or the file."""
    (tmp_path / "q.json").write_bytes(b"hello")
    named = [arg.replace("FILE", str(tmp_path / "q.json")) for arg in args]

    assert fnctl("invoke", "web", "--path", "/items", *named).exit_code == 0

    [sent] = web.sent("POST")
    assert (sent.body, sent.headers["Content-Type"]) == (b"hello", kind)
    assert sent.headers["Content-Length"] == "5"


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([], ("GET", "/fn/web/", b"", {})),
        ([{"path": "/items"}], ("GET", "/fn/web/items", b"", {})),
        (
            [{"path": "/items", "method": "POST", "headers": {"A": "b"}, "body": "@q.json"}],
            ("POST", "/fn/web/items", b"sample", {"A": "b", "Content-Type": "a/b"}),
        ),
    ],
)
def test_without_a_path_the_sample_is_sent(
    web: AdminApi,
    fnctl: Callable[..., Result],
    samples: list[dict[str, Any]],
    expected: tuple[str, str, bytes, dict[str, str]],
) -> None:
    """The first sample of the function is sent, else a GET of its root."""
    admin = "/admin/v1/functions/web"
    web.on("GET", admin, Canned({**HTTP, "server": {"samples": samples}}))
    web.on("GET", f"{admin}/sample", Canned(b"sample", headers={"Content-Type": "a/b"}))

    result = fnctl("invoke", "web")

    sent = web.requests[-1]
    assert result.exit_code == 0
    assert (sent.method, sent.path, sent.body) == expected[:3]
    assert expected[3].items() <= sent.headers.items()
    assert f"is sent: {sent.method} {sent.path.removeprefix('/fn/web')}\n" in result.stderr


def test_a_key_that_may_only_invoke_needs_no_sample(
    web: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """If the sample cannot be read, the root is requested."""
    web.on("GET", "/admin/v1/functions/web", Canned({"code": "wrong_scope"}, 403))

    assert fnctl("invoke", "web").stdout == "root\n"


def test_an_error_of_the_server_is_printed_and_exit_code_1(
    web: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """An answer from 400 on goes to stdout, too, even as a problem document of the app."""
    web.on("GET", "/fn/web/no", Canned(b"oh no\n", 500))
    web.on("GET", "/fn/web/own", Canned({"type": "about:blank"}, 404, PROBLEM))

    first, second = (fnctl("invoke", "web", "--path", path) for path in ("/no", "/own"))

    assert (first.exit_code, first.stdout) == (1, "oh no\n")
    assert "HTTP 500, 6 B in " in first.stderr
    assert (second.exit_code, second.stdout) == (1, '{"type": "about:blank"}')


def test_a_refusal_of_fngate_is_an_error(web: AdminApi, fnctl: Callable[..., Result]) -> None:
    """A problem document of fngate is reported like that of a model function."""
    problem = {"type": "urn:fngate:problem:asleep", "title": "Asleep", "detail": "no", "code": "x"}
    web.on("GET", "/fn/web/x", Canned(problem, 503, PROBLEM))

    result = fnctl("invoke", "web", "--path", "/x")

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: Asleep: no\n"


def test_an_answer_that_is_cut_off_is_an_error(web: AdminApi, fnctl: Callable[..., Result]) -> None:
    """A body that is shorter than announced is printed, and is exit code 3."""
    web.on("GET", "/fn/web/cut", Canned(b"half", lacks=3))

    result = fnctl("invoke", "web", "--path", "/cut")

    assert (result.exit_code, result.stdout) == (3, "half")
    assert "the answer was cut off, 3 bytes are missing" in result.stderr


def test_an_answer_may_be_a_file(
    web: AdminApi, fnctl: Callable[..., Result], tmp_path: Path
) -> None:
    """--output writes the body to a file."""
    file = tmp_path / "out"

    result = fnctl("invoke", "web", "--path", "/items", "--output", str(file))

    assert (result.stdout, file.read_bytes()) == ("", b"one\ntwo\n")
    assert f"HTTP 200, 8 B to {file} in " in result.stderr


@pytest.mark.parametrize(("content", "shown"), [(b"hi", "hi"), (b"\xff", None)])
def test_json_has_head_and_body(
    web: AdminApi, fnctl: Callable[..., Result], content: bytes, shown: str | None
) -> None:
    """--json prints status, headers and the body, if that is text."""
    web.on("GET", "/fn/web/j", Canned(content, headers={"A": "b"}))

    answer = json.loads(fnctl("invoke", "web", "--path", "/j", "--json").stdout)

    assert (answer["status"], answer["bytes"], answer["body"]) == (200, len(content), shown)
    assert ["A", "b"] in answer["headers"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--path", "items"), "--path: expected /PATH, got 'items'"),
        (("-X", "G T"), "-X: expected a method such as GET, got 'G T'"),
        (("-X", "A" * 33), "-X: expected a method such as GET, got"),
        (("-H", "nothing"), "-H: expected 'NAME: VALUE', got 'nothing'"),
        (("-H", "a b: c"), "-H: expected 'NAME: VALUE', got 'a b: c'"),
        (("-H", "a: \u20ac"), "-H: expected 'NAME: VALUE', got"),
        (("-H", "content-length: 9"), "-H: expected a header that the body does not decide"),
        (("-d", "@/dev/zero"), "/dev/zero: expected a regular file"),
        (("--path", "/", "-d", "@/no/such/file"), "No such file or directory"),
        (("--path", "/", "-i", "x=1"), "-i: expected no input beside --path"),
        (("--path", "/", "--output", "/no/such/file"), "No such file or directory"),
    ],
)
def test_wrong_usage_is_told(
    web: AdminApi, fnctl: Callable[..., Result], args: tuple[str, ...], said: str
) -> None:
    """Wrong options are refused with the option's name."""
    result = fnctl("invoke", "web", *args)

    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


def test_d_is_any_text_for_a_server(web: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Without a path, the function's description tells that -d need not be JSON."""
    web.on("POST", "/fn/web/", Canned(b"ok"))

    assert fnctl("invoke", "web", "-d", "hello").stdout == "ok"
    assert web.sent("POST")[0].body == b"hello"


class Terminal(io.StringIO):
    """Standard output that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_text_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal executes escape sequences, so control characters do not reach it. Characters may
    be cut anywhere between two pieces."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)

    with _target(None, "text/event-stream") as write:
        for piece in (b"data: \xc3", b"\xa4\x1b]0;x\x07\r\n"):
            write(piece)
    with _target(None, "image/png") as write:
        write(b"png")

    assert terminal.getvalue() == "data: ä�]0;x�\n\n"
