"""Which files of a folder have changed: names, times and sizes, looked at again and again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from admin.cli.bundle_files import files_in
from registry.errors import BadBundle

PAUSE_S: Final = 0.3
"""Seconds between two looks."""
SHARE: Final = 20
"""A look that takes long is followed by a pause of this many times its length."""
SETTLED: Final = 10
"""Looks after which a change counts though files still change."""
SHOWN: Final = 3


class Stamp(NamedTuple):
    """What differs once a file was written."""

    changed_ns: int
    size: int
    inode: int


Seen = Mapping[str, Stamp]
"""Files by their path in the folder."""


class Watch:
    """A folder that is looked at. What `.fnignore` leaves out of a deploy does not count."""

    def __init__(self, root: Path) -> None:
        """Raises BadBundle for a folder that cannot be read or has too many files."""
        self._root = root
        self.pause_s = PAUSE_S
        self._last = self._began = self.look()
        self._looks = 0

    def begin(self) -> None:
        """Compare with the present files from now on."""
        with suppress(BadBundle):
            self._last = self._began = self.look()
        self._looks = 0

    def changes(self) -> list[str]:
        """Return what has changed since `begin`, once it has been the same for two looks.

        Files that come and go during a look are no error: the next one sees what is left.
        """
        try:
            now = self.look()
        except BadBundle:
            return []
        found = changed(self._began, now)
        is_settled = now == self._last or self._looks >= SETTLED
        self._last = now
        self._looks = self._looks + 1 if found else 0
        return found if found and is_settled else []

    def look(self) -> Seen:
        """Return all files. Raises BadBundle."""
        began_s = time.monotonic()
        seen = {}
        for path in files_in(self._root):
            with suppress(OSError):
                stat = (self._root / path).stat()
                seen[path] = Stamp(stat.st_mtime_ns, stat.st_size, stat.st_ino)
        self.pause_s = max(PAUSE_S, (time.monotonic() - began_s) * SHARE)
        return seen


def changed(before: Seen, after: Seen) -> list[str]:
    """Return the files that are new, gone or different, sorted."""
    return sorted(path for path in {*before, *after} if before.get(path) != after.get(path))


def shown(paths: list[str]) -> str:
    """Return a few of the paths as text."""
    more = len(paths) - SHOWN
    return ", ".join(paths[:SHOWN]) + (f" and {more} more" if more > 0 else "")
