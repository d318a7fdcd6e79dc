"""Tests of the store's settings."""

from __future__ import annotations

import ast
import inspect
import itertools
from dataclasses import fields
from pathlib import Path

from registry.settings import StoreSettings


def test_every_field_has_a_docstring() -> None:
    """Each field of the settings has its own docstring."""
    (body,) = [
        node.body
        for node in ast.walk(ast.parse(inspect.getsource(StoreSettings)))
        if isinstance(node, ast.ClassDef)
    ]
    explained = {
        before.target.id
        for before, after in itertools.pairwise(body)
        if isinstance(before, ast.AnnAssign)
        and isinstance(before.target, ast.Name)
        and isinstance(after, ast.Expr)
    }

    assert {field.name for field in fields(StoreSettings)} == explained


def test_paths_lie_in_the_data_directory() -> None:
    """Database and blobs are in the data directory, and thus on one filesystem."""
    settings = StoreSettings(Path("/data"))

    assert Path("/data/fngate.db") == settings.database
    assert Path("/data/blobs") == settings.blobs
