"""Fixtures and hooks for every test below this folder."""

from tests.support.engine import (
    engine,
    forgotten_sockets,
    pytest_runtest_setup,
    runtime_image,
    wheelhouse,
)
from tests.support.groups import pytest_collection_finish, pytest_collection_modifyitems
from tests.support.leaks import (
    end_of_tasks,
    leaks,
    pytest_fixture_setup,
    tasks_of_an_async_test,
)

__all__ = [
    "end_of_tasks",
    "engine",
    "forgotten_sockets",
    "leaks",
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_fixture_setup",
    "pytest_runtest_setup",
    "runtime_image",
    "tasks_of_an_async_test",
    "wheelhouse",
]
