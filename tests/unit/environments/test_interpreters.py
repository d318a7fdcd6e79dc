"""Tests of finding interpreters."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from environments.interpreters import Interpreter, Interpreters, ask, find_interpreters
from registry.errors import EnvironmentRefused


def script(folder: Path, text: str) -> str:
    path = folder / "python3"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def versions(one: Interpreter, *numbers: tuple[int, int, int]) -> Interpreters:
    return Interpreters(tuple(replace(one, version=each) for each in numbers))


def test_the_default_is_the_servers_own(interpreter: Interpreter) -> None:
    """It is the interpreter below the virtual environment that runs the server."""
    found = find_interpreters()

    assert found.errors == ()
    assert found.found == (interpreter,)
    assert interpreter.version == sys.version_info[:3]
    assert interpreter.path == Path(sys.executable).resolve()
    assert interpreter.platform.startswith("linux-")
    assert interpreter.full_version.startswith(interpreter.python)


def test_a_name_is_looked_up(tmp_path: Path, interpreter: Interpreter) -> None:
    """In the given folders; two names of one interpreter are one."""
    (tmp_path / "python3.x").symlink_to(interpreter.path)

    found = find_interpreters(["python3.x", str(interpreter.path)], str(tmp_path))

    assert found.found == (interpreter,)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("exit 3", "exit code 3"),
        ("echo no", "expected a Python interpreter, got: exit code 0, no answer"),
        ("echo broken >&2; exit 1", "got: broken"),
        ('echo \'{"implementation":"cpython"}\'', "expected a Python interpreter"),
        ("yes", "expected at most"),
    ],
)
def test_what_is_no_interpreter_is_named(tmp_path: Path, text: str, expected: str) -> None:
    """With what it said; the others are found."""
    found = find_interpreters([script(tmp_path, text), sys.executable])

    assert len(found.found) == 1
    (error,) = found.errors
    assert error.startswith(str(tmp_path))
    assert expected in error


@pytest.mark.parametrize("answer", ["3,10,13", "2,7,18"])
def test_an_old_one_is_refused(tmp_path: Path, answer: str) -> None:
    """Functions run with 3.11 and newer."""
    said = f'{{"implementation":"cpython","version":[{answer}],"abi":"","platform":"linux-x86_64",'
    said += '"libc":"glibc-2.36","path":"/x"}'

    with pytest.raises(EnvironmentRefused, match=r"CPython 3\.11 or newer, got cpython"):
        ask(Path(script(tmp_path, f"echo '{said}'")))


@pytest.mark.parametrize("name", ["absent-python", "../python", "a b", "", "/nowhere/python"])
def test_a_missing_one_is_named(name: str) -> None:
    """Names are looked up in known folders, paths are absolute."""
    found = find_interpreters([name])

    assert found.found == ()
    assert "expected" in found.errors[0]


def test_a_version_is_chosen(interpreter: Interpreter) -> None:
    """The first one that fits, by minor or whole version and by `requires-python`."""
    found = versions(interpreter, (3, 11, 7), (3, 12, 1), (3, 13, 0))

    assert found.choose().full_version == "3.11.7"
    assert found.choose("3.12").full_version == "3.12.1"
    assert found.choose("3.13.0").full_version == "3.13.0"
    assert found.choose("", ">=3.12").full_version == "3.12.1"


@pytest.mark.parametrize(
    ("wanted", "requires"), [("3.14", ""), ("3.12.2", ""), ("3.11", ">=3.12"), ("3.13t", "")]
)
def test_no_such_version_is_refused(interpreter: Interpreter, wanted: str, requires: str) -> None:
    """The text has those that are there."""
    found = versions(interpreter, (3, 11, 7), (3, 12, 1))

    with pytest.raises(EnvironmentRefused, match=rf"Python {wanted}.*has 3\.11\.7, 3\.12\.1"):
        found.choose(wanted, requires)


@pytest.mark.parametrize("wanted", ["3", "3.x", ">=3.11", "-3.11", "3.11; evil", "3.1111"])
def test_a_strange_version_is_refused(interpreter: Interpreter, wanted: str) -> None:
    """A version is two or three numbers."""
    with pytest.raises(EnvironmentRefused, match=r"expected a version like 3\.12"):
        versions(interpreter, (3, 11, 7)).choose(wanted)
