"""Tests of the maker of the OpenAPI document: what it needs to run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import admin.documents
from admin.documents.openapi import every_route

ROOT = Path(__file__).parents[4]
RUN = """
import importlib, sys
from importlib.abc import MetaPathFinder

class OnlyOwn(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in {*sys.stdlib_module_names, "msgspec", *sys.argv[2].split()}:
            raise ImportError(f"blocked {name}")

sys.meta_path.insert(0, OnlyOwn())
sys.path.insert(0, sys.argv[1])
made = importlib.import_module(sys.argv[3])
sys.stdout.buffer.write(made.make_routes_document("1.0"))
"""
"""Runs a maker of the document with the standard library, msgspec and the packages that it is told
of."""
OWN = "admin gateway hosts pool_manager registry runtime_image"


def run(module: str) -> subprocess.CompletedProcess[bytes]:
    """Import a module, and make the document with it, in a process that lets nothing else in."""
    command = [sys.executable, "-c", RUN, str(ROOT), OWN, module]
    return subprocess.run(command, capture_output=True, check=False, timeout=60)


def test_the_document_needs_msgspec_alone() -> None:
    """The whole document is made where no other package can be imported, as the build of a wheel
    does it."""
    done = run("admin.documents.openapi")

    assert done.returncode == 0, done.stderr.decode()
    document = json.loads(done.stdout)
    described = {(one.path, one.method.lower()) for one in every_route()}
    assert described == {(at, how) for at, ways in document["paths"].items() for how in ways}
    assert document["info"]["version"] == "1.0"


def test_every_module_beside_it_needs_no_more() -> None:
    """No module of the documents imports another package, whether the maker uses it or not."""
    folder = Path(admin.documents.__file__).parent
    modules = [f"admin.documents.{one.stem}" for one in folder.glob("*.py")]

    said = [run(one).stderr.decode() for one in modules if one != "admin.documents.openapi"]

    assert "blocked" not in "".join(said)


@pytest.mark.parametrize("module", ["admin.api.openapi", "gateway.problems"])
def test_a_module_that_needs_more_is_caught(module: str) -> None:
    """The process refuses a handler of the admin API, which imports aiohttp."""
    done = run(module)

    assert done.returncode != 0
    assert b"blocked aiohttp" in done.stderr
