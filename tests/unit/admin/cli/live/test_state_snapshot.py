from __future__ import annotations

import itertools

import pytest

from admin.cli.live.events import ServerEvent, StreamItem
from admin.cli.live.state import read_live_state, snapshot_json
from admin.client.sse import Disconnected
from admin.client.transport import Unreachable
from tests.support.event_server import beat, line, replica, snapshot

WHOLE: list[StreamItem] = [ServerEvent(*each) for each in snapshot([line("b"), line("a")])]


def test_a_picture_is_whole_with_its_first_figures() -> None:
    """Whatever the server tells after that is left to others."""
    news = iter([*WHOLE, Disconnected("gone", 1.0)])

    live = read_live_state(news, lambda: 0.0)

    assert [each["name"] for each in snapshot_json(live)["functions"]] == ["a", "b"]
    assert next(news) == Disconnected("gone", 1.0)


def test_half_a_picture_is_none() -> None:
    """The reason of the break is told."""
    with pytest.raises(Unreachable, match="gone"):
        read_live_state(iter([*WHOLE[:2], Disconnected("gone", 1.0)]), lambda: 0.0)


def test_a_server_that_never_ends_its_snapshot_is_not_listened_to_for_ever() -> None:
    """After half a minute of beats something is wrong."""
    clock = itertools.count(0.0, 10.0)

    with pytest.raises(Unreachable, match="no whole picture within 30 s"):
        read_live_state(itertools.repeat(ServerEvent(*beat())), lambda: next(clock))


def test_a_snapshot_has_everything() -> None:
    """Server, figures, nouns and what happened, ready for JSON."""
    more = ("replicas", {"items": [replica("r1", "a", "cpu:0")]})
    decision = ("decision", {"function": "a", "at_s": 1.0, "text": "wakes"})
    news = [ServerEvent(*each) for each in snapshot([line("a")], more, decision)]

    found = snapshot_json(read_live_state(iter(news), lambda: 0.0))

    assert found["server"]["driver"] == "process"
    assert found["beat"]["readyz"] == {"status": "ready", "reasons": []}
    assert [each["id"] for each in found["replicas"]] == ["r1"]
    assert found["devices"] == []
    assert found["happened"][0]["text"] == "wakes"
