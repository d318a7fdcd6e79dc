"""In which order the workers of pytest-xdist take the files with tests.

`--dist loadfile` keeps a file in one worker, so that a module-wide fixture is made once. Files with
slow tests come first: the quick ones fill the workers up at the end. A serial run is left as it is.
"""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the files in order, those with the most slow tests first."""
    if not hasattr(config, "workerinput"):
        return
    slow: Counter[str] = Counter()
    for item in items:
        if item.get_closest_marker("slow") or item.get_closest_marker("docker"):
            slow[_file(item)] += 1
    items.sort(key=lambda item: -slow[_file(item)])


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
