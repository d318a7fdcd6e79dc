"""Who follows what a function's replicas write.

Followers read the files: nothing is kept for them in memory, and nothing is done while there is
none. One who reads too slowly for what a log keeps is told how much was dropped.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from pool_manager.output import logfile
from pool_manager.output.lines import Lines

PIECE: Final = 64 * 1024
"""Bytes read of one log at once."""
TAIL_MAX: Final = 1024 * 1024
"""Bytes of a log that its last lines are looked for in."""
CURSOR_MAX: Final = 4096
"""Characters; a function with more replicas than that has none."""
_PLACE: Final = re.compile(r"([0-9a-z]{1,32}):([0-9]{1,15})")

Refresh = Callable[[str], None]
"""Begins to fetch what a replica has written, where that is not in its file by itself."""


class Said(NamedTuple):
    """Whole lines of one replica. `is_over`: it is gone, and these were its last."""

    replica: str
    lines: list[str]
    is_over: bool


class _Source:
    """One replica's log, as one follower reads it."""

    def __init__(self, path: Path, place: int = 0) -> None:
        self.path = path
        self.place = place
        self.lines = Lines()
        self.is_gone = False

    def read(self) -> tuple[list[str], bool]:
        """What has come since, and whether that is all there will ever be. Blocking."""
        # Before it is read: what was written by then will have been read.
        was_gone = self.is_gone
        try:
            start, data = logfile.read(self.path, self.place, PIECE)
        except OSError:  # not made yet, or it had to make room
            start, data = self.place, b""
        if start != self.place:
            # Before it where the log has begun anew.
            self.lines.skip(max(0, start - self.place))
        found = self.lines.feed(data)
        self.place = start + len(data)
        is_over = was_gone and not data
        return found + (self.lines.flush() if is_over else []), is_over


class Follow:
    """One follower. `read` gives what is new; `cursor` is where another one may go on."""

    def __init__(self, refresh: Refresh) -> None:
        self._refresh = refresh
        self._sources: dict[str, _Source] = {}

    def add(self, id: str, path: Path, place: int = 0, *, is_gone: bool = False) -> None:
        """One more replica, to be read from `place` on; one that is known goes on where it is."""
        source = self._sources.setdefault(id, _Source(path, place))
        source.path, source.is_gone = path, is_gone

    def end(self, id: str) -> None:
        """A replica is gone: what it wrote last is still to be read."""
        if id in self._sources:
            self._sources[id].is_gone = True

    async def read(self) -> list[Said]:
        """What has come since the last time, one piece of each log at most."""
        for id, source in self._sources.items():
            if not source.is_gone:
                self._refresh(id)
        said = await asyncio.to_thread(_read_all, list(self._sources.items()))
        for one in said:
            if one.is_over:
                del self._sources[one.replica]
        return said

    def left(self) -> list[Said]:
        """The end of every replica that is left, for whoever reads no further."""
        return [Said(id, one.lines.flush(), is_over=True) for id, one in self._sources.items()]

    @property
    def cursor(self) -> str:
        """The place in each log behind the last whole line; "" where that would be too long."""
        places = [f"{id}:{one.place - one.lines.pending}" for id, one in self._sources.items()]
        text = f"@{','.join(places)}"
        return text if len(text) <= CURSOR_MAX else ""


def _read_all(sources: Iterable[tuple[str, _Source]]) -> list[Said]:
    said = [Said(id, *source.read()) for id, source in sources]
    return [one for one in said if one.lines or one.is_over]


def places(cursor: str) -> dict[str, int] | None:
    """Replicas and places of a cursor; None where it is none of ours."""
    if not cursor.startswith("@") or len(cursor) > CURSOR_MAX:
        return None
    parts = [_PLACE.fullmatch(part) for part in cursor[1:].split(",") if part]
    found = {match[1]: int(match[2]) for match in parts if match is not None}
    return found if len(found) == len(parts) else None


class Followers:
    """Everybody who follows, by the function. `refresh` is called for each replica at each read."""

    def __init__(self, refresh: Refresh) -> None:
        self._refresh = refresh
        self._follows: dict[str, set[Follow]] = {}

    @contextmanager
    def follow(self, function: str) -> Iterator[Follow]:
        """One who hears of new replicas and of ends while the block runs."""
        follow = Follow(self._refresh)
        others = self._follows.setdefault(function, set())
        others.add(follow)
        try:
            yield follow
        finally:
            others.discard(follow)
            if not others:
                self._follows.pop(function, None)

    def began(self, id: str, path: Path) -> None:
        """A replica of the function that its log's folder is called after writes there."""
        for follow in self._follows.get(path.parent.name, ()):
            follow.add(id, path)

    def ended(self, id: str, path: Path) -> None:
        """It writes no more."""
        for follow in self._follows.get(path.parent.name, ()):
            follow.end(id)
