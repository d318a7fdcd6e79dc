"""A file stays in one worker, and files with slow tests come first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.groups import group_of, pytest_collection_modifyitems


class Item:
    """As much of a test as its group needs."""

    def __init__(self, nodeid: str, *marks: str) -> None:
        self.nodeid = nodeid
        self.marks = dict.fromkeys(marks, pytest.mark.slow)

    def get_closest_marker(self, name: str) -> object:
        return self.marks.get(name)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks[mark.name] = mark


def collected() -> list[Any]:
    names = ["a.py::one", "b.py::two", "b.py::three[x::y]", "c.py::four"]
    return [Item(name, *(["slow"] if "three" in name else [])) for name in names]


def config(**options: object) -> Any:
    """Of a worker if it has `workerinput`."""
    return SimpleNamespace(**options)


def test_a_worker_takes_files_with_slow_tests_first() -> None:
    """Within a file, and among files alike, the order stays."""
    items = collected()

    pytest_collection_modifyitems(config(workerinput={}), items)

    assert [group_of(item.nodeid) for item in items] == ["b.py", "b.py", "a.py", "c.py"]
    assert [item.nodeid for item in items][:2] == ["b.py::two", "b.py::three[x::y]"]
    assert all(item.marks["xdist_group"].args == (group_of(item.nodeid),) for item in items)


def test_a_serial_run_is_left_as_it_is() -> None:
    """Neither order nor marks change without workers."""
    items = collected()

    pytest_collection_modifyitems(config(), items)

    assert [item.nodeid for item in items] == [item.nodeid for item in collected()]
    assert all("xdist_group" not in item.marks for item in items)
