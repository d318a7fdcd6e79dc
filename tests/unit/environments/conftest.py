"""An index on loopback, interpreters of this machine, and environments of a test's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from environments.folders import Environments, EnvironmentSettings
from environments.interpreters import Interpreter, find_interpreters
from environments.trees import remove_tree
from tests.support.package_index import PackageIndex, package_index


@pytest.fixture
def index() -> Iterator[PackageIndex]:
    """Serve an index that has msgspec alone."""
    with package_index() as served:
        yield served


@pytest.fixture(scope="session")
def interpreter() -> Interpreter:
    """The interpreter of this test."""
    return find_interpreters().found[0]


@pytest.fixture
def make(tmp_path: Path, index: PackageIndex) -> Iterator[Callable[..., Environments]]:
    """Return a maker of environments of one folder, whose packages come from the index."""
    root = tmp_path / "environments"

    def environments(**settings: int) -> Environments:
        config = index.config(tmp_path)
        return Environments(root, EnvironmentSettings(config, **settings))

    yield environments
    if root.exists():
        remove_tree(root)
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


@pytest.fixture
def environments(make: Callable[..., Environments]) -> Environments:
    """Environments with the usual limits."""
    return make()
