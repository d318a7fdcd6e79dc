"""One whole picture of a server, read and let go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Final

from admin.cli.live.news import Broken, News
from admin.cli.live.picture import Picture
from admin.transport import Unreachable

WHOLE_S: Final = 30.0
"""Seconds within which a snapshot is whole; a server needs much less for ten thousand functions."""


def whole_picture(news: Iterator[News], clock: Callable[[], float]) -> Picture:
    """The picture once its snapshot is whole and the server has told its figures.

    Raises ApiError, or Unreachable where the events break before.
    """
    picture, until_s = Picture(), clock() + WHOLE_S
    for each in news:
        now = clock()
        if isinstance(each, Broken):
            raise Unreachable(each.why)
        picture.apply(each.kind, each.data, now)
        if not picture.is_reading and picture.beat:
            return picture
        if now > until_s:
            break
    raise Unreachable(f"the server told no whole picture within {WHOLE_S:.0f} s")


def snapshot_json(picture: Picture) -> dict[str, Any]:
    """A picture as one JSON object: the nouns in order of name or id."""
    facts = picture.facts
    return {
        "server": facts.server,
        "beat": picture.beat,
        "functions": [facts.functions[name] for name in sorted(facts.functions)],
        "replicas": [facts.replicas[id] for id in sorted(facts.replicas)],
        "devices": [facts.devices[id] for id in sorted(facts.devices)],
        "happened": [asdict(each) for each in picture.happened],
    }
