"""Tests of fnctl env."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from admin.cli.verbs.env import render, render_shown
from admin.documents.server import EnvironmentDetail, EnvironmentRow
from tests.support.admin_api import AdminApi, Canned
from tests.support.admin_documents import all_made, made

PATH = "/admin/v1/environments"
ID = "3f9c" + "0" * 60
ROW: dict[str, Any] = {
    "id": ID,
    "state": "ready",
    "python": "3.11",
    "package_count": 2,
    "size_bytes": 3 << 20,
    "own_bytes": 1 << 20,
    "functions": ["f@1"],
    "live": ["f@1", "g"],
    "started_s": 1000.0,
    "needed_s": 1000.0,
}
GONE = {**ROW, "state": "missing", "size_bytes": None, "own_bytes": None, "started_s": None}
DETAIL = {
    **ROW,
    "interpreter": "3.11.7",
    "platform": "linux-x86_64",
    "libc": "glibc-2.36",
    "files": 40,
    "packages": [
        {"name": "numpy", "version": "1.26.4", "size_bytes": 2 << 20, "bundled": False},
        {"name": "mine", "version": "1.0", "size_bytes": None, "bundled": True},
    ],
}


def test_a_table_of_environments() -> None:
    """Ids are short, sizes have units, and what is not there has none."""
    many = {**GONE, "id": f"{ID}.own", "functions": [f"f@{n}" for n in range(7)], "live": []}
    assert render(all_made(EnvironmentRow, [ROW, many]), 1060.0).splitlines() == [
        "ENVIRONMENT       PYTHON  PACKAGES  SIZE     OWN      STATE    USED       FUNCTIONS",
        "3f9c00000000      3.11    2         3.0 MiB  1.0 MiB  ready    1 min ago  f@1, g",
        "3f9c00000000.own  3.11    2                           missing             "
        "f@0, f@1, f@2, f@3, f@4 and 2 more",
    ]
    assert render([], 0.0) == "no environments"


def test_an_environment_is_shown_with_its_packages() -> None:
    """The interpreter, the functions, and where a package came from."""
    assert render_shown(made(EnvironmentDetail, DETAIL), 1060.0).splitlines() == [
        f"  id         {ID}",
        "  state      ready",
        "  python     3.11.7, linux-x86_64, glibc-2.36",
        "  size       3.0 MiB in 40 files and bytecode, 1.0 MiB of them its own",
        "  used       1 min ago",
        "  functions  f@1",
        "  kept by    f@1, g",
        "",
        "PACKAGE  VERSION  WHEEL    FROM",
        "numpy    1.26.4   2.0 MiB",
        "mine     1.0               wheels/",
    ]
    gone = made(EnvironmentDetail, {**DETAIL, **GONE})
    assert "size" not in render_shown(gone, 0.0).splitlines()[3]


@pytest.mark.parametrize(
    ("item", "advice"),
    [
        (ROW, ""),
        (GONE, "next: fnctl warm f\n"),
        ({**ROW, "functions": [], "live": []}, "next: fnctl env rm --unused\n"),
    ],
)
def test_a_list_says_what_to_do(
    api: AdminApi, fnctl: Callable[..., Result], item: dict[str, Any], advice: str
) -> None:
    """What is missing is installed by warm, what nobody names is removed; --json has all fields."""
    api.on("GET", PATH, Canned({"items": [item], "next": None}))

    assert fnctl("env", "ls").stderr == advice
    assert json.loads(fnctl("env", "ls", "--json").stdout) == {"items": [item]}


def test_an_environment_is_asked_for_by_its_first_digits(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """The server finds it."""
    api.on("GET", f"{PATH}/3f9c", Canned(DETAIL))

    assert "numpy    1.26.4" in fnctl("env", "show", "3f9c").stdout
    assert json.loads(fnctl("env", "show", "3f9c", "--json").stdout) == DETAIL


def test_environments_are_removed(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """One, or all that nobody names; older revisions that name it are told."""
    removed = {"removed": ID, "own_bytes": 1 << 20, "functions": ["f@1"]}
    api.on("DELETE", f"{PATH}/3f9c", Canned(removed))
    api.on("POST", f"{PATH}/prune", Canned({"removed": []}))

    assert fnctl("env", "rm", "3f9c").stdout == (
        "3f9c00000000 removed, 1.0 MiB freed\n  installed again with the traffic of f@1\n"
    )
    assert fnctl("env", "rm", "--unused").stdout == "no environment to remove\n"
    assert json.loads(fnctl("env", "rm", "--unused", "--json").stdout) == {"removed": []}


@pytest.mark.parametrize("arguments", [[], ["3f9c", "--unused"]])
def test_what_to_remove_is_said_once(fnctl: Callable[..., Result], arguments: list[str]) -> None:
    """Neither everything by accident, nor two things."""
    result = fnctl("env", "rm", *arguments)

    assert result.exit_code == 2
    assert "expected either an environment or --unused" in result.stderr
