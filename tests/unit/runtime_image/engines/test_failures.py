"""Exceptions of handlers, as callers and the log see them."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime_image.contract.errors import HandlerFailed
from runtime_image.contract.tracebacks import TEXT_MAX, TRACEBACK_MAX
from runtime_image.engines.base import Stopped
from runtime_image.engines.failures import (
    AGAIN_S,
    PLACES_MAX,
    Failures,
    is_own,
    reason_of,
)


class Log:
    """Failures in a folder, with what they write and a clock that stands still."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 0.0
        self.written: list[str] = []
        self.folder = folder
        self.failures = Failures(folder, clock=lambda: self.now_s, write=self.written.append)

    def failed(self, code: str, file: str = "handler.py", before: str = "") -> str:
        """Run `code` as a file of the folder and return what a caller is told."""
        try:
            exec(compile(code, str(self.folder / file), "exec"), {"folder": self.folder})
        except BaseException as error:  # noqa: BLE001 - what handlers raise
            return str(self.failures.failed(error, before))
        raise AssertionError("nothing was raised")


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def test_the_last_line_of_the_users_own_is_named(log: Log) -> None:
    """A caller learns type, text, file, line and function, also if a library raised."""
    code = "import json\ndef helper():\n    json.loads('[')\nhelper()\n"
    text = log.failed(code, "parts/words.py", "load: ")
    assert text.startswith("load: JSONDecodeError: Expecting value")
    assert text.endswith(" (parts/words.py:3 in helper)")
    assert log.failed("x = {}['w']") == "KeyError: 'w' (handler.py:1)"
    assert log.failed("raise ValueError") == "ValueError (handler.py:1)"


def test_the_log_has_the_whole_traceback(log: Log) -> None:
    """Every frame is in the log, with the chain of causes."""
    log.failed(
        "def f():\n    1 / 0\n"
        "try:\n    f()\nexcept Exception as error:\n    raise KeyError('a') from error\n"
    )
    [text] = log.written
    assert text.startswith("Traceback (most recent call last):")
    assert "ZeroDivisionError" in text
    assert "direct cause" in text
    assert 'File "handler.py", line 2, in f' in text
    assert "test_failures.py" not in text, "lines of ours above the handler's"
    assert str(log.folder) not in text


@pytest.mark.parametrize(
    "code", ["def predict(:\n", "compile('x = (', str(folder / 'handler.py'), 'exec')\n"]
)
def test_a_syntax_error_has_its_line(log: Log, code: str) -> None:
    """A SyntaxError is said like any error, without the path of a folder that is gone."""
    text = log.failed(code)
    assert text.startswith("SyntaxError: ")
    assert text.endswith("(handler.py:1)")
    assert str(log.folder) not in text


def test_paths_of_the_machine_are_cut(log: Log) -> None:
    """Files of the folder have their name there, those of packages their name below sys.path."""
    assert log.failed("open(folder / 'words.txt')") == (
        "FileNotFoundError: [Errno 2] No such file or directory: 'words.txt' (handler.py:1)"
    )
    text = log.failed("from json import no_such_name")
    assert text.endswith("'no_such_name' from 'json' (json/__init__.py) (handler.py:1)")


def test_a_link_to_the_folder_is_the_folder(tmp_path: Path) -> None:
    """A path of the folder is cut in both forms."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    log = Log(tmp_path / "link")
    assert (
        log.failed(f"raise OSError({str(tmp_path / 'real' / 'a')!r})")
        == "OSError: a (handler.py:1)"
    )


def test_texts_are_bounded(log: Log) -> None:
    """A long text keeps type and line; a long traceback keeps its end."""
    text = log.failed("raise ValueError('x' * 100_000)")
    assert len(text) < TEXT_MAX + 100
    assert text.endswith("… (handler.py:1)")
    assert len(log.written[0]) == TRACEBACK_MAX + 1


def test_a_line_that_fails_often_is_logged_once_in_a_while(log: Log) -> None:
    """Callers cannot fill the log with one error; another line is logged at once."""
    for _ in range(5):
        log.failed("1 / 0")
    log.failed("\n1 / 0")
    assert len(log.written) == 2
    log.now_s += AGAIN_S
    log.failed("1 / 0")
    assert len(log.written) == 3
    for line in range(3 * PLACES_MAX):
        log.failed("\n" * line + "1 / 0")
    assert len(log.failures._logged) <= PLACES_MAX


HOSTILE = """
class Meta(type):
    def __repr__(self): raise SystemExit(4)
    __str__ = __repr__
class Bad(SyntaxError, metaclass=Meta):
    filename = lineno = msg = property(lambda self: 1 / 0)
    __traceback__ = property(lambda self: 1 / 0)
    def __str__(self): raise SystemExit(3)
    __repr__ = __str__
raise Bad
"""


def test_an_exception_that_cannot_be_shown_is_still_said(log: Log) -> None:
    """Methods of the exception are the handler's code and may raise anything."""
    text = log.failed(HOSTILE)
    assert "that cannot be shown" in text
    assert text.endswith("(handler.py:10)")
    assert len(log.written) == 1


def test_errors_of_ours_pass_through() -> None:
    """What stops a run is no failure of the handler; a failure's text is complete."""
    assert is_own(Stopped())
    assert not is_own(KeyError("a"))
    assert (
        reason_of(HandlerFailed("KeyError: 'a' (handler.py:1)")) == "KeyError: 'a' (handler.py:1)"
    )
    assert reason_of(KeyError("a")) == "KeyError: 'a'"


def test_fields_of_a_syntax_error_are_checked(log: Log) -> None:
    """A handler may raise one with any fields."""
    code = "e = SyntaxError('x', (str(folder / 'handler.py'), {}, 1, 'x'))\nraise e\n"
    assert log.failed(code.format("'9' * 10_000")) == "SyntaxError: x (handler.py)"
    assert log.failed(code.format("10 ** 5000")) == "SyntaxError: x (handler.py)"
