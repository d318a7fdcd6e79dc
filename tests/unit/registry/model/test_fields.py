"""The data classes of the registry say what each of their fields is."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil

import pytest

import registry.model
from tests.reference.markdown import described

MODULES = [
    importlib.import_module(f"registry.model.{one.name}")
    for one in pkgutil.iter_modules(registry.model.__path__)
]
CLASSES = [
    kind
    for module in MODULES
    for _, kind in inspect.getmembers(module, dataclasses.is_dataclass)
    if kind.__module__ == module.__name__
]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_field_is_documented(kind: type) -> None:
    """The string below a field is its documentation: a sentence."""
    texts = described(kind)

    assert [*texts] == [one.name for one in dataclasses.fields(kind)]
    assert [name for name, text in texts.items() if not text.endswith(".")] == []


def test_the_classes_are_found() -> None:
    """The list above is not empty by mistake."""
    assert len(CLASSES) >= 25
