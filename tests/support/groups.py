"""Which tests stay in one worker of pytest-xdist, and in which order the workers take them.

The tests of a file are a group, so that a module-wide fixture is made once. Groups with slow tests
come first: the quick ones fill the workers up at the end. A serial run is left as it is.
"""

from __future__ import annotations

import pytest


def group_of(nodeid: str) -> str:
    """The group of a test: its file."""
    return nodeid.partition("::")[0]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give each test its group, and put the groups in order."""
    if not hasattr(config, "workerinput"):
        return
    slow = set()
    for item in items:
        group = group_of(item.nodeid)
        item.add_marker(pytest.mark.xdist_group(group))
        if item.get_closest_marker("slow") or item.get_closest_marker("docker"):
            slow.add(group)
    items.sort(key=lambda item: group_of(item.nodeid) not in slow)
