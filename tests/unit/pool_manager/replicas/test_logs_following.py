from __future__ import annotations

import os
from pathlib import Path

import pytest

from pool_manager.replicas import logs
from pool_manager.replicas.logs import Follow, Followers, LogLines, left_out, parse_cursor


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "digits" / "a1.log"
    path.parent.mkdir()
    return path


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def followers(asked: list[str]) -> Followers:
    return Followers(asked.append)


def write(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


async def drained(follow: Follow) -> list[LogLines]:
    """All there is."""
    found: list[LogLines] = []
    while said := await follow.read():
        found += said
    return found


async def test_lines_come_as_they_are_written(followers: Followers, log: Path) -> None:
    """Whole lines are returned once; the last line of a replica that is gone needs no end."""
    with followers.follow("digits") as follow:
        followers.begin("a1", log)
        assert await follow.read() == []
        write(log, b"one\ntw")
        assert await follow.read() == [LogLines("a1", ["one"], is_over=False)]
        write(log, b"o\nlast")
        assert await follow.read() == [LogLines("a1", ["two"], is_over=False)]

        followers.end("a1", log)
        assert await drained(follow) == [LogLines("a1", ["last"], is_over=True)]
        assert follow.cursor == "@"


async def test_a_log_that_begins_anew_within_a_line(followers: Followers, log: Path) -> None:
    """After a rewrite, a partial line is not joined to another one, and the cursor stays valid."""
    with followers.follow("digits") as follow:
        followers.begin("a1", log)
        write(log, b"one\ntw")
        await follow.read()
        os.truncate(log, 0)
        assert await follow.read() == []
        assert follow.cursor == "@a1:0"
        write(log, b"rest\nnew\n")

        assert await follow.read() == [LogLines("a1", [left_out(7), "new"], is_over=False)]
        assert follow.cursor == "@a1:9"


async def test_what_concerns_others_is_not_heard(followers: Followers, log: Path) -> None:
    """Other functions' replicas are not followed, and none after the block."""
    write(log, b"one\n")
    with followers.follow("tones") as follow:
        followers.begin("a1", log)
        followers.end("a1", log)
        assert await follow.read() == []

    assert not followers._follows


async def test_a_replica_that_came_and_went_is_heard(followers: Followers, log: Path) -> None:
    """A replica that started and ended between two reads is followed completely."""
    with followers.follow("digits") as follow:
        followers.begin("a1", log)
        write(log, b"no model\n")
        followers.end("a1", log)

        assert await drained(follow) == [
            LogLines("a1", ["no model"], is_over=False),
            LogLines("a1", [], is_over=True),
        ]


async def test_a_cursor_goes_on(followers: Followers, log: Path) -> None:
    """A follower resumed at a cursor reads everything after the last whole line, once."""
    write(log, b"one\ntw")
    with followers.follow("digits") as first:
        first.add("a1", log)
        await first.read()
        cursor = first.cursor
    write(log, b"o\n")

    with followers.follow("digits") as second:
        second.add("a1", log, (parse_cursor(cursor) or {})["a1"])
        assert await drained(second) == [LogLines("a1", ["two"], is_over=False)]


@pytest.mark.parametrize(
    "cursor", ["", "a1:1", "@a1", "@a1:x", "@a1:-1", "@A:1", "@a1:1,b", f"@{'a' * 5000}"]
)
def test_a_strange_cursor_is_none(cursor: str) -> None:
    """A malformed cursor from a client is rejected."""
    assert parse_cursor(cursor) is None


def test_a_cursor_is_read() -> None:
    """A cursor without replicas is valid: all later output is new."""
    assert parse_cursor("@a1:12,b2:0") == {"a1": 12, "b2": 0}
    assert parse_cursor("@") == {}


async def test_too_many_replicas_have_no_cursor(followers: Followers, log: Path) -> None:
    """A cursor too long for a header is left out."""
    with followers.follow("digits") as follow:
        for number in range(logs.CURSOR_MAX):
            follow.add(f"{number:x}", log)

        assert follow.cursor == ""


async def test_a_slow_reader_is_told_what_is_missing(followers: Followers, log: Path) -> None:
    """A slow reader gets a line with the exact number of dropped bytes, and only whole lines."""
    write(log, b"0123456789abcde\n" * 10_000)
    logs.bound_log(log, 65_536, 16_384)
    kept = logs.read_log(log, 0, 1).start
    with followers.follow("digits") as follow:
        follow.add("a1", log)
        [said] = await follow.read()

    assert said.lines == [left_out(kept + 16), *["0123456789abcde"] * (10_000 - kept // 16 - 1)]


async def test_only_living_replicas_are_asked_for(
    followers: Followers, log: Path, asked: list[str]
) -> None:
    """Output is fetched from the driver for live replicas only."""
    with followers.follow("digits") as follow:
        follow.add("a1", log)
        follow.add("b2", log.with_name("b2.log"), is_gone=True)
        await follow.read()

    assert asked == ["a1"]


async def test_whoever_reads_no_further_ends_all(followers: Followers, log: Path) -> None:
    """A stopped follower gets the unfinished last lines."""
    write(log, b"one\ntw")
    with followers.follow("digits") as follow:
        follow.add("a1", log)
        await follow.read()

        assert follow.left() == [LogLines("a1", ["tw"], is_over=True)]


async def test_a_piece_is_bounded(followers: Followers, log: Path) -> None:
    """A read takes at most one piece of each log."""
    write(log, b"x\n" * logs.PIECE)
    with followers.follow("digits") as follow:
        follow.add("a1", log)
        [said] = await follow.read()

    assert len(said.lines) == logs.PIECE // 2
