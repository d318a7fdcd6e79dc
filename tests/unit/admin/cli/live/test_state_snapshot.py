from __future__ import annotations

import itertools

import pytest

from admin.cli.live.events import Broken, News, Told
from admin.cli.live.state import snapshot_json, whole_picture
from admin.client.transport import Unreachable
from tests.support.event_server import beat, line, replica, snapshot

WHOLE: list[News] = [Told(*each) for each in snapshot([line("b"), line("a")])]


def test_a_picture_is_whole_with_its_first_figures() -> None:
    """Whatever the server tells after that is left to others."""
    news = iter([*WHOLE, Broken("gone", 1.0)])

    picture = whole_picture(news, lambda: 0.0)

    assert [each["name"] for each in snapshot_json(picture)["functions"]] == ["a", "b"]
    assert next(news) == Broken("gone", 1.0)


def test_half_a_picture_is_none() -> None:
    """The reason of the break is told."""
    with pytest.raises(Unreachable, match="gone"):
        whole_picture(iter([*WHOLE[:2], Broken("gone", 1.0)]), lambda: 0.0)


def test_a_server_that_never_ends_its_snapshot_is_not_listened_to_for_ever() -> None:
    """After half a minute of beats something is wrong."""
    clock = itertools.count(0.0, 10.0)

    with pytest.raises(Unreachable, match="no whole picture within 30 s"):
        whole_picture(itertools.repeat(Told(*beat())), lambda: next(clock))


def test_a_snapshot_has_everything() -> None:
    """Server, figures, nouns and what happened, ready for JSON."""
    more = ("replicas", {"items": [replica("r1", "a", "cpu:0")]})
    decision = ("decision", {"function": "a", "at_s": 1.0, "text": "wakes"})
    news = [Told(*each) for each in snapshot([line("a")], more, decision)]

    found = snapshot_json(whole_picture(iter(news), lambda: 0.0))

    assert found["server"]["driver"] == "process"
    assert found["beat"]["readyz"] == {"status": "ready", "reasons": []}
    assert [each["id"] for each in found["replicas"]] == ["r1"]
    assert found["devices"] == []
    assert found["happened"][0]["text"] == "wakes"
