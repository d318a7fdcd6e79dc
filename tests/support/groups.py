"""Order in which the workers of pytest-xdist take test files, and what they keep of them all.

`--dist loadfile` keeps a file in one worker, so that a module-wide fixture is made once. Files with
slow tests come first; quick ones fill the workers up at the end. A serial run keeps its order.
"""

from __future__ import annotations

import gc
from collections import Counter

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the files by their number of slow tests, most first."""
    if not hasattr(config, "workerinput"):
        return
    slow: Counter[str] = Counter()
    for item in items:
        if item.get_closest_marker("slow") or item.get_closest_marker("docker"):
            slow[_file(item)] += 1
    items.sort(key=lambda item: -slow[_file(item)])


def pytest_collection_finish() -> None:
    """Take the collected tests out of the garbage collector's sight, a million objects: each full
    collection went through them, for 1.2 s, in files of a few seconds for a minute."""
    gc.collect()
    gc.freeze()


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
